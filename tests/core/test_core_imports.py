"""The core is a library without a database, network access or provider SDKs."""

import ast
import subprocess
import sys
from pathlib import Path

import callsheet.core

ALLOWED = {"callsheet", "jsonschema_rs", "msgspec"}
"""Packages that the core may import besides the standard library."""
FORBIDDEN = ("apsw", "psycopg", "httpx", "callsheet.store", "callsheet.engine", "callsheet.http", "callsheet.worker")


def imported_packages(text: str) -> set[str]:
    """Return the packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_the_core_imports_only_the_standard_library_and_the_schema_libraries() -> None:
    """R290."""
    files = [*Path(callsheet.core.__file__).parent.rglob("*.py")]
    assert len(files) > 40
    unexpected = {path.name: imported_packages(path.read_text()) - ALLOWED - sys.stdlib_module_names for path in files}
    assert {name: found for name, found in unexpected.items() if found} == {}
    assert imported_packages("import replicate.client\nfrom boto3 import s3") - ALLOWED == {"replicate", "boto3"}


def test_importing_the_core_loads_no_database_and_no_network_library() -> None:
    """R292."""
    program = "import sys, callsheet.core.command_registry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "callsheet.core.command_registry" in loaded
    assert [name for name in loaded if name.startswith(FORBIDDEN)] == []
