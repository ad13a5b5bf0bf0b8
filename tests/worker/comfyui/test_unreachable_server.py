"""An unreachable ComfyUI server: before a claim, while a task waits, and while outputs are collected."""

from pathlib import Path
from typing import Any

import pytest

from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.commands import PreviousSubmission
from callsheet.core.model.workflow_definition import StageSpec
from callsheet.worker import RetryableError, UnreachableError
from callsheet.worker.comfyui import (
    CloudV1,
    CloudV2,
    ComfyAccessDeniedError,
    ComfyBackend,
    ComfyHandler,
    ComfyUnreachableError,
    Output,
    SelfHosted,
    comfyui_worker,
)
from callsheet.worker.runtime.worker_events import WorkerEvent, WorkerReady, WorkerWaiting
from tests.support.comfyui import cloud_v1 as v1
from tests.support.comfyui import cloud_v2 as v2
from tests.support.comfyui.asgi_server import as_json
from tests.support.comfyui.cloud_v1 import CloudV1Server
from tests.support.comfyui.cloud_v2 import CloudV2Server
from tests.support.comfyui.server import ComfyServer as Server
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording_context import HandlerThread, RecordingContext, task
from tests.worker.comfyui.test_cloud_v1 import SHORT_TIMEOUTS
from tests.worker.worker_harness import WorkerHarness

BUSY = as_json({}, 503)
STAGE = StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.basic()))


# -- collecting outputs


def test_a_download_with_a_server_error_is_retried(
    cloud_v1: CloudV1Server, adapter_v1: CloudV1, tmp_path: Path
) -> None:
    (cloud_v1.disk.root / "output" / "a.png").write_bytes(b"made")
    cloud_v1.answers["/view"] = [as_json({}, 500), as_json({}, 429)]
    adapter_v1.fetch(Output("9", "a.png"), tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == b"made"
    cloud_v1.answers["/view"] = [BUSY] * 3
    with pytest.raises(ComfyUnreachableError):
        adapter_v1.fetch(Output("9", "a.png"), tmp_path / "here")


def test_an_unreachable_output_is_collected_by_the_next_attempt_and_billed_once(
    harness: WorkerHarness, cloud_v1: CloudV1Server
) -> None:
    """Two attempts fail to download the output; each attempt knows the prompt id."""
    adapter = CloudV1(v1.KEY, cloud_v1.url)
    cloud_v1.answers["/view"] = [BUSY] * 6
    harness.start(comfyui_worker(adapter, timeouts=SHORT_TIMEOUTS))
    job_id = harness.submit(STAGE)
    assert harness.wait_for_end(job_id).status == "completed"
    assert harness.outcomes(job_id) == ["failed", "failed", "completed"]
    assert len(cloud_v1.runs) == 1
    assert len(harness.files(job_id)) == 1
    adapter.close()


@pytest.mark.parametrize("which", ["files", "status", "uploads"])
def test_an_attempt_that_cannot_collect_is_resumed_by_the_next_one(
    cloud_v1: CloudV1Server, adapter_v1: CloudV1, which: str
) -> None:
    class FailingUploadContext(RecordingContext):
        """A context whose uploads fail."""

        def upload(self, name: str, body: bytes | Path, media_type: str = "") -> None:
            raise UnreachableError(f"{name} ({media_type}) cannot be uploaded: {body!r}")

    ctx = (FailingUploadContext if which == "uploads" else RecordingContext)(task(graphs.basic()).comfyui)
    if which == "files":
        cloud_v1.answers["/view"] = [BUSY] * 3
    elif which == "status":
        cloud_v1.answers["/api/jobs"] = [BUSY] * 1_000
        ctx.resumed = PreviousSubmission("comfy-cloud", "mark:of-an-earlier-attempt")
    with pytest.raises(RetryableError) as raised:
        ComfyHandler(adapter_v1, SHORT_TIMEOUTS)(ctx)
    assert raised.value.resume
    codes = {"files": "output_unreachable", "status": "comfyui_unreachable", "uploads": "unreachable"}
    assert raised.value.code == codes[which]


@pytest.mark.parametrize("which", ["failed", "deleted", "never sent"])
def test_a_failed_or_deleted_prompt_is_not_resumed(comfy: Server, adapter: SelfHosted, which: str) -> None:
    ctx = task(graphs.failing("Allocation on device failed", kind="oom") if which == "failed" else graphs.basic())
    ctx.resumed = PreviousSubmission("comfyui", "of-an-earlier-attempt")
    if which == "deleted":
        comfy.answers["/view"] = [as_json(None, 404)] * 10
    elif which == "never sent":
        ctx.resumed = None
        comfy.down()
    with pytest.raises(RetryableError) as raised:
        ComfyHandler(adapter, SHORT_TIMEOUTS)(ctx)
    assert not raised.value.resume


def test_the_cloud_id_of_an_earlier_prompt_is_recorded(cloud_v1: CloudV1Server, adapter_v1: CloudV1) -> None:
    ref = adapter_v1.submit("a-mark", graphs.basic())
    ctx = task(graphs.basic(), resumed=PreviousSubmission("comfy-cloud", "mark:a-mark"))
    assert ComfyHandler(adapter_v1, QUICK)(ctx)["outputs"]
    assert (ctx.refs, cloud_v1.runs) == ([("comfy-cloud", ref)], [ref])


# -- while a task waits


def test_an_outage_is_reported_once(comfy: Server, adapter: SelfHosted) -> None:
    events: list[WorkerEvent] = []
    hold = comfy.hold("2")
    ctx = task(graphs.slow(seconds=0.05))
    comfy.answers["/prompt"] = [BUSY] * 2
    running = HandlerThread(ComfyHandler(adapter, QUICK, on_event=events.append), ctx)
    wait_until(lambda: "2" in comfy.reached)
    assert ctx.messages[0] == "waiting for ComfyUI"
    comfy.answers["/queue"] = [BUSY] * 5
    wait_until(lambda: ctx.messages.count("waiting for ComfyUI") == 2)
    wait_until(lambda: ctx.messages[-1] != "waiting for ComfyUI")
    hold.set()
    assert running.result()["outputs"]
    assert [type(event) for event in events] == [WorkerWaiting, WorkerWaiting]
    assert "waiting for ComfyUI: ComfyUI answered with a server error" in str(events[0])


# -- before a claim


def test_no_task_is_claimed_before_comfyui_responds(harness: WorkerHarness, tmp_path: Path) -> None:
    server = Server(tmp_path / "comfy")
    adapter = SelfHosted(server.url)
    link = harness.link()
    worker_run = harness.start(comfyui_worker(adapter, timeouts=QUICK), link)
    job_id = harness.submit(STAGE)
    wait_until(lambda: harness.faults)
    reason = f"ComfyUI does not respond (ConnectError). Check that {server.url} is a ComfyUI server."
    assert harness.faults == [f"Not ready to claim tasks: {reason}"]
    assert (link.claim_counts, harness.job(job_id).status) == ([], "queued")
    with server:
        assert harness.wait_for_end(job_id).status == "completed"
        assert [type(event) for event in harness.events if isinstance(event, WorkerReady)] == [WorkerReady]
        worker_run.stop()
    assert len(harness.faults) == 1
    adapter.close()


def test_a_worker_that_waits_for_comfyui_can_be_drained(http_harness: WorkerHarness, tmp_path: Path) -> None:
    adapter = SelfHosted(Server(tmp_path / "comfy").url)
    worker_run = http_harness.start(comfyui_worker(adapter, timeouts=QUICK))
    wait_until(lambda: http_harness.faults)
    http_harness.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
    assert worker_run.wait(20)
    assert (worker_run.failure, http_harness.worker().status) == (None, "offline")
    adapter.close()


def test_each_adapter_checks_whether_its_server_responds(
    comfy: Server,
    adapter: SelfHosted,
    cloud_v1: CloudV1Server,
    adapter_v1: CloudV1,
    cloud_v2: CloudV2Server,
    adapter_v2: CloudV2,
) -> None:
    seen: list[ComfyBackend] = [adapter, adapter_v1, adapter_v2]
    for one in seen:
        one.check_ready()
    unusable: Any = [
        SelfHosted(f"{comfy.url}/nowhere"), SelfHosted(cloud_v2.url), CloudV1(v1.KEY, f"{comfy.url}/nowhere"),
        CloudV2(v2.KEY, comfy.url), CloudV1("wrong", cloud_v1.url), CloudV2("wrong", cloud_v2.url),
    ]  # fmt: skip
    for one in unusable:
        with pytest.raises((ComfyUnreachableError, ComfyAccessDeniedError)):
            one.check_ready()
        one.close()
    comfy.answers["/queue"] = [as_json({"status": "ok"})]
    with pytest.raises(ComfyUnreachableError, match="no ComfyUI server"):
        adapter.check_ready()
