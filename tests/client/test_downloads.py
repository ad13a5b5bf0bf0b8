"""Files over a line that breaks: a download goes on where it was cut, and never mixes the bytes of two states."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from callsheet.client import AsyncClient, CallsheetError, Client, CorruptFileError, File
from callsheet.client.operations import Request, TransportError
from callsheet.client.retry import connection_error
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import ScriptedResponse, StubServer, problem

BODY = random.Random(7).randbytes(300_000)
OTHER = random.Random(8).randbytes(300_000)


def tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()}"'


def record(body: bytes = BODY) -> File:
    digest = hashlib.sha256(body).hexdigest()
    return File(
        "f1", "a.bin", "application/octet-stream", len(body), digest, "/v1/files/f1", "ready", "ann", None,
        datetime.now(UTC), None,
    )  # fmt: skip


class RangeServer(StubServer):
    """Has one file, speaks RFC 9110's ranges, and hangs up after so many bytes of each of the first answers."""

    def __init__(self, cut_after: list[int], *, body: bytes = BODY, ranges: bool = True) -> None:
        super().__init__()
        self.cut_after = cut_after
        self.body = body
        self.ranges = ranges
        self.responses = [ScriptedResponse()]

    def send_answer(self, handler: Any, scripted: ScriptedResponse) -> None:  # type: ignore[override]  # noqa: ARG002 - the script is the cuts
        headers = self.asked[-1].headers
        start = 0
        if self.ranges and headers.get("if-range") == tag(self.body):
            start = int(headers["range"].removeprefix("bytes=").removesuffix("-"))
        whole = self.body[start:]
        cut = self.cut_after.pop(0) if self.cut_after else len(whole)
        handler.close_connection = True
        handler.send_response(206 if start else 200)
        handler.send_header("etag", tag(self.body))
        if start:
            handler.send_header("content-range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        handler.send_header("content-length", str(len(whole)))
        handler.end_headers()
        handler.wfile.write(whole[:cut])

    @property
    def ranges_asked(self) -> list[str | None]:
        return [asked.headers.get("range") for asked in self.asked]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a.bin"
    assert {path.name for path in tmp_path.iterdir()} <= {"a.bin"}, "nothing half is left"


@pytest.mark.parametrize("file", [record(), "f1"], ids=["record", "id"])
def test_a_download_that_was_cut_goes_on_where_it_was(client_of: ClientFactory, target: Path, file: Any) -> None:
    with RangeServer([100_000, 50_000, 1]) as stub:
        assert client_of(stub.url).files.download(file, target).read_bytes() == BODY
        assert stub.ranges_asked == [None, "bytes=100000-", "bytes=150000-", "bytes=150001-"]
        assert {asked.headers.get("if-range") for asked in stub.asked[1:]} == {tag(BODY)}


def test_bytes_read_into_memory_go_on_too(client_of: ClientFactory) -> None:
    with RangeServer([1_000]) as stub:
        assert client_of(stub.url).files.read(record()) == BODY
        assert stub.ranges_asked == [None, "bytes=1000-"]


def test_a_line_that_breaks_often_but_gets_further_each_time_is_enough(client_of: ClientFactory, target: Path) -> None:
    with RangeServer([25_000] * 11) as stub:
        assert client_of(stub.url).files.download(record(), target).read_bytes() == BODY
        assert len(stub.asked) == 12


def test_a_server_that_knows_no_ranges_is_asked_for_everything_again(client_of: ClientFactory, target: Path) -> None:
    with RangeServer([100_000], ranges=False) as stub:
        assert client_of(stub.url).files.download(record(), target).read_bytes() == BODY
        assert len(stub.asked) == 2


def test_a_file_that_became_another_meanwhile_is_not_mixed(client_of: ClientFactory, target: Path) -> None:
    class ChangingServer(RangeServer):
        def send_answer(self, handler: Any, scripted: ScriptedResponse) -> None:  # type: ignore[override]
            super().send_answer(handler, scripted)
            self.body = OTHER

    with ChangingServer([100_000]) as stub:
        assert client_of(stub.url).files.download("f1", target).read_bytes() == OTHER
    with ChangingServer([100_000]) as stub, pytest.raises(CorruptFileError):
        client_of(stub.url).files.download(record(), target)


def test_a_server_that_breaks_at_the_same_place_for_ever_is_given_up(client_of: ClientFactory, target: Path) -> None:
    with RangeServer([100_000, *[0] * 50]) as stub, pytest.raises(CallsheetError, match="No response from"):
        client_of(stub.url).files.download(record(), target)
    with RangeServer([100_000] * 50, ranges=False) as stub, pytest.raises(CallsheetError, match="No response from"):
        client_of(stub.url).files.download(record(), target)


def test_downloads_to_one_path_at_once_each_arrive_whole_and_the_last_one_stays(target: Path, tmp_path: Path) -> None:
    def both() -> Iterator[bytes]:
        """Send a file, and in the middle of it fetch the other to the same path."""
        yield BODY[:100_000]
        assert client.files.download(record(OTHER), target).read_bytes() == OTHER
        yield BODY[100_000:]
        assert target.read_bytes() == OTHER

    responses: Iterator[Any] = iter([both(), OTHER])
    with Client(
        "http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=next(responses)))
    ) as client:
        assert client.files.download(record(), target).read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_download_that_is_stopped_leaves_nothing_and_what_was_there_stays(target: Path, tmp_path: Path) -> None:
    target.write_bytes(OTHER)

    async def stopped() -> None:
        under_way = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield BODY[:100_000]
            under_way.set()
            await asyncio.Event().wait()

        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=endless()))
        async with AsyncClient("http://x", transport=transport) as client:
            task = asyncio.create_task(client.files.download(record(), target))
            await under_way.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(stopped())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": OTHER}


def test_a_downloaded_file_may_be_read_by_those_who_may_read_any_new_one(
    client_of: ClientFactory, tmp_path: Path
) -> None:
    usual = tmp_path / "usual"
    usual.touch()
    with RangeServer([]) as stub:
        saved = client_of(stub.url).files.download(record(), tmp_path)
    assert saved.stat().st_mode == usual.stat().st_mode


def test_what_is_refused_on_the_way_is_raised(client_of: ClientFactory, target: Path) -> None:
    class RefusingServer(RangeServer):
        def send_answer(self, handler: Any, scripted: ScriptedResponse) -> None:  # type: ignore[override]
            if len(self.asked) == 1:
                super().send_answer(handler, scripted)
            else:
                StubServer.send_answer(handler, problem(404, "file_not_found"))

    with RefusingServer([100_000]) as stub, pytest.raises(CallsheetError) as refused:
        client_of(stub.url).files.download(record(), target)
    assert refused.value.code == "file_not_found"


@pytest.mark.parametrize(("name", "saved"), [
    ("..", "file"), (".", "file"), ("...", "file"), (".bashrc", "bashrc"), ("..x", "x"), ("/etc/passwd", "passwd"),
    ("../../up.png", "up.png"), ("a b.png", "a b.png"), ("-rf", "-rf"), ("", "f1"),
])  # fmt: skip
def test_a_name_that_somebody_gave_leads_nowhere_else_and_to_no_hidden_file(
    client_of: ClientFactory, tmp_path: Path, name: str, saved: str
) -> None:
    """Whoever downloads into a home folder must not get another start of his shell."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / ".bashrc").write_text("mine")
    with RangeServer([]) as stub:
        got = client_of(stub.url).files.download(replace(record(), name=name), folder)
    assert (got, got.read_bytes()) == (folder / saved, BODY)
    assert (folder / ".bashrc").read_text() == "mine"
    assert {path.name for path in folder.iterdir()} == {".bashrc", saved}
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.parametrize("file", [record(), "a.bin"], ids=["record", "id"])
def test_what_a_folder_has_is_kept_and_the_same_bytes_are_there_once(
    client_of: ClientFactory, tmp_path: Path, file: File | str
) -> None:
    (tmp_path / "a.bin").write_bytes(OTHER)
    (tmp_path / "a-2.bin").mkdir()
    (tmp_path / "a-3.bin").symlink_to("nowhere")
    with RangeServer([]) as stub:
        client = client_of(stub.url)
        saved = client.files.download(file, tmp_path)
        assert (saved, saved.read_bytes()) == (tmp_path / "a-4.bin", BODY)
        assert client.files.download(file, tmp_path) == saved
        assert len(stub.asked) == (1 if isinstance(file, File) else 2), "what is known to be there is not fetched"
    assert (tmp_path / "a.bin").read_bytes() == OTHER
    assert {path.name for path in tmp_path.iterdir()} == {"a.bin", "a-2.bin", "a-3.bin", "a-4.bin"}


def test_a_file_is_replaced_by_who_says_so_or_names_it_himself(client_of: ClientFactory, tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with RangeServer([]) as stub:
        client = client_of(stub.url)
        target.write_bytes(OTHER)
        assert client.files.download(record(), tmp_path, overwrite=True) == target
        assert target.read_bytes() == BODY
        target.write_bytes(OTHER)
        assert client.files.download(record(), target) == target
        assert target.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_two_files_of_one_name_that_arrive_at_once_are_both_kept(tmp_path: Path) -> None:
    def both() -> Iterator[bytes]:
        """Send a file, and in the middle of it fetch another of the same name."""
        yield BODY[:100_000]
        assert client.files.download(record(OTHER), tmp_path).name == "a.bin"
        yield BODY[100_000:]

    responses: Iterator[Any] = iter([both(), OTHER])
    with Client(
        "http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=next(responses)))
    ) as client:
        assert client.files.download(record(), tmp_path).name == "a-2.bin"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": OTHER, "a-2.bin": BODY}


def test_a_name_is_taken_also_where_no_file_has_two(
    client_of: ClientFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no such links here")

    monkeypatch.setattr("os.link", refused)
    (tmp_path / "a.bin").write_bytes(OTHER)
    with RangeServer([]) as stub:
        assert client_of(stub.url).files.download("a.bin", tmp_path).read_bytes() == BODY
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": OTHER, "a-2.bin": BODY}


def test_download_progress_is_reported_and_resumes_where_the_connection_was_cut(
    client_of: ClientFactory, target: Path
) -> None:
    told: list[int] = []
    with RangeServer([100_000]) as stub:
        client_of(stub.url).files.download(record(), target, progress=told.append)
    assert told == sorted(told)
    assert (told[-1], 100_000 in told) == (len(BODY), True)


def test_whoever_does_not_answer_is_named_without_what_signs_the_address() -> None:
    bucket = Request("GET", "https://bucket.example/films/a?signature=secret", omit_credentials=True)
    error = connection_error(TransportError("timed out", sent=True), "http://x", bucket)
    assert error.message == "No response from https://bucket.example: timed out."
