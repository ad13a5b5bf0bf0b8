"""The log's files: bounded in size and number, private, whole lines, whoever writes them."""

from io import TextIOWrapper
from pathlib import Path
from threading import Thread

import pytest

from callsheet.telemetry.rotating_file import RotatingFile

LINE = "x" * 39 + "\n"


def opened(file: Path, *, bytes_max: int = 100, files_max: int = 3) -> TextIOWrapper:
    return TextIOWrapper(RotatingFile(file, bytes_max, files_max), encoding="utf-8", write_through=True)


def numbered(n: int) -> str:
    return f"{n:039}\n"


@pytest.mark.parametrize("files_max", [1, 2, 3])
def test_a_log_keeps_the_newest_lines_in_so_many_files_of_so_many_bytes(tmp_path: Path, files_max: int) -> None:
    file = tmp_path / "x.log"
    with opened(file, files_max=files_max) as log:
        for n in range(20):
            log.write(numbered(n))
    names = ["x.log", "x.log.1", "x.log.2"][:files_max]
    assert sorted(one.name for one in tmp_path.iterdir()) == names
    kept = "".join((tmp_path / name).read_text() for name in reversed(names))
    assert kept == "".join(numbered(n) for n in range(20 - 2 * files_max, 20))


def test_a_log_goes_on_where_it_ended_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    for n in range(3):
        with opened(file) as log:
            log.write(numbered(n))
    assert (file.read_text(), (tmp_path / "x.log.1").read_text()) == (numbered(2), numbered(0) + numbered(1))
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


def test_a_line_longer_than_a_file_is_written_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    with opened(file, bytes_max=10) as log:
        log.write(LINE)
        log.write(LINE)
    assert (file.read_text(), (tmp_path / "x.log.1").read_text()) == (LINE, LINE)


def test_two_servers_that_write_one_log_lose_no_line_to_a_file_that_was_set_aside(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    one, other = opened(file), opened(file)
    for n in range(6):
        (one, other)[n % 2].write(numbered(n))
    names = ("x.log.2", "x.log.1", "x.log")
    assert "".join((tmp_path / name).read_text() for name in names) == "".join(map(numbered, range(6)))
    one.close()
    other.close()


def test_many_writers_at_once_leave_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    logs = [RotatingFile(file, 4_000, 50) for _ in range(2)]

    def write(log: RotatingFile) -> None:
        for n in range(500):
            log.write(numbered(n).encode())

    threads = [Thread(target=write, args=(log,)) for log in logs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for log in logs:
        log.close()
    lines = [line for one in tmp_path.iterdir() for line in one.read_text().splitlines()]
    assert sorted(lines) == sorted(numbered(n).strip() for n in range(500) for _ in range(4))
