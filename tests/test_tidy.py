"""The code keeps the house's sizes and habits, and every check of that is seen to catch a planted fault."""

from pathlib import PurePosixPath

import pytest

from tests.support import tidy
from tests.support.tidy import File

CODE = ("src/callsheet", "tests", "bench")

CLEAN = '''"""What this module is."""

import asyncio


async def test_a_sentence():
    await asyncio.sleep(0)
    assert 1 + 1 == 2
'''

# The faults are spelt so that this file does not hold them itself.
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
]


@pytest.fixture(scope="module")
def files() -> list[File]:
    return tidy.text_files()


@pytest.mark.parametrize("check", tidy.OF_PYTHON, ids=lambda check: check.__name__)
def test_the_code_is_tidy(check: tidy.Check, files: list[File]) -> None:
    code = [file for file in files if file.path.suffix == ".py" and any(map(file.within, CODE))]
    assert code, "no code was found to look at"
    assert tidy.findings(check, code) == []


@pytest.mark.parametrize("check", tidy.OF_TEXT, ids=lambda check: check.__name__)
def test_the_text_is_tidy(check: tidy.Check, files: list[File]) -> None:
    assert tidy.findings(check, files) == []


@pytest.mark.parametrize(("check", "path", "text"), PLANTED)
def test_a_planted_fault_is_found(check: tidy.Check, path: str, text: str) -> None:
    assert tidy.findings(check, [File(PurePosixPath(path), text)])


@pytest.mark.parametrize("check", tidy.OF_PYTHON + tidy.OF_TEXT, ids=lambda check: check.__name__)
def test_a_clean_file_has_no_findings(check: tidy.Check) -> None:
    assert tidy.findings(check, [File(PurePosixPath("tests/test_a.py"), CLEAN)]) == []


def test_every_check_has_a_planted_fault() -> None:
    assert {check for check, _, _ in PLANTED} == set(tidy.OF_PYTHON + tidy.OF_TEXT)
