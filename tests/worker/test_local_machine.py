"""Local state of a worker: file cache, temporary folders, name, interruption notices, scale-in protection."""

import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from callsheet.worker import (
    AwsSpotSource,
    Cache,
    CommandProtection,
    FileSource,
    Interruption,
    InterruptionWatcher,
    Scratch,
    UrlSource,
)
from callsheet.worker.errors import UnreachableError
from callsheet.worker.runtime.interruption_notices import POLL_SECONDS
from callsheet.worker.runtime.scale_in_protection import ProtectionController
from callsheet.worker.runtime.worker_events import WorkerError, WorkerEvent, WorkerWaiting, log_to_stderr
from callsheet.worker.runtime.worker_name_reservation import NameTakenError, hold_worker_name
from tests.client.stub_server import ScriptedResponse, StubServer
from tests.support.doubles.hostile_server import MARK, TEXT
from tests.support.wait import wait_until

# -- file cache


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def add(cache: Cache, folder: Path, body: bytes) -> str:
    """Add bytes to the cache as a task does after a download."""
    file = folder / f"fetched-{len(list(folder.iterdir()))}"
    file.write_bytes(body)
    cache.add(digest(body), file)
    return digest(body)


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("cache/??/*")}


def test_cached_files_are_available_to_later_tasks_and_other_processes(tmp_path: Path) -> None:
    name = add(Cache(tmp_path / "cache", 100), tmp_path, b"model")
    other = Cache(tmp_path / "cache", 100)
    assert other.link_to(name, tmp_path / "mine")
    assert (tmp_path / "mine").read_bytes() == b"model"
    assert not other.link_to(digest(b"another"), tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_the_least_recently_used_file_is_evicted_and_tasks_keep_their_links(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10)
    first, second = add(cache, tmp_path, b"aaaa"), add(cache, tmp_path, b"bbbb")
    assert cache.link_to(first, tmp_path / "first")
    assert cache.link_to(second, tmp_path / "second")
    for used_at, name in enumerate((first, second)):  # independent of how the file system records access times
        entry = tmp_path / "cache" / name[:2] / name
        os.utime(entry, ns=(used_at, entry.stat().st_mtime_ns))
    assert cache.link_to(first, tmp_path / "first again")
    third = add(cache, tmp_path, b"cccc")
    assert entries(tmp_path) == {first, third}
    assert (tmp_path / "second").read_bytes() == b"bbbb"


def test_a_file_larger_than_the_cache_is_not_added_and_evicts_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10)
    small = add(cache, tmp_path, b"small")
    add(cache, tmp_path, b"much too large")
    assert entries(tmp_path) == {small}


@pytest.mark.parametrize("known", [True, False], ids=["used before", "by another process"])
def test_a_damaged_cache_entry_is_discarded(tmp_path: Path, known: bool) -> None:
    cache = Cache(tmp_path / "cache", 100)
    name = add(cache, tmp_path, b"model")
    if known:
        assert cache.link_to(name, tmp_path / "before")
    entry = tmp_path / "cache" / name[:2] / name
    status = entry.stat()
    entry.chmod(0o600)
    entry.write_bytes(b"mudel")
    if not known:  # corrupted without a change of the time stamp
        os.utime(entry, ns=(status.st_atime_ns, status.st_mtime_ns))
    reader = cache if known else Cache(tmp_path / "cache", 100)
    assert not reader.link_to(name, tmp_path / "mine")
    assert entries(tmp_path) == set()
    assert not (tmp_path / "mine").exists()


def test_without_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    cache = Cache(tmp_path / "cache", 100)
    name = add(cache, tmp_path, b"model")
    assert cache.link_to(name, tmp_path / "mine")
    assert cache.link_to(name, tmp_path / "yours")
    assert (tmp_path / "mine").stat().st_ino != (tmp_path / "yours").stat().st_ino
    assert entries(tmp_path) == {name}


def test_the_cache_respects_its_size_limit_with_many_threads(tmp_path: Path) -> None:
    cache, bodies = Cache(tmp_path / "cache", 50), [bytes([n]) * 10 for n in range(12)]
    wrong: list[bytes] = []

    def use(number: int) -> None:
        folder = tmp_path / f"task-{number}"
        folder.mkdir()
        for turn in range(40):
            body = bodies[(number * 7 + turn) % len(bodies)]
            path = folder / f"{turn}"
            if not cache.link_to(digest(body), path):
                path.write_bytes(body)
                cache.add(digest(body), path)
            if path.read_bytes() != body:
                wrong.append(body)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < len(entries(tmp_path)) <= 5


@pytest.mark.parametrize("name", ["", "../x", "A" * 64, "0" * 63])
def test_a_cache_key_must_be_a_sha256_digest(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        Cache(tmp_path, 1).link_to(name, tmp_path / "x")


# -- folders of tasks


def test_folders_of_killed_workers_are_deleted_and_those_of_running_ones_are_not(tmp_path: Path) -> None:
    running = Scratch(tmp_path)
    running.open()
    mine = running.create_task_folder("t1")
    dead = tmp_path / "callsheet-tasks-dead"
    (dead / "t2" / "deep").mkdir(parents=True)
    (dead / "lock").touch()
    (dead / "t2").chmod(0o500)
    (tmp_path / "of-another-program").mkdir()
    next_one = Scratch(tmp_path)
    next_one.open()
    assert mine.exists()
    assert not dead.exists()
    running.close()
    next_one.close()
    assert [path.name for path in tmp_path.iterdir()] == ["of-another-program"]
    with pytest.raises(ValueError, match="not running"):
        running.create_task_folder("t3")


# -- names


def test_a_worker_keeps_its_name_after_a_restart_and_two_workers_have_two_names(tmp_path: Path) -> None:
    with hold_worker_name(tmp_path) as first, hold_worker_name(tmp_path) as second:
        assert first != second
    with hold_worker_name(tmp_path) as again:
        assert again == first
    with hold_worker_name(tmp_path, "gpu-1") as chosen:
        assert chosen == "gpu-1"
        with pytest.raises(NameTakenError, match="already runs"):
            hold_worker_name(tmp_path, "gpu-1").__enter__()
    with pytest.raises(ValueError, match="letters"):
        hold_worker_name(tmp_path, "../x").__enter__()


# -- interruption notices


class Metadata:
    """A metadata server of a cloud, which requires a session token."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.tokens = 0
        handler = self._handler()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                assert self.path == "/latest/api/token"
                assert int(self.headers["x-aws-ec2-metadata-token-ttl-seconds"]) > 0
                server.tokens += 1
                self.respond(200, f"token-{server.tokens}")

            def do_GET(self) -> None:
                if self.headers["x-aws-ec2-metadata-token"] != f"token-{server.tokens}":
                    self.respond(401, "")
                else:
                    self.respond(200 if self.path in server.found else 404, "{}")

            def respond(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        return Handler


def test_a_spot_interruption_and_a_rebalance_recommendation_are_noticed() -> None:
    """R230: an expired token is renewed."""
    assert POLL_SECONDS == 5
    cloud = Metadata()
    poll, only = AwsSpotSource(cloud.url), AwsSpotSource(cloud.url, rebalance=False)
    assert poll.poll() is None
    cloud.tokens += 1
    cloud.found.add("/latest/meta-data/events/recommendations/rebalance")
    assert poll.poll() == Interruption("spot rebalance recommendation", drain=True)
    assert only.poll() is None
    cloud.found.add("/latest/meta-data/spot/instance-action")
    assert poll.poll() == only.poll() == Interruption("spot interruption")
    cloud.close()


def test_a_file_or_a_url_can_announce_an_interruption(tmp_path: Path) -> None:
    notice = FileSource(tmp_path / "end")
    assert notice.poll() is None
    (tmp_path / "end").write_text("host maintenance\nand more")
    assert notice.poll() == Interruption("host maintenance")
    (tmp_path / "end").write_text("")
    assert notice.poll() == Interruption("a notice file")
    with StubServer() as stub:
        stub.responses = [ScriptedResponse(404, ""), ScriptedResponse(200, "preempted")]
        source = UrlSource(stub.url)
        assert [source.poll(), source.poll()] == [None, Interruption("preempted")]


def test_each_notice_and_each_failing_source_is_reported_once() -> None:
    class FailingSource:
        polls = 0

        def poll(self) -> Interruption | None:
            self.polls += 1
            raise OSError("no metadata here: http://169.254.169.254/secret")

    class FixedSource:
        def poll(self) -> Interruption | None:
            return Interruption("the end")

    failing, notices, events = FailingSource(), list[Interruption](), list[WorkerEvent]()
    watcher = InterruptionWatcher([failing, FixedSource()], notices.append, events.append, poll_seconds=0.001)
    watcher.start()
    wait_until(lambda: failing.polls > 3)
    watcher.stop()
    assert notices == [Interruption("the end")]
    (reported,) = events
    assert isinstance(reported, WorkerError)
    assert "secret" not in str(reported.error)


# -- logging


def test_the_log_of_a_worker_has_no_unsafe_character(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (ValueError(TEXT), UnreachableError(TEXT)):
        log_to_stderr(WorkerError(f"A draw failed {TEXT}", error))
    log_to_stderr(WorkerWaiting(TEXT))
    logged = capsys.readouterr().err
    assert logged.count("\n") > 3
    assert MARK in logged
    assert logged.replace("\n", "").isprintable()


def test_handler_errors_are_logged_with_a_traceback_and_expected_errors_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def handler() -> None:
        (tmp_path / "not-there").read_bytes()

    def logged(error: BaseException) -> str:
        log_to_stderr(WorkerError("A draw failed", error))
        return capsys.readouterr().err

    with pytest.raises(FileNotFoundError) as failed:
        handler()
    assert "in handler\n" in logged(failed.value)
    with pytest.raises(OSError, match="cannot be run") as run:
        CommandProtection(str(tmp_path / "not-there")).set(enabled=True)
    assert logged(run.value) == f"A draw failed: {tmp_path}/not-there cannot be run: No such file or directory\n"
    assert logged(UnreachableError("no response")) == "A draw failed: no response\n"


# -- scale-in protection


class RecordingProtection:
    """A protection that records its calls and can fail."""

    def __init__(self) -> None:
        self.calls: list[bool] = []
        self.broken = False

    def set(self, *, enabled: bool) -> None:
        self.calls.append(enabled)
        if self.broken:
            raise OSError("no rights")


def test_protection_stays_on_between_two_tasks() -> None:
    """R232: it is not switched for every task."""
    switch = RecordingProtection()
    guard = ProtectionController(switch, lambda _: None, idle_seconds=600)
    guard.start()
    wait_until(lambda: switch.calls == [False])
    for _ in range(5):
        guard.set_busy(busy=True)
        guard.set_busy(busy=True)
        wait_until(lambda: switch.calls[-1])
        guard.set_busy(busy=False)
    with pytest.raises(TimeoutError):
        wait_until(lambda: len(switch.calls) > 2, 0.2)
    assert switch.calls == [False, True]
    guard.stop()
    assert switch.calls == [False, True, False]


def test_protection_is_removed_after_the_idle_time() -> None:
    switch = RecordingProtection()
    guard = ProtectionController(switch, lambda _: None, idle_seconds=0.01)
    guard.start()
    guard.set_busy(busy=True)
    wait_until(lambda: switch.calls[-1:] == [True])
    guard.set_busy(busy=False)
    wait_until(lambda: switch.calls[-1:] == [False])
    guard.stop()
    assert switch.calls[-2:] == [True, False]


def test_a_protection_that_fails_is_reported_and_retried_at_the_next_change() -> None:
    switch, events = RecordingProtection(), list[WorkerEvent]()
    switch.broken = True
    guard = ProtectionController(switch, events.append, idle_seconds=0)
    guard.start()
    guard.set_busy(busy=True)
    wait_until(lambda: switch.calls[-1:] == [True])
    guard.stop()
    assert [event.message for event in events if isinstance(event, WorkerError)][-2:] == [
        "Switching the scale-in protection on failed",
        "Switching the scale-in protection off failed",
    ]


def test_a_command_is_run_with_on_and_off(tmp_path: Path) -> None:
    script, log = tmp_path / "protect me.sh", tmp_path / "log"
    script.write_text(f'#!/bin/sh\necho "$1 $2" >> {log}\n')
    script.chmod(0o700)
    protection = CommandProtection(f"'{script}' group-1")
    protection.set(enabled=True)
    protection.set(enabled=False)
    assert log.read_text() == "group-1 on\ngroup-1 off\n"
    with pytest.raises(OSError, match="exited with 3: no such group"):
        CommandProtection("sh -c 'echo no such group >&2; exit 3'").set(enabled=True)
    with pytest.raises(ValueError, match="empty"):
        CommandProtection(" ")
