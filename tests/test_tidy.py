"""The project keeps its rules of size, style and language; each check finds a planted fault."""

from pathlib import PurePosixPath

import pytest

from tests.support.tidiness import tidy, tidy_language
from tests.support.tidiness.tidy import File

OF_PYTHON = (*tidy.OF_PYTHON, tidy_language.private_name, tidy_language.gerund_module)
OF_TEXT = (*tidy.OF_TEXT, tidy_language.private_text)

CLEAN = '''"""What this module is."""

import asyncio


async def test_a_sentence():
    await asyncio.sleep(0)
    assert 1 + 1 == 2
'''

# Spelt in parts, so that this file does not contain the faults.
MACHINE_PATH = "see /{}/notes".format("work")
REGISTRY = "https://{}.org/simple".format("pypi")

PLANTED = [
    (tidy.long_file, "src/callsheet/a.py", "x = 1\n" * 401),
    (tidy.long_function, "src/callsheet/a.py", "def f():\n" + "    x = 1\n" * 60),
    (tidy.long_function, "tests/test_a.py", "async def f():\n" + "    x = 1\n" * 60),
    (tidy.no_docstring, "src/callsheet/a.py", "x = 1\n"),
    (tidy.swallowed_error, "src/callsheet/a.py", "try:\n    f()\nexcept ValueError:\n    pass\n"),
    (tidy.swallowed_error, "src/callsheet/a.py", "try:\n    f()\nexcept:\n    ...\n"),
    (tidy.sleep_in_test, "tests/test_a.py", "time.sleep(1)\n"),
    (tidy.sleep_in_test, "tests/test_a.py", "async def f():\n    await asyncio.sleep(0.1)\n"),
    (tidy.sleep_in_test, "tests/engine/a.py", "from time import sleep\n"),
    (tidy.test_without_assertion, "tests/test_a.py", "def test_a():\n    f()\n"),
    (tidy.test_without_assertion, "tests/core/test_a.py", "async def test_a():\n    assert True\n"),
    (tidy.impure_core, "src/callsheet/core/a.py", "import time\n"),
    (tidy.impure_core, "src/callsheet/core/a.py", "def f():\n    from os import path\n"),
    (tidy.impure_core, "src/callsheet/core/a.py", "from callsheet.store import sqlite\n"),
    (tidy.impure_core, "src/callsheet/core/a.py", "from callsheet import engine\n"),
    (tidy.impure_core, "src/callsheet/core/a.py", "from ..store import sqlite\n"),
    (tidy.impure_core, "src/callsheet/core/a.py", "now = datetime.now(UTC)\n"),
    (tidy.vague_name, "src/callsheet/a.py", "class JobManager: ...\n"),
    (tidy.vague_name, "src/callsheet/a.py", "class StringUtils: ...\n"),
    (tidy.vague_name, "src/callsheet/job_helpers.py", ""),
    (tidy.uncounted, "src/callsheet/a.py", 'f"It costs {price} credits."\n'),
    (tidy.uncounted, "src/callsheet/a.py", 'f"{self.limit:g} seconds"\n'),
    (tidy.unfinished, "src/callsheet/a.py", "# todo: later\n".upper()),
    (tidy.unfinished, "docs/a.md", "A hack of sorts\n".upper()),
    (tidy.foreign_place, "docs/a.md", MACHINE_PATH),
    (tidy.foreign_place, "requirements-dev.lock", REGISTRY),
    (tidy_language.private_name, "src/callsheet/a.py", "class WorkerKit: ...\n"),
    (tidy_language.private_name, "src/callsheet/a.py", "def _told(job): ...\n"),
    (tidy_language.private_name, "src/callsheet/a.py", "def put(given): ...\n"),
    (tidy_language.private_name, "src/callsheet/a.py", "def __init__(self):\n    self.tries_max = 3\n"),
    (tidy_language.private_name, "tests/test_a.py", "def test_a():\n    said = 1\n"),
    (tidy_language.private_name, "src/callsheet/a.py", "class A:\n    beat_seconds: float = 1\n"),
    (tidy_language.private_name, "src/callsheet/http/house.py", ""),
    (tidy_language.gerund_module, "src/callsheet/http/handing.py", ""),
    (tidy_language.gerund_module, "tests/http/test_freed.py", ""),
    (tidy_language.private_text, "src/callsheet/a.py", 'raise Conflict("cold", "The house is closed.")\n'),
    (tidy_language.private_text, "src/callsheet/a.py", "# Whoever waits\n"),
    (tidy_language.private_text, "docs/a.md", "An expired token is good no longer."),
    (tidy_language.private_text, "README.md", "The worker is told in the next answer."),
]


@pytest.fixture(scope="module")
def files() -> list[File]:
    return tidy.text_files()


@pytest.mark.parametrize("check", OF_PYTHON, ids=lambda check: check.__name__)
def test_the_code_is_tidy(check: tidy.Check, files: list[File]) -> None:
    code = [file for file in files if file.path.suffix == ".py" and file.path.parts[0] in tidy_language.CODE_FOLDERS]
    assert len(code) > 300
    assert tidy.findings(check, code) == []


@pytest.mark.parametrize("check", OF_TEXT, ids=lambda check: check.__name__)
def test_the_text_is_tidy(check: tidy.Check, files: list[File]) -> None:
    assert len(files) > 300
    assert tidy.findings(check, files) == []


def test_no_folder_is_crowded(files: list[File]) -> None:
    assert tidy_language.crowded_folders([file.path for file in files]) == []


def test_a_planted_crowded_folder_is_found() -> None:
    names = [PurePosixPath(f"src/callsheet/http/a{number}.py") for number in range(16)]
    marker = PurePosixPath("src/callsheet/http/__init__.py")
    assert tidy_language.crowded_folders(names) == ["src/callsheet/http: 16 files; at most 15"]
    assert tidy_language.crowded_folders([marker, *names[1:]]) == []


@pytest.mark.parametrize(("check", "path", "text"), PLANTED)
def test_a_planted_fault_is_found(check: tidy.Check, path: str, text: str) -> None:
    assert tidy.findings(check, [File(PurePosixPath(path), text)])


@pytest.mark.parametrize("check", OF_PYTHON + OF_TEXT, ids=lambda check: check.__name__)
def test_a_clean_file_has_no_findings(check: tidy.Check) -> None:
    assert tidy.findings(check, [File(PurePosixPath("tests/test_a.py"), CLEAN)]) == []


def test_every_check_has_a_planted_fault() -> None:
    assert {check for check, _, _ in PLANTED} == set(OF_PYTHON + OF_TEXT)
