"""Jobs, by both clients, on both databases."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from callsheet.client import CallsheetError, CorruptFileError, DeleteSummary, NewJob, RetryPolicy
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from tests.client.both_clients import ClientFactory
from tests.client.output_files import complete_with_files
from tests.client.stub_server import JOB, ScriptedResponse, StubServer
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

POLLING_CLIENTS = 20
FILM = WorkflowDefinition(
    name="film",
    stages=[StageSpec(name="board", kind="board", tasks=2), StageSpec(name="render", kind="render", approval=True)],
    inline=True,
)


def sketch(client: Any, **more: Any) -> Any:
    return client.jobs.submit("sketch", user="ann", input={"prompt": "a lighthouse"}, **more)


def test_a_job_is_submitted_and_awaited_and_its_file_is_downloaded(
    live_server: LiveServer, client: Any, tmp_path: Path
) -> None:
    job = sketch(client, labels={"shoot": "7"}, metadata={"shot": 1})
    assert (job.status, job.price, job.ended) == ("queued", 3, False)
    assert (job.labels, job.metadata) == ({"shoot": "7"}, {"shot": 1})
    complete_with_files(live_server, ("sketch.png", b"picture"), output={"seed": 7})
    job = client.jobs.wait(job.id, timeout=10)
    assert (job.status, job.ended, job.completed) == ("completed", True, True)
    (output,) = client.jobs.outputs(job.id)
    (file,) = output.files
    assert (output.output, output.stage, file.name, file.bytes) == ({"seed": 7}, "draw", "sketch.png", 7)
    assert client.files.read(file) == client.files.read(file.id) == b"picture"
    assert client.files.download(file, tmp_path) == tmp_path / "sketch.png"
    assert client.files.download(file, tmp_path / "mine.png").read_bytes() == b"picture"
    assert {path.name for path in tmp_path.iterdir()} == {"sketch.png", "mine.png"}


def test_outputs_are_read_page_by_page(live_server: LiveServer, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callsheet.client.requests_and_pages.PAGE_SIZE_MAX", 2)
    many = WorkflowDefinition(name="many", stages=[StageSpec(name="draw", kind="many", tasks=5)])
    live_server.engine.execute(commands.PutWorkflow(definition=many))
    job = client.jobs.submit("many", user="ann")
    for no in range(5):
        live_server.work("many", no)
    assert [(output.task_no, output.output) for output in client.jobs.outputs(job.id)] == [(n + 1, n) for n in range(5)]


def test_a_file_whose_bytes_differ_from_its_record_is_rejected_and_not_saved(
    live_server: LiveServer, client: Any, tmp_path: Path
) -> None:
    job = sketch(client)
    complete_with_files(live_server, ("sketch.png", b"picture"), digest="0" * 64)
    (file,) = next(client.jobs.outputs(client.jobs.wait(job.id).id)).files
    for wrong in (file, replace(file, bytes=6, sha256=hashlib.sha256(b"picture").hexdigest())):
        with pytest.raises(CorruptFileError, match="is corrupt"):
            client.files.download(wrong, tmp_path)
    with pytest.raises(CorruptFileError):
        client.files.read(file.id)
    assert list(tmp_path.iterdir()) == []


def test_a_wait_ends_with_a_timeout_that_names_the_status(client: Any) -> None:
    job = sketch(client)
    with pytest.raises(TimeoutError, match="is still queued after 0"):
        client.jobs.wait(job.id, timeout=0.05)
    assert client.jobs.cancel(job.id, reason="enough").status == "canceled"
    assert client.jobs.wait(job.id).error.message == "enough"


def test_lists_are_read_page_by_page_and_filtered(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callsheet.client.requests_and_pages.PAGE_SIZE_MAX", 2)
    label = {"list": f"of {type(client).__name__} {id(client)}".replace(" ", "-")}
    submitted = [sketch(client, labels=label).id for _ in range(5)]
    found = client.jobs.list(label=f"list={label['list']}", status="queued", user="ann", workflow="sketch")
    assert [job.id for job in found] == submitted[::-1]
    since = client.jobs.get(submitted[0]).created_at
    assert {job.id for job in client.jobs.list(since=since, label=f"list={label['list']}")} == set(submitted)
    assert list(client.jobs.list(until="2020-01-01T00:00:00Z")) == []
    for job_id in submitted:
        client.jobs.cancel(job_id)


@pytest.mark.parametrize(
    ("limit", "page_sizes"), [(0, []), (1, [1]), (2, [2]), (3, [2, 1]), (9, [2, 2, 2]), (None, [2, 2, 2])]
)
def test_a_list_requests_no_more_items_than_its_limit(
    stub: StubServer,
    client_of: ClientFactory,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    page_sizes: list[int],
) -> None:
    monkeypatch.setattr("callsheet.client.requests_and_pages.PAGE_SIZE_MAX", 2)
    full = ScriptedResponse(200, {"jobs": [JOB, JOB], "next": "c"})
    stub.responses = [full, full, ScriptedResponse(200, {"jobs": [JOB], "next": None})]
    found = list(client_of(stub.url).jobs.list(limit=limit))
    assert len(found) == (5 if limit is None else min(limit, 5))
    assert [int(parse_qs(urlsplit(one.path).query)["limit"][0]) for one in stub.requests] == page_sizes


def test_each_job_of_a_bulk_submit_has_its_own_outcome(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callsheet.client.batched_submit._JOBS_MAX", 2)
    key = f"bulk-{type(client).__name__}"
    new = NewJob(workflow="sketch", user="ann", input={}, idempotency_key=key)
    outcomes = client.jobs.submit_many([
        new, NewJob(workflow="nothing", user="ann"), new, NewJob(workflow="sketch", user="ann", input={}),
    ])  # fmt: skip
    assert [(one.status, one.replay) for one in outcomes] == [(201, False), (404, False), (200, True), (201, False)]
    assert outcomes[1].problem["code"] == "workflow_not_found"
    assert outcomes[0].job_id == outcomes[2].job_id != outcomes[3].job_id
    for index in (0, 3):
        client.jobs.cancel(outcomes[index].job_id)


def test_a_job_is_paused_resumed_updated_canceled_and_deleted(client: Any) -> None:
    job = sketch(client)
    assert client.jobs.pause(job.id).status == "paused"
    assert client.jobs.explain(job.id).constraints[0].code == "paused"
    assert client.jobs.resume(job.id).status == "queued"
    changed = client.jobs.update(job.id, priority=80, labels={"a": "b"})
    assert (changed.priority, changed.labels, changed.metadata) == (80, {"a": "b"}, None)
    assert client.jobs.cancel(job.id, grace_seconds=0).status == "canceled"
    assert client.jobs.delete(job.id) == DeleteSummary(0, 0, pending=False)
    with pytest.raises(CallsheetError) as refused:
        client.jobs.get(job.id)
    error = refused.value
    assert (error.status, error.code, bool(error.request_id)) == (404, "job_not_found", True)


def test_a_failed_job_is_retried_and_both_runs_are_kept(live_server: LiveServer, client: Any) -> None:
    job = sketch(client)
    (leased,) = live_server.engine.execute(commands.Claim(worker_id="w9", kinds=("draw",)))
    live_server.engine.execute(commands.Fail(lease=leased.lease, code="no_ink", message="No ink.", retryable=False))
    failed = client.jobs.wait(job.id)
    assert (failed.status, failed.error.code, failed.completed) == ("failed", "no_ink", False)
    assert client.jobs.retry(job.id, "new_job").retry_of == job.id
    assert [client.jobs.retry(job.id, idempotency_key="once").run for _ in range(2)] == [2, 2]
    assert [run.status for run in client.jobs.runs(job.id)] == ["failed", "open"]
    (task,) = client.jobs.tasks(job.id)
    (attempt,) = client.jobs.attempts(job.id, task.id)
    assert (attempt.worker, attempt.outcome, attempt.error.code) == ("w9", "failed", "no_ink")
    live_server.work()
    live_server.work()
    assert [run.status for run in client.jobs.runs(job.id)] == ["failed", "completed"]


def test_stages_are_approved_and_extended(live_server: LiveServer, client: Any) -> None:
    live_server.engine.execute(commands.PutWorkflow(definition=FILM))
    job = client.jobs.submit("film", user="ann")
    assert [(stage.name, stage.approval, stage.tasks_total) for stage in client.jobs.stages(job.id)] == [
        ("board", False, 2), ("render", True, 1),
    ]  # fmt: skip
    assert client.jobs.add_tasks(job.id, "board", [{"shot": 3}]).first_task_no == 3
    assert client.jobs.add_stage(job.id, {"name": "mix", "kind": "mix"}).stage_no == 3
    for _ in range(3):
        live_server.work("board")
    assert client.jobs.stages(job.id)[1].status == "waiting"
    assert [(one.id, one.phase) for one in client.jobs.list(phase="approval", workflow="film")] == [
        (job.id, "approval")
    ]
    approved = client.jobs.approve(job.id, "render", approver="eve")
    assert (approved.name, approved.status, approved.approved_by) == ("render", "pending", "eve")
    assert client.jobs.approve(job.id, 2, approver="eve").approved_by == "eve"
    client.jobs.cancel(job.id, grace_seconds=0)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_empty_or_relative_name_is_rejected_before_any_request(client: Any, name: str) -> None:
    jobs = client.jobs
    for call in (jobs.get, jobs.delete, jobs.wait, client.files.get, client.wallets.get, client.workflows.get):
        with pytest.raises(CallsheetError, match="is not a valid id or name") as refused:
            call(name)
        assert refused.value.code == "invalid_name"


def test_a_quote_fixes_the_price_of_a_submit(client: Any) -> None:
    quote = client.quotes.create("sketch", user="ann", input={"prompt": "dunes"})
    assert (quote.price, quote.affordable, quote.balance > 3) == (3, True, True)
    job = client.jobs.submit("sketch", user="ann", input={"prompt": "dunes"}, quote=quote.quote)
    assert job.price == 3
    client.jobs.cancel(job.id)
    with pytest.raises(CallsheetError) as refused:
        client.jobs.submit("sketch", user="ann", input={"prompt": "other"}, quote=quote.quote)
    assert refused.value.code == "invalid_quote"


def test_the_input_of_a_job_can_be_read(client: Any) -> None:
    job = client.jobs.submit("sketch", user="ann", input={"prompt": "a lighthouse", "words": [1, None]})
    assert client.jobs.get_input(job.id) == {"prompt": "a lighthouse", "words": [1, None]}
    client.jobs.cancel(job.id)


def test_a_completed_job_is_refunded_once(live_server: LiveServer, client_of: ClientFactory) -> None:
    admin = client_of(live_server.url, live_server.keys["admin"])
    user = f"refunded {type(admin).__name__}"
    admin.wallets.top_up(user, 20)
    job = admin.jobs.submit("sketch", user=user, input={"prompt": "x"}, priority=99)
    live_server.work()
    refund = admin.jobs.refund(job.id, reason="Too dark.")
    assert (refund.user, refund.balance, refund.replay) == (user, 20, False)
    assert admin.jobs.refund(job.id, reason="Too dark.", run=1).replay is True
    with pytest.raises(CallsheetError) as refused:
        admin.jobs.refund(job.id, reason="Too dark.", run=2)
    assert (refused.value.code, refused.value.status) == ("run_not_found", 404)


def test_many_clients_poll_their_jobs_at_the_same_time(live_server: LiveServer, client_of: ClientFactory) -> None:
    # R132
    never_retry = RetryPolicy(retries_max=0)
    clients = [client_of(live_server.url, live_server.keys["client"], never_retry) for _ in range(POLLING_CLIENTS)]
    jobs = [sketch(client).id for client in clients]

    def poll_until_completed(client: Any, job_id: str) -> None:
        wait_until(lambda: client.jobs.get(job_id).completed, within_seconds=60)

    with ThreadPoolExecutor(POLLING_CLIENTS) as pool:
        polls = [pool.submit(poll_until_completed, *pair) for pair in zip(clients, jobs, strict=True)]
        for _ in jobs:
            live_server.work()
        assert [poll.result() for poll in polls] == [None] * POLLING_CLIENTS
