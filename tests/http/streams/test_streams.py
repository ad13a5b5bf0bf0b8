"""Event streams: every event once and in order, for clients that reconnect, disconnect or read slowly."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, islice
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from callsheet.core.model import commands, rows
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.settings import HttpSettings
from tests.support.engine.concurrency import ANSWER_SECONDS, run_concurrently
from tests.support.http.raw_http import RawConnection
from tests.support.http.sse import STREAM, Frame, open_stream, read_events
from tests.support.processes.live_server import TENANT, LiveServer
from tests.support.wait import wait_until

_FREE_WORKFLOW = WorkflowDefinition(name="free", price=0, stages=[StageSpec(name="draw", kind="draw")])
ENDS = {"job.completed", "job.failed", "job.canceled"}
_numbers = count()


# -- one job


def test_the_stream_of_a_job_sends_every_event_once_and_closes_with_the_job(fast_stream_server: LiveServer) -> None:
    job = fast_stream_server.submit()["id"]
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read_events, fast_stream_server, f"/v1/jobs/{job}/events")
        wait_until(lambda: fast_stream_server.callsheet.state.broadcaster.count)
        fast_stream_server.work()
        seen = reading.result(ANSWER_SECONDS)
    assert [frame.id for frame in seen] == [str(number) for number in range(1, len(seen) + 1)]
    assert [frame.event for frame in seen] == [event.type for event in fast_stream_server.engine.reads.events(job)]
    assert (seen[-1].event, seen[-1].data["seq"], seen[-1].data["job_id"]) == ("job.completed", len(seen), job)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_stream_resumes_after_the_last_event_id(fast_stream_server: LiveServer, after: int) -> None:
    job = fast_stream_server.submit()["id"]
    fast_stream_server.work()
    whole = read_events(fast_stream_server, f"/v1/jobs/{job}/events")
    assert read_events(fast_stream_server, f"/v1/jobs/{job}/events", str(after)) == whole[after:]
    assert read_events(fast_stream_server, f"/v1/jobs/{job}/events?cursor={after}") == whole[after:]


def test_a_client_that_has_every_event_of_an_ended_job_gets_204(fast_stream_server: LiveServer) -> None:
    job = fast_stream_server.submit()["id"]
    fast_stream_server.work()
    last = read_events(fast_stream_server, f"/v1/jobs/{job}/events")[-1].id
    headers = {"accept": STREAM, "last-event-id": last}
    answer = fast_stream_server.client("client").get(f"/v1/jobs/{job}/events", headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")


def test_a_stream_does_not_end_with_a_run_that_was_retried(fast_stream_server: LiveServer) -> None:
    job = fast_stream_server.submit()["id"]
    _fail(fast_stream_server)
    first = read_events(fast_stream_server, f"/v1/jobs/{job}/events")
    fast_stream_server.client("client").post(f"/v1/jobs/{job}/retry").raise_for_status()
    fast_stream_server.work()
    both = read_events(fast_stream_server, f"/v1/jobs/{job}/events")
    assert first[-1].event == "job.failed"
    assert both[: len(first)] == first
    assert (both[-1].event, len(both)) == ("job.completed", len(fast_stream_server.engine.reads.events(job)))


def test_a_stream_with_follow_stays_open_for_another_run(fast_stream_server: LiveServer) -> None:
    job = fast_stream_server.submit()["id"]
    _fail(fast_stream_server)
    with open_stream(fast_stream_server, f"/v1/jobs/{job}/events?follow=true") as frames:
        assert _read_until(frames, "job.failed")
        fast_stream_server.client("client").post(f"/v1/jobs/{job}/retry").raise_for_status()
        fast_stream_server.work()
        assert _read_until(frames, "job.completed")[-1].data["run"] == 2


@pytest.mark.parametrize("last", [None, "the end"], ids=["from the start", "after the end"])
def test_an_event_after_the_end_of_a_job_does_not_keep_a_stream_open(
    fast_stream_server: LiveServer, last: str | None
) -> None:
    job = fast_stream_server.submit()["id"]
    fast_stream_server.work()
    end = read_events(fast_stream_server, f"/v1/jobs/{job}/events")[-1].id
    fast_stream_server.client("operator").post(
        f"/v1/jobs/{job}/refund", json={"reason": "Too dark."}
    ).raise_for_status()
    with open_stream(fast_stream_server, f"/v1/jobs/{job}/events", last and end) as frames:
        seen = _read_to_end(frames)
    assert seen[-1] == "job.refunded"
    assert len(seen) == (1 if last else int(end) + 1)


@pytest.mark.parametrize("follow", ["", "?follow=true"])
def test_the_stream_of_a_deleted_job_ends(fast_stream_server: LiveServer, follow: str) -> None:
    job = fast_stream_server.submit()["id"]
    with open_stream(fast_stream_server, f"/v1/jobs/{job}/events{follow}") as frames:
        assert _read_until(frames, "job.created")
        fast_stream_server.client("client").delete(f"/v1/jobs/{job}").raise_for_status()
        assert _read_to_end(frames)[-2:] == ["job.canceled", "job.deleted"]


# -- under load


def test_clients_that_reconnect_under_load_get_every_event_once(fast_stream_server: LiveServer) -> None:
    with open_stream(fast_stream_server, "/v1/events?cursor=now") as frames:
        fast_stream_server.submit()
        start = next(frame.id for frame in frames if frame.id)
    fast_stream_server.work()
    jobs = [fast_stream_server.submit()["id"] for _ in range(30)]
    calls: list[Callable[[], Any]] = [partial(_work_all, fast_stream_server, worker) for worker in ("w1", "w2")]
    calls += [partial(_read_job, fast_stream_server, job, seed) for seed, job in enumerate(jobs[::3])]
    calls += [partial(_read_tenant, fast_stream_server, start, set(jobs), seed) for seed in range(4)]
    answers = run_concurrently(*calls)
    of_jobs, of_tenant = answers[2:12], answers[12:]
    for job, seen in zip(jobs[::3], of_jobs, strict=True):
        assert [frame.data["seq"] for frame in seen] == [
            event.seq for event in fast_stream_server.engine.reads.events(job)
        ]
    stored = sorted((job, event.seq) for job in jobs for event in fast_stream_server.engine.reads.events(job))
    for seen in of_tenant:
        mine = [(frame.data["job_id"], frame.data["seq"]) for frame in seen if frame.data["job_id"] in jobs]
        assert len(mine) == len(set(mine))
        assert sorted(mine) == stored
    assert all([frame.id for frame in seen] == [frame.id for frame in of_tenant[0]] for seen in of_tenant)
    wait_until(lambda: fast_stream_server.callsheet.state.broadcaster.count == 0)


@pytest.mark.parametrize("of_tenant", [False, True])
def test_a_client_that_connects_during_many_changes_gets_every_event_once(
    fast_stream_server: LiveServer, of_tenant: bool
) -> None:
    enough = Event()
    (job,) = _submit_job(fast_stream_server, 1)
    path = f"/v1/events?job={job}" if of_tenant else f"/v1/jobs/{job}/events"
    seen: list[Frame] = []
    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(_keep_changing, fast_stream_server, job, enough)
        try:
            for _ in range(60):
                with open_stream(fast_stream_server, path, seen[-1].id if seen else None) as frames:
                    seen += [next(frame for frame in frames if frame.id) for _ in range(5)]
        finally:
            enough.set()
        changing.result(ANSWER_SECONDS)
    assert [frame.data["seq"] for frame in seen] == list(range(1, len(seen) + 1))
    fast_stream_server.work()


def test_a_slow_client_has_a_bounded_buffer_and_gets_every_event(tmp_path: Path, database_url: str) -> None:
    settings = HttpSettings(stream_buffer_events_max=4)
    with LiveServer(database_url, tmp_path, settings, send_bytes=4_096) as live_server:
        broadcaster = live_server.callsheet.state.broadcaster
        with RawConnection(live_server.url, receive_bytes=4_096) as reader:
            reader.send_request(
                "GET", "/v1/events?cursor=now", live_server.keys["client"], accept=STREAM, connection="close"
            )
            reader.read_until(b"retry: 1000\n\n")
            jobs = [_submit_job(live_server, 20) for _ in range(20)]
            (channel,) = broadcaster._channels.values()  # noqa: SLF001 - the test checks the size of the buffer
            (subscription,) = channel.subscriptions
            assert sum(len(batch.events) for batch in channel.batches_from(0)) <= 4
            for batch in jobs:
                live_server.engine.execute_many([commands.Cancel(tenant=TENANT, job_id=job) for job in batch])
            wait_until(lambda: subscription.behind)
            assert sum(len(batch.events) for batch in channel.batches_from(0)) <= 4
            mine = {job for batch in jobs for job in batch}
            expected = [event for event in _feed(live_server) if event.subject in mine]
            seen = [reader.read_until(b"\n\n") for _ in expected]
    ids = [(line.split(b'"job_id":"')[1][:36].decode(), int(line.split(b'"seq":')[1].split(b",")[0])) for line in seen]
    assert ids == [(event.subject, event.seq) for event in expected]


def test_many_idle_streams_all_get_the_next_event(fast_stream_server: LiveServer) -> None:
    broadcaster = fast_stream_server.callsheet.state.broadcaster
    readers = [RawConnection(fast_stream_server.url) for _ in range(300)]
    try:
        for reader in readers:
            reader.send_request(
                "GET", "/v1/events?cursor=now&type=job.created", fast_stream_server.keys["client"], accept=STREAM
            )
        for reader in readers:
            reader.read_until(b"retry: 1000\n\n")
        assert broadcaster.count == 300
        job = fast_stream_server.submit()["id"].encode()
        assert all(job in reader.read_until(job) for reader in readers)
    finally:
        for reader in readers:
            reader.__exit__(None, None, None)
    wait_until(lambda: broadcaster.count == 0)
    fast_stream_server.work()


# -- heartbeats, filters and access


def test_an_idle_stream_sends_heartbeats(fast_stream_server: LiveServer) -> None:
    job = fast_stream_server.submit()["id"]
    for path in (f"/v1/jobs/{job}/events", "/v1/events?cursor=now"):
        with open_stream(fast_stream_server, path) as frames:
            assert [next(frame for frame in frames if not frame.id).comment for _ in range(3)] == ["alive"] * 3
    fast_stream_server.work()


def test_a_stream_sends_heartbeats_while_its_filter_excludes_all_events(fast_stream_server: LiveServer) -> None:
    enough = Event()
    (job,) = _submit_job(fast_stream_server, 1)
    with open_stream(fast_stream_server, "/v1/events?cursor=now&job=none") as frames, ThreadPoolExecutor(1) as threads:
        changing = threads.submit(_keep_changing, fast_stream_server, job, enough)
        try:
            assert [next(frames) for _ in range(3)] == [Frame("", "", None, "alive")] * 3
        finally:
            enough.set()
        changing.result(ANSWER_SECONDS)
    fast_stream_server.work()


def test_a_filter_selects_events_by_type(fast_stream_server: LiveServer) -> None:
    with open_stream(fast_stream_server, "/v1/events?cursor=now&type=job.created,task.,") as frames:
        job = fast_stream_server.submit()["id"]
        fast_stream_server.work()
        seen = _read_until(frames, "task.completed")
    assert {frame.data["job_id"] for frame in seen} == {job}
    assert [frame.event for frame in seen] == ["job.created", "task.leased", "task.completed"]


def test_a_stream_has_no_events_of_another_tenant(fast_stream_server: LiveServer) -> None:
    with open_stream(fast_stream_server, "/v1/events?cursor=now", role="other client") as frames:
        fast_stream_server.submit()
        fast_stream_server.work()
        mine = fast_stream_server.submit(role="other client")["id"]
        assert next(frame for frame in frames if frame.id).data["job_id"] == mine
    fast_stream_server.work()


def test_a_forged_cursor_or_one_of_another_tenant_is_refused(fast_stream_server: LiveServer) -> None:
    cursor = fast_stream_server.client("other client").get("/v1/events").json()["next"]
    for last in (cursor, "garbage", "1"):
        headers = {"accept": STREAM, "last-event-id": last}
        answer = fast_stream_server.client("client").get("/v1/events", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")
    assert fast_stream_server.callsheet.state.broadcaster.count == 0


def test_too_many_streams_answer_429_until_some_close(tmp_path: Path, database_url: str) -> None:
    with LiveServer(database_url, tmp_path, HttpSettings(streams_max=3, streams_per_key_max=2)) as live_server:
        broadcaster, client = live_server.callsheet.state.broadcaster, live_server.client("client")
        with open_stream(live_server, "/v1/events?cursor=now"):
            with open_stream(live_server, "/v1/events?cursor=now"):
                refused = client.get("/v1/events", headers={"accept": STREAM})
                assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
                assert int(refused.headers["retry-after"]) > 0
                job = live_server.submit()["id"]
                assert client.get(f"/v1/jobs/{job}?wait_seconds=9").status_code == 429
                with open_stream(live_server, "/v1/events?cursor=now", role="viewer"):
                    beyond = live_server.client("admin").get("/v1/events", headers={"accept": STREAM})
                    assert (beyond.status_code, beyond.json()["code"]) == (429, "too_many_streams")
            wait_until(lambda: broadcaster.count == 1)
            with open_stream(live_server, "/v1/events?cursor=now"):
                assert broadcaster.count == 2
        wait_until(lambda: broadcaster.count == 0)
        assert broadcaster._by_owner == {}  # noqa: SLF001 - the test checks that nothing is left


# -- disconnects


def test_disconnected_clients_are_unsubscribed(fast_stream_server: LiveServer) -> None:
    broadcaster, job = fast_stream_server.callsheet.state.broadcaster, fast_stream_server.submit()["id"]
    paths = (f"/v1/jobs/{job}?wait_seconds=60", f"/v1/jobs/{job}/events", "/v1/events?cursor=now")
    readers = [(RawConnection(fast_stream_server.url), path) for path in paths for _ in range(5)]
    for reader, path in readers:
        accept = "application/json" if "wait" in path else STREAM
        reader.send_request("GET", path, fast_stream_server.keys["client"], accept=accept)
    wait_until(lambda: broadcaster.count == 15)
    for reader, _ in readers:
        reader.__exit__(None, None, None)
    wait_until(lambda: broadcaster.count == 0)
    assert (broadcaster._channels, broadcaster._by_owner) == ({}, {})  # noqa: SLF001 - the test checks that nothing is left
    fast_stream_server.work()


# -- helpers


def _keep_changing(live_server: LiveServer, job: str, enough: Event) -> None:
    """Change a job repeatedly."""
    while not enough.is_set():
        live_server.engine.execute(commands.Pause(tenant=TENANT, job_id=job))
        live_server.engine.execute(commands.Resume(tenant=TENANT, job_id=job))


def _work_all(live_server: LiveServer, worker: str) -> None:
    """Complete all waiting tasks, with some progress reports."""
    while leased := live_server.engine.execute(commands.Claim(worker_id=worker, kinds=("draw",))):
        for progress in (20, 60):
            live_server.engine.execute(commands.Heartbeat(lease=leased[0].lease, progress=progress))
        live_server.engine.execute(commands.Complete(lease=leased[0].lease, output=None))


def _read_job(live_server: LiveServer, job: str, seed: int) -> list[Frame]:
    """Read the stream of a job to its end and reconnect now and then."""
    return _read(live_server, f"/v1/jobs/{job}/events", None, seed, lambda seen: seen[-1].event in ENDS)


def _read_tenant(live_server: LiveServer, start: str, jobs: set[str], seed: int) -> list[Frame]:
    """Read the stream of the tenant until all jobs have ended, and reconnect now and then."""

    def over(seen: list[Frame]) -> bool:
        return jobs <= {frame.data["job_id"] for frame in seen if frame.event in ENDS}

    return _read(live_server, "/v1/events", start, seed, over)


def _read(live_server: LiveServer, path: str, last: str | None, seed: int, over: Any) -> list[Frame]:
    chance = random.Random(seed)
    seen: list[Frame] = []
    while not seen or not over(seen):
        frames_left = chance.randrange(1, 12)
        with open_stream(live_server, path, last) as frames:
            for frame in frames:
                if frame.id:
                    seen.append(frame)
                    last = frame.id
                frames_left -= 1
                if not frames_left or (seen and over(seen)):
                    break
    return seen


def _submit_job(live_server: LiveServer, number: int) -> list[str]:
    many = [commands.Submit(tenant=TENANT, user=f"free-{next(_numbers)}", workflow="free") for _ in range(number)]
    live_server.engine.execute(commands.PutWorkflow(definition=_FREE_WORKFLOW))
    return [done.job_id for done in live_server.engine.execute_many(many)]


def _feed(live_server: LiveServer) -> list[rows.Event]:
    found: list[rows.Event] = []
    place = (0, 0)
    while page := live_server.engine.reads.feed(*place):
        found.extend(placed.event for placed in page)
        place = page[-1].position
    return found


def _read_to_end(frames: Iterator[Frame]) -> list[str]:
    """Return the types of all events up to the end of a stream, and fail if it sends only heartbeats."""
    read = list(islice(frames, 200))
    assert len(read) < 200, "the stream does not end"
    return [frame.event for frame in read if frame.event]


def _read_until(frames: Iterator[Frame], event: str) -> list[Frame]:
    seen = []
    for frame in frames:
        if frame.id:
            seen.append(frame)
        if frame.event == event:
            return seen
    raise AssertionError(f"the stream ended without {event}")


def _fail(live_server: LiveServer) -> None:
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
    live_server.engine.execute(commands.Fail(lease=leased.lease, code="broken", message="No ink.", retryable=False))
