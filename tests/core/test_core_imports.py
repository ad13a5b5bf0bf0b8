"""The rules are a library: they need no database, no network and nobody's SDK."""

import ast
import subprocess
import sys
from pathlib import Path

import callsheet.core

ALLOWED = {"callsheet", "jsonschema_rs", "msgspec"}
"""Besides the standard library: schemas and their check."""
BELOW = ("apsw", "psycopg", "httpx", "callsheet.store", "callsheet.engine", "callsheet.http", "callsheet.worker")


def roots(text: str) -> set[str]:
    """Return the packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_the_rules_import_schemas_and_nothing_else_of_others() -> None:
    """R290: no SDK of a provider, nobody's queue or storage."""
    files = [*Path(callsheet.core.__file__).parent.rglob("*.py")]
    assert len(files) > 40
    strange = {path.name: roots(path.read_text()) - ALLOWED - sys.stdlib_module_names for path in files}
    assert {name: found for name, found in strange.items() if found} == {}
    assert roots("import replicate.client\nfrom boto3 import s3") - ALLOWED == {"replicate", "boto3"}


def test_the_rules_decide_in_a_process_that_has_neither_database_nor_network() -> None:
    """R292."""
    loaded = "import sys, callsheet.core.command_registry; print(*sys.modules)"
    there = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "callsheet.core.command_registry" in there
    assert [name for name in there if name.startswith(BELOW)] == []
