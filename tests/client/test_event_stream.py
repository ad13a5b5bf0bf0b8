"""Event streams: no gap and no duplicate, however often the connection breaks."""

from contextlib import closing
from itertools import islice
from typing import Any

import pytest

from callsheet.client import APIConnectionError, CallsheetError, Client
from callsheet.client.operation_effects import Item, Open, Read, Reply, Sleep
from callsheet.client.resources.jobs import Jobs
from callsheet.core.model import commands
from tests.client.both_clients import ClientFactory
from tests.client.cuttable_proxy import CuttableProxy
from tests.client.stub_server import ScriptedResponse, StubServer, frames, problem, stream
from tests.support.processes.live_server import LiveServer


def sequence(events: Any) -> list[int]:
    return [event.seq for event in events]


def events_operation(client: Client) -> Any:
    """Return the operation of `jobs.events`, whose effects the test performs."""
    events: Any = Jobs.events
    return events.__wrapped__(client.jobs, "j1")


def test_a_jobs_events_are_streamed_until_it_has_ended(live_server: LiveServer, client_of: ClientFactory) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    job = client.jobs.submit("sketch", user="ann", input={})
    events = client.jobs.events(job.id)
    seen = [next(events).type]
    live_server.work()
    seen += [event.type for event in events]
    assert (seen[0], seen[-1]) == ("job.created", "job.completed")
    assert sequence(client.jobs.events(job.id)) == list(range(1, len(seen) + 1))
    assert sequence(client.jobs.events(job.id, cursor=3)) == list(range(4, len(seen) + 1))


def test_a_retried_jobs_events_include_both_runs(live_server: LiveServer, client_of: ClientFactory) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    job = client.jobs.submit("sketch", user="ann", input={})
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    live_server.engine.execute(commands.Fail(lease=leased.lease, retryable=False))
    client.jobs.retry(job.id)
    live_server.work()
    seen = list(client.jobs.events(job.id))
    assert sequence(seen) == list(range(1, len(seen) + 1))
    assert [event.type for event in seen if event.type in {"job.failed", "job.completed"}] == [
        "job.failed", "job.completed",
    ]  # fmt: skip


def test_a_cut_job_stream_resumes_where_it_stopped(live_server: LiveServer, client_of: ClientFactory) -> None:
    with CuttableProxy(live_server.url) as proxy:
        client = client_of(proxy.url, live_server.keys["client"])
        job = client.jobs.submit("sketch", user="ann", input={})
        events = client.jobs.events(job.id)
        seen = [next(events).seq]
        proxy.cut()
        (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
        seen += sequence(islice(events, 2))
        proxy.cut()
        live_server.engine.execute(commands.Complete(lease=leased.lease))
        seen += sequence(events)
        assert seen == list(range(1, client.jobs.get(job.id).last_event_seq + 1))
        assert proxy.connections >= 3


def test_a_cut_tenant_feed_resumes_where_it_stopped(live_server: LiveServer, client_of: ClientFactory) -> None:
    with CuttableProxy(live_server.url) as proxy:
        client = client_of(proxy.url, live_server.keys["client"])
        first = live_server.submit()["id"]
        feed = client.events.stream(job_id=first)
        event = next(feed)
        assert (event.job_id, event.type) == (first, "job.created")
        feed.close()
        feed = client.events.stream(cursor=event.cursor, types=["job."])
        live_server.submit()
        assert next(feed).type == "job.created"
        proxy.cut()
        live_server.work()
        second = live_server.submit()["id"]
        seen = [(one.job_id, one.type) for one in islice(feed, 3)]
        assert seen == [(first, "job.started"), (first, "job.completed"), (second, "job.created")]
        assert proxy.connections >= 3
        feed.close()
        resumed = client.events.stream(cursor=event.cursor, job_id=first, types=["job.completed"])
        assert next(resumed).type == "job.completed"
        resumed.close()
        live_server.work()
        live_server.work()


def test_a_stream_from_now_that_is_cut_before_its_first_event_misses_nothing(
    stub: StubServer, client_of: ClientFactory
) -> None:
    stub.responses = [
        ScriptedResponse(200, {"events": [], "next": "c7"}),
        stream(""),
        stream(frames(8, cursor="c")),
        stream(frames(9, cursor="c")),
    ]
    feed = client_of(stub.url).events.stream(cursor="now")
    assert sequence(islice(feed, 2)) == [8, 9]
    feed.close()
    assert [request.headers.get("last-event-id") for request in stub.requests] == [None, "c7", "c7", "c8"]


def test_duplicates_are_dropped_and_a_gap_is_read_again(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [
        stream(frames(1, 2), truncated=True), stream(frames(2, 3)), stream(frames(5, 6)), stream(frames(4, 5)),
        stream(frames(6, kind="job.completed")), ScriptedResponse(204, ""),
    ]  # fmt: skip
    assert sequence(client_of(stub.url).jobs.events("j1")) == [1, 2, 3, 4, 5, 6]
    assert [request.headers["last-event-id"] for request in stub.requests] == ["0", "2", "3", "3", "5", "6"]


def test_a_job_that_is_deleted_while_it_is_streamed_is_streamed_to_its_end(
    live_server: LiveServer, client_of: ClientFactory
) -> None:
    client = client_of(live_server.url, live_server.keys["client"])
    job = client.jobs.submit("sketch", user="ann", input={})
    events = client.jobs.events(job.id)
    seen = [next(events).type]
    client.jobs.delete(job.id)
    seen += [event.type for event in events]
    assert (seen[0], "job.canceled" in seen) == ("job.created", True)


def test_after_the_deletion_of_a_job_nothing_more_is_requested(stub: StubServer, client_of: ClientFactory) -> None:
    end = frames(2, kind="job.canceled") + frames(3, kind="job.deleted")
    stub.responses = [stream(frames(1) + end), problem(404, "job_not_found")]
    for follow in (False, True):
        stub.requests.clear()
        assert sequence(client_of(stub.url).jobs.events("j1", follow=follow)) == [1, 2, 3]
        assert len(stub.requests) == 1
        stub.responses.insert(0, stream(frames(1) + end))


def test_a_missing_job_is_an_error_unless_its_end_was_streamed(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [stream(frames(1, kind="job.completed")), problem(404, "job_not_found")]
    assert sequence(client_of(stub.url).jobs.events("j1")) == [1]
    stub.responses = [stream(frames(1)), problem(404, "job_not_found")]
    with pytest.raises(CallsheetError) as refused:
        list(client_of(stub.url).jobs.events("j1"))
    assert refused.value.code == "job_not_found"


def test_a_feed_continues_after_the_deletion_of_a_job(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [stream(frames(1, kind="job.deleted", cursor="c")), stream(frames(2, cursor="c"))]
    feed = client_of(stub.url).events.stream()
    assert sequence(islice(feed, 2)) == [1, 2]
    feed.close()


@pytest.mark.parametrize(("kinds", "effect"), [
    (["task.progressed"], Sleep),
    (["job.completed"], Open),
    (["job.completed", "job.refunded"], Open),
    (["job.failed", "job.retried"], Sleep),
    (["job.failed", "job.retried", "job.completed", "job.changed"], Open),
])  # fmt: skip
def test_only_a_move_of_the_job_ends_its_stream(kinds: list[str], effect: type) -> None:
    """After an end the client reconnects at once; after a cut it waits first."""
    sent = "".join(frames(no, kind=kind) for no, kind in enumerate(kinds, 1)).encode()
    with Client("http://x") as client, closing(events_operation(client)) as operation:
        assert isinstance(next(operation), Open)
        assert isinstance(operation.send(Reply(200, {})), Read)
        effects = [operation.send(sent), *(next(operation) for _ in kinds[1:])]
        assert [one.value.type for one in effects if isinstance(one, Item)] == kinds
        assert isinstance(next(operation), Read)
        assert isinstance(operation.send(b""), effect)


def test_after_an_end_only_the_first_reconnect_is_without_a_delay() -> None:
    effects = []
    with Client("http://x") as client, closing(events_operation(client)) as operation:
        next(operation)
        operation.send(Reply(200, {}))
        operation.send(frames(1, kind="job.completed").encode())
        next(operation)
        effects.append(operation.send(b""))
        operation.send(Reply(200, {}))
        effects.append(operation.send(b""))
    assert [type(one) for one in effects] == [Open, Sleep]


def test_a_stream_that_is_always_cut_fails_after_bounded_attempts(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [stream(": alive\n\n")]
    with pytest.raises(APIConnectionError):
        list(client_of(stub.url).jobs.events("j1"))
    assert len(stub.requests) == 5


def test_a_rejected_stream_is_raised_and_one_over_the_limit_is_retried(
    stub: StubServer, client_of: ClientFactory
) -> None:
    full = problem(429, "too_many_streams")
    full = full._replace(headers={**full.headers, "retry-after": "0"})
    stub.responses = [full, stream(frames(1, kind="job.completed")), ScriptedResponse(204, "")]
    assert sequence(client_of(stub.url).jobs.events("j1")) == [1]
    stub.responses = [problem(404, "job_not_found")]
    with pytest.raises(Exception, match=r"Not now\.") as refused:
        next(client_of(stub.url).jobs.events("j1"))
    assert refused.value.code == "job_not_found"  # type: ignore[attr-defined]
