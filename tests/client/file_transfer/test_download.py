"""Downloads over a connection that breaks: they resume, and never mix the bytes of two versions of a file."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callsheet.client import AsyncClient, CallsheetError, Client, CorruptFileError
from callsheet.client.operation_effects import Request, TransportError
from callsheet.client.retry import connection_error
from tests.client.both_clients import ClientFactory
from tests.client.file_transfer.range_server import BODY, OTHER, RangeServer, etag, record
from tests.client.stub_server import ScriptedResponse, StubServer, problem


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a.bin"
    assert {path.name for path in tmp_path.iterdir()} <= {"a.bin"}, "no partial file is left"


@pytest.mark.parametrize("file", [record(), "f1"], ids=["record", "id"])
def test_a_cut_download_resumes_where_it_stopped(client_of: ClientFactory, target: Path, file: Any) -> None:
    with RangeServer([100_000, 50_000, 1]) as stub:
        assert client_of(stub.url).files.download(file, target).read_bytes() == BODY
        assert stub.requested_ranges == [None, "bytes=100000-", "bytes=150000-", "bytes=150001-"]
        assert {request.headers.get("if-range") for request in stub.requests[1:]} == {etag(BODY)}


def test_reading_into_memory_resumes_too(client_of: ClientFactory) -> None:
    with RangeServer([1_000]) as stub:
        assert client_of(stub.url).files.read(record()) == BODY
        assert stub.requested_ranges == [None, "bytes=1000-"]


def test_a_download_survives_many_cuts_if_each_attempt_makes_progress(client_of: ClientFactory, target: Path) -> None:
    with RangeServer([25_000] * 11) as stub:
        assert client_of(stub.url).files.download(record(), target).read_bytes() == BODY
        assert len(stub.requests) == 12


def test_without_range_support_the_whole_file_is_requested_again(client_of: ClientFactory, target: Path) -> None:
    with RangeServer([100_000], ranges=False) as stub:
        assert client_of(stub.url).files.download(record(), target).read_bytes() == BODY
        assert len(stub.requests) == 2


def test_a_file_that_changes_during_the_download_is_not_mixed(client_of: ClientFactory, target: Path) -> None:
    class ChangingServer(RangeServer):
        def send_response(self, handler: Any, scripted: ScriptedResponse) -> None:  # type: ignore[override]
            super().send_response(handler, scripted)
            self.body = OTHER

    with ChangingServer([100_000]) as stub:
        assert client_of(stub.url).files.download("f1", target).read_bytes() == OTHER
    with ChangingServer([100_000]) as stub, pytest.raises(CorruptFileError):
        client_of(stub.url).files.download(record(), target)


def test_a_download_without_progress_fails_after_bounded_attempts(client_of: ClientFactory, target: Path) -> None:
    with RangeServer([100_000, *[0] * 50]) as stub, pytest.raises(CallsheetError, match="No response from"):
        client_of(stub.url).files.download(record(), target)
    with RangeServer([100_000] * 50, ranges=False) as stub, pytest.raises(CallsheetError, match="No response from"):
        client_of(stub.url).files.download(record(), target)


def test_concurrent_downloads_to_one_path_are_each_complete_and_the_last_one_remains(
    target: Path, tmp_path: Path
) -> None:
    def both() -> Iterator[bytes]:
        """Send a file, and download the other to the same path in the middle of it."""
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


def test_a_canceled_download_leaves_the_existing_file_unchanged(target: Path, tmp_path: Path) -> None:
    target.write_bytes(OTHER)

    async def stopped() -> None:
        started = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield BODY[:100_000]
            started.set()
            await asyncio.Event().wait()

        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=endless()))
        async with AsyncClient("http://x", transport=transport) as client:
            task = asyncio.create_task(client.files.download(record(), target))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(stopped())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": OTHER}


def test_a_rejection_while_resuming_is_raised(client_of: ClientFactory, target: Path) -> None:
    class RefusingServer(RangeServer):
        def send_response(self, handler: Any, scripted: ScriptedResponse) -> None:  # type: ignore[override]
            if len(self.requests) == 1:
                super().send_response(handler, scripted)
            else:
                StubServer.send_response(handler, problem(404, "file_not_found"))

    with RefusingServer([100_000]) as stub, pytest.raises(CallsheetError) as refused:
        client_of(stub.url).files.download(record(), target)
    assert refused.value.code == "file_not_found"


def test_download_progress_is_reported_and_resumes_where_the_connection_was_cut(
    client_of: ClientFactory, target: Path
) -> None:
    reported: list[int] = []
    with RangeServer([100_000]) as stub:
        client_of(stub.url).files.download(record(), target, progress=reported.append)
    assert reported == sorted(reported)
    assert (reported[-1], 100_000 in reported) == (len(BODY), True)


def test_a_connection_error_names_the_host_without_the_signature_of_the_url() -> None:
    bucket = Request("GET", "https://bucket.example/films/a?signature=secret", omit_credentials=True)
    error = connection_error(TransportError("timed out", sent=True), "http://x", bucket)
    assert error.message == "No response from https://bucket.example: timed out."


@pytest.mark.parametrize(
    "location", ["{url}/bucket/f1?X-Amz-Signature=s", "//evil.example/x", "ftp://evil.example/x", ""]
)
def test_a_file_in_a_bucket_is_downloaded_from_there_without_the_api_key(
    stub: StubServer, client_of: ClientFactory, location: str
) -> None:
    redirect = ScriptedResponse(307, "", {"location": location.format(url=stub.url), "etag": etag(BODY)})
    stub.responses = [redirect, ScriptedResponse(200, BODY, {"etag": '"of the bucket"'})]
    client = client_of(stub.url, "cs_secret")
    if not location.startswith("{url}"):
        with pytest.raises(CallsheetError):
            client.files.read("f1")
        assert len(stub.requests) == 1
        return
    assert client.files.read("f1") == BODY
    assert stub.requests[1].path == "/bucket/f1?X-Amz-Signature=s"
    assert ["authorization" in request.headers for request in stub.requests] == [True, False]
    stub.responses = [redirect, ScriptedResponse(200, b"other", {"etag": etag(BODY)})]
    with pytest.raises(CallsheetError) as damaged:
        client.files.read("f1")
    assert damaged.value.code == "corrupt_file"
