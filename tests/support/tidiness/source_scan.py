"""Finds every error code that the source raises and every event type that it emits, from its syntax tree."""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from callsheet.core.decisions.transitions import EVENT_NAMES
from callsheet.core.model.state_machines import JOB, STAGE
from tests.support.tidiness.tidy import ROOT, Function

REFUSALS = ("BadInput", "Conflict", "Deleted", "Denied", "RateLimited", "Refusal", "TemporarilyUnavailable")
ENDINGS = {"finish": 4, "expire": 2, "AttemptEnd": 1, "fail_attempt": 3, "requeue_task": 3}
"""Calls that end an attempt or a run, and the position of the code among their arguments."""


class SourceScan:
    """Python modules, with their functions and the calls in them."""

    def __init__(self, modules: list[str]) -> None:
        self.functions: dict[str, Function] = {}
        self.calls: list[tuple[ast.Call, Function | None]] = []
        self.classes: list[ast.ClassDef] = []
        for text in modules:
            self._visit(ast.parse(text), None)

    def _visit(self, node: ast.AST, inside: Function | None) -> None:
        if isinstance(node, Function):
            self.functions.setdefault(node.name, node)
            inside = node
        elif isinstance(node, ast.ClassDef):
            self.classes.append(node)
        elif isinstance(node, ast.Call):
            self.calls.append((node, inside))
        for child in ast.iter_child_nodes(node):
            self._visit(child, inside)

    def calls_to(self, *names: str) -> Iterator[tuple[ast.Call, Function | None]]:
        for call, inside in self.calls:
            if ast.unparse(call.func).rpartition(".")[2] in names:
                yield call, inside

    def possible_texts(self, node: ast.expr, inside: Function | None) -> set[str]:
        """Return every text an expression can be: a constant, a template, a loop's or a parameter's values."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if isinstance(node, ast.IfExp):
            return self.possible_texts(node.body, inside) | self.possible_texts(node.orelse, inside)
        if isinstance(node, ast.JoinedStr):
            return self._fill_template(node, inside)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".replace"):
            return {text.replace(" ", "_") for text in self.possible_texts(node.func.value, inside)}  # type: ignore[attr-defined]
        if isinstance(node, ast.Name) and inside is not None:
            return self._loop_values(node.id, inside) or self._argument_values(node.id, inside)
        return set()

    def _fill_template(self, template: ast.JoinedStr, inside: Function | None) -> set[str]:
        found = {""}
        for part in template.values:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            found = {before + text for before in found for text in self.possible_texts(value, inside)}
        return found

    def _loop_values(self, name: str, inside: Function) -> set[str]:
        for node in ast.walk(inside):
            if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple):
                names = [ast.unparse(target) for target in node.target.elts]
                if name in names:
                    rows = [row for row in node.iter.elts if isinstance(row, ast.Tuple)]
                    return set(
                        chain.from_iterable(self.possible_texts(row.elts[names.index(name)], inside) for row in rows)
                    )
        return set()

    def _argument_values(self, name: str, inside: Function) -> set[str]:
        arguments = [argument.arg for argument in inside.args.args]
        if name not in arguments:
            return set()
        position = arguments.index(name)
        found: set[str] = set()
        for call, caller in self.calls_to(inside.name):
            if len(call.args) > position:
                found |= self.possible_texts(call.args[position], caller)
        return found


def source() -> SourceScan:
    """Scan the source of the project."""
    return SourceScan([path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))])


def error_codes(code: SourceScan) -> dict[str, str]:
    """Return every code that can be raised, with the class that carries it."""
    found = {
        f"{what}_not_found": "NotFound"
        for call, inside in code.calls_to("NotFound")
        for what in _first(code, call, inside)
    }
    for call, inside in code.calls_to(*REFUSALS):
        kind = ast.unparse(call.func).rpartition(".")[2]
        found |= dict.fromkeys(_first(code, call, inside), kind)
    for error in (cls for cls in code.classes if "Refusal" in map(ast.unparse, cls.bases)):
        for call in (node for node in ast.walk(error) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "super().__init__" and call.args and isinstance(call.args[0], ast.Constant):
                found[str(call.args[0].value)] = error.name
    return found


def problem_codes(code: SourceScan) -> dict[str, int]:
    """Return every code that the HTTP server returns by itself, with its status."""
    found: dict[str, int] = {}
    for call, inside in code.calls_to("Problem"):
        status = call.args[0]
        if isinstance(status, ast.Constant) and isinstance(status.value, int):
            found |= dict.fromkeys(code.possible_texts(call.args[1], inside), status.value)
    return found


def _first(code: SourceScan, call: ast.Call, inside: Function | None) -> set[str]:
    return code.possible_texts(call.args[0], inside) if call.args else set()


def ending_codes(code: SourceScan) -> set[str]:
    """Return every code with which an attempt or a run can end."""
    found: set[str] = set()
    for name, position in ENDINGS.items():
        for call, inside in code.calls_to(name):
            if len(call.args) > position:
                found |= code.possible_texts(call.args[position], inside)
    return found


def event_types(code: SourceScan) -> set[str]:
    """Return every event type that can be emitted: by name, or by a move of a machine."""
    emitted = {text for call, inside in code.calls_to("emit") for text in _second(code, call, inside)}
    jobs = {f"job.{EVENT_NAMES[move.event]}" for move in JOB.moves}
    stages = {f"stage.{EVENT_NAMES[move.event]}" for move in STAGE.moves if move.event in EVENT_NAMES}
    tasks = {
        f"task.{EVENT_NAMES[event]}"
        for call, inside in code.calls_to("move_task")
        if len(call.args) > 3
        for event in code.possible_texts(call.args[3], inside)
    }
    return emitted | jobs | stages | tasks


def _second(code: SourceScan, call: ast.Call, inside: Function | None) -> set[str]:
    found = code.possible_texts(call.args[1], inside) if len(call.args) > 1 else set()
    return {text for text in found if "." in text}


def read_tables(page: Path, heading: str = "") -> dict[str, list[str]]:
    """Return the rows of the tables of a page by their first cell; with a heading, of that section only."""
    text = page.read_text()
    if heading:
        text = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {re.sub("`", "", row[0]): row[1:] for row in rows if row[0].startswith("`")}
