"""Rotated log files: bounded in size and number, private, and with whole lines from several writers."""

from io import TextIOWrapper
from pathlib import Path
from threading import Thread

import pytest

from callsheet.telemetry.rotating_file import RotatingFile

LINE = "x" * 39 + "\n"


def open_log(file: Path, *, bytes_max: int = 100, files_max: int = 3) -> TextIOWrapper:
    return TextIOWrapper(RotatingFile(file, bytes_max, files_max), encoding="utf-8", write_through=True)


def numbered_line(n: int) -> str:
    return f"{n:039}\n"


@pytest.mark.parametrize("files_max", [1, 2, 3])
def test_a_log_keeps_the_newest_lines_within_its_limits(tmp_path: Path, files_max: int) -> None:
    file = tmp_path / "x.log"
    with open_log(file, files_max=files_max) as log:
        for n in range(20):
            log.write(numbered_line(n))
    names = ["x.log", "x.log.1", "x.log.2"][:files_max]
    assert sorted(one.name for one in tmp_path.iterdir()) == names
    kept = "".join((tmp_path / name).read_text() for name in reversed(names))
    assert kept == "".join(numbered_line(n) for n in range(20 - 2 * files_max, 20))


def test_a_reopened_log_is_appended_to_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    for n in range(3):
        with open_log(file) as log:
            log.write(numbered_line(n))
    assert (file.read_text(), (tmp_path / "x.log.1").read_text()) == (
        numbered_line(2),
        numbered_line(0) + numbered_line(1),
    )
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


def test_a_line_longer_than_a_file_is_still_written(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    with open_log(file, bytes_max=10) as log:
        log.write(LINE)
        log.write(LINE)
    assert (file.read_text(), (tmp_path / "x.log.1").read_text()) == (LINE, LINE)


def test_two_servers_that_write_one_log_lose_no_line_when_it_is_rotated(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    one, other = open_log(file), open_log(file)
    for n in range(6):
        (one, other)[n % 2].write(numbered_line(n))
    names = ("x.log.2", "x.log.1", "x.log")
    assert "".join((tmp_path / name).read_text() for name in names) == "".join(map(numbered_line, range(6)))
    one.close()
    other.close()


def test_concurrent_writers_write_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    logs = [RotatingFile(file, 4_000, 50) for _ in range(2)]

    def write(log: RotatingFile) -> None:
        for n in range(500):
            log.write(numbered_line(n).encode())

    threads = [Thread(target=write, args=(log,)) for log in logs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    lines = [line for one in tmp_path.iterdir() for line in one.read_text().splitlines()]
    assert sorted(lines) == sorted(numbered_line(n).strip() for n in range(500) for _ in range(4))
