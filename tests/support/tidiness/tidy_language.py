"""Language checks of tests/test_tidy.py: names and texts use the words of the field, modules are nouns.

A name is a module, class, function, parameter, attribute or variable that a Python file defines. A text is any
text file of the project: Python with its comments, SQL, Markdown, TOML.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

from tests.support.tidiness.tidy import File, Function

FOLDER_FILES_MAX = 15
CODE_FOLDERS = ("src", "tests", "bench", "tools")

_METAPHORS = """
beat beaten beats crew furnish furnished hand hands heard house houses kit kits lend lender lent lookout misfit
misfits nobody patience recipe recipes rollcall said somebody strike strikes stranger told tries vouch vouched whoever
"""
_RIDDLES = "asked brought given gone keeper living near plant pulse room shown standing talk"
NEVER_IN_NAMES = frozenset(_METAPHORS.split())
"""Private metaphors; each has a word of the field, such as server, heartbeat, attempt, definition, caller."""

NEVER_IN_PUBLIC_NAMES = NEVER_IN_NAMES | frozenset(_RIDDLES.split())
"""Riddles as the name of a module, class, function, parameter or attribute; a local variable may have them."""

ALLOWED_NAMES = {
    "hand_off": "the worker hands a task off to a provider; the API and the events have this word",
    "HandOff": "the command of hand_off",
    "_house_width": "the demo draws houses",
    "_house_height": "the demo draws houses",
}

ALLOWED_IN_TESTS = {"plant": "a test plants a fault and sees that the check finds it"}

NEVER_IN_TEXTS = re.compile(
    r"\b(the house|a house|house's|houses|whoever|somebody|nobody|strangers?|good no longer|no longer good|good until"
    r"|(in|at) hand|(is|are|was|were|be) (told|said|heard|asked)|heard of|(given|gives?) back|(comes?|came) back"
    r"|(goes|go|went) on|lets? in|the edge|(a|the|each|every|one|last|first|second) try|tries left|\d+ tries"
    r"|says goodbye)\b",
    re.IGNORECASE,
)
"""Phrases of the private language: docs and messages name the server, the caller and the operator instead."""

SPELLS_THE_WORDS = (
    "tests/support/tidiness/tidy_language.py",
    "tests/test_tidy.py",
)
"""The checks themselves, which must name what they look for."""

GERUND = re.compile(r"(ing|ed)$")
MODULE_NOUNS = {
    "autoscaling": "the name of the feature",
    "batched": "reads/batched is the reader that batches; the class is BatchedReader",
    "blocking": "client/drivers/blocking, the driver that blocks",
    "embedded": "an embedded server is the term",
    "event_feed": "feed is a noun",
    "event_listing": "listing is a noun",
    "fuzzing": "the name of the method",
    "job_listing": "listing is a noun",
    "method_binding": "binding is a noun",
    "model_based": "model-based testing is the term",
    "openapi_fuzzing": "fuzzing is the name of the method",
    "recording": "a recording is a noun",
    "request_framing": "HTTP message framing is the term of RFC 9112",
    "routing": "Starlette's word for it",
    "scaling": "the name of the subject",
    "docs_autoscaling": "the page docs/guides/autoscaling.md",
    "string": "a noun",
    "thing": "a noun",
}

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def private_name(file: File) -> Iterator[str]:
    """Find names with a word of the private language in them."""
    found = {(file.path.stem, True), *_defined_names(file)}
    for name, public in sorted(found):
        if name not in ALLOWED_NAMES:
            for word in _words(name) & (NEVER_IN_PUBLIC_NAMES if public else NEVER_IN_NAMES):
                if not (file.within("tests") and word in ALLOWED_IN_TESTS):
                    yield f"'{word}' in the name {name}"


def gerund_module(file: File) -> Iterator[str]:
    """Find modules that are named by a gerund or a participle."""
    stem = file.path.stem.removeprefix("test_")
    if GERUND.search(stem) and stem not in MODULE_NOUNS:
        yield f"'{stem}' is no noun"


def private_text(file: File) -> Iterator[str]:
    """Find phrases of the private language."""
    if str(file.path) in SPELLS_THE_WORDS:
        return
    counts = Counter(match[0].lower() for match in NEVER_IN_TEXTS.finditer(file.text))
    for phrase, count in sorted(counts.items()):
        yield f"'{phrase}' occurs in the text ({count}x)"


def crowded_folders(paths: list[PurePosixPath]) -> list[str]:
    """Return the folders of code with too many files; `__init__.py` only marks a package and does not count."""
    code = [path for path in paths if path.parts[0] in CODE_FOLDERS and path.name != "__init__.py"]
    counts = Counter(path.parent for path in code)
    return [
        f"{folder}: {count} files; at most {FOLDER_FILES_MAX}"
        for folder, count in sorted(counts.items())
        if count > FOLDER_FILES_MAX
    ]


def _defined_names(file: File) -> Iterator[tuple[str, bool]]:
    """Yield each name that a file defines, and whether it is more than a local variable."""
    for node in file.nodes:
        if isinstance(node, (Function, ast.ClassDef)):
            yield node.name, True
        elif isinstance(node, ast.arg):
            yield node.arg, True
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, False


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}
