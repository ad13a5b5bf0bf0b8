"""The checks of tests/test_tidy.py: each takes one file and yields its findings."""

import ast
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[3]
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
MAY_SLEEP = "tests/support/wait.py"
CORE_MAY_IMPORT = re.compile(
    r"(__future__|abc|bisect|collections|dataclasses|datetime|enum|functools|graphlib|hashlib|itertools|json"
    r"|jsonschema_rs|math|msgspec|operator|re|typing|zlib|callsheet\.core)(\.|$)"
)
CLOCK_READ = re.compile(r"\b(datetime|date)\.(now|utcnow|today)$")
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|HAC[K])\b")
VAGUE_CLASS = re.compile(r"(Manager|Service|Helper|Util)s?$")
VAGUE_MODULE = re.compile(r"(^|_)(manager|service|helper|util)s?$")
ASSERTING_CALL = re.compile(r"^_?(assert|check|expect|fail$|prove|raises$|warns$)")
# Paths of one machine and hosts of package registries do not work for the next reader.
FOREIGN = re.compile(
    r"(?<![\w.])/(work|root)/"
    r"|\b(pypi\.org|pythonhosted\.org|registry\.npmjs\.org|registry\.yarnpkg\.com|(deb|security)\.debian\.org)\b"
)

# A count may be 1; limits and constants are not.
COUNTED = re.compile(r" (more )?(bytes|credits|files|jobs|leases|lines|nodes|seconds|tasks|times|workers)\b")
NEVER_ONE = re.compile(r"(_max|\bmost|^limit|^[_A-Z]+)$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class File:
    """One text file, with its path from the root of the project."""

    path: PurePosixPath
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in self.nodes if isinstance(node, Function))

    def within(self, folder: str) -> bool:
        return self.path.is_relative_to(folder)


Check = Callable[[File], Iterator[str]]


def text_files() -> list[File]:
    """Return every text file that is in the repository, or would be after `git add`."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    contents = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).is_file()}
    return [
        File(PurePosixPath(name), content.decode(errors="replace"))
        for name, content in contents.items()
        if b"\0" not in content
    ]


def long_file(file: File) -> Iterator[str]:
    lines = len(file.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines; at most {FILE_LINES_MAX}"


def long_function(file: File) -> Iterator[str]:
    for function in file.functions:
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{function.name} has {lines} lines; at most {FUNCTION_LINES_MAX}"


def unfinished(file: File) -> Iterator[str]:
    for match in UNFINISHED.finditer(file.text):
        yield f"{match[0]} is left over"


def no_docstring(file: File) -> Iterator[str]:
    if file.text.strip() and ast.get_docstring(file.tree) is None:
        yield "the module has no docstring"


def swallowed_error(file: File) -> Iterator[str]:
    for node in file.nodes:
        if isinstance(node, ast.ExceptHandler) and all(_does_nothing(line) for line in node.body):
            yield f"line {node.lineno} swallows an error"


def sleep_in_test(file: File) -> Iterator[str]:
    if not file.within("tests") or str(file.path) == MAY_SLEEP:
        return
    for node in file.nodes:
        if isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names):
            yield f"line {node.lineno} imports sleep by name"
        if isinstance(node, ast.Call) and _sleeps(node):
            yield f"line {node.lineno} sleeps; wait on a condition"


def test_without_assertion(file: File) -> Iterator[str]:
    if not file.within("tests") or not file.path.name.startswith("test_"):
        return
    for function in file.functions:
        if function.name.startswith("test_") and not any(map(_asserts, ast.walk(function))):
            yield f"{function.name} asserts nothing"


def impure_core(file: File) -> Iterator[str]:
    if not file.within("src/callsheet/core"):
        return
    for node in file.nodes:
        for module in _imported(node):
            if not CORE_MAY_IMPORT.match(module):
                yield f"the core imports {module}"
        if isinstance(node, ast.Call) and CLOCK_READ.search(ast.unparse(node.func)):
            yield f"line {node.lineno} reads the clock"


def vague_name(file: File) -> Iterator[str]:
    if not file.within("src"):
        return
    if VAGUE_MODULE.search(file.path.stem):
        yield f"{file.path.stem} does not name its purpose"
    for node in file.nodes:
        if isinstance(node, ast.ClassDef) and VAGUE_CLASS.search(node.name):
            yield f"{node.name} does not name its purpose"


def uncounted(file: File) -> Iterator[str]:
    if not file.within("src"):
        return
    for node in (node for node in file.nodes if isinstance(node, ast.JoinedStr)):
        for number, text in itertools.pairwise(node.values):
            if isinstance(number, ast.FormattedValue) and isinstance(text, ast.Constant):
                noun = COUNTED.match(str(text.value))
                if noun and not NEVER_ONE.search(ast.unparse(number.value)):
                    yield f'line {node.lineno} prints "1{noun[0]}" for one: use core.model.plural'


def foreign_place(file: File) -> Iterator[str]:
    for match in FOREIGN.finditer(file.text):
        yield f"names {match[0]}"


OF_PYTHON: tuple[Check, ...] = (
    long_file,
    long_function,
    no_docstring,
    swallowed_error,
    sleep_in_test,
    test_without_assertion,
    impure_core,
    vague_name,
    uncounted,
)
OF_TEXT: tuple[Check, ...] = (unfinished, foreign_place)


def findings(check: Check, files: list[File]) -> list[str]:
    return [f"{file.path}: {finding}" for file in files for finding in check(file)]


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _sleeps(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    yields_only = [ast.unparse(argument) for argument in call.args] == ["0"]
    return name == "time.sleep" or (name in {"asyncio.sleep", "anyio.sleep"} and not yields_only)


def _asserts(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    if isinstance(node, ast.Call):
        return bool(ASSERTING_CALL.match(ast.unparse(node.func).rpartition(".")[2]))
    return False


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # `from callsheet import core` names a module only together with its alias.
        if node.module == "callsheet":
            return [f"callsheet.{alias.name}" for alias in node.names]
        return ["." * node.level + (node.module or "")]
    return []
