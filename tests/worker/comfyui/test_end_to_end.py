"""End to end: a job with a ComfyUI graph, a worker, a ComfyUI server and the output files."""

import json
import threading
import uuid
from pathlib import Path

from callsheet.core.model.comfyui_graph import ComfySpec, Target
from callsheet.core.model.workflow_definition import StageSpec
from callsheet.worker.comfyui import CloudV1, SelfHosted, comfyui_worker
from tests.support.comfyui import sample_files
from tests.support.comfyui.cloud_v1 import KEY, CloudV1Server
from tests.support.comfyui.server import ComfyServer
from tests.support.wait import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.worker_harness import WorkerHarness


def _stage(graph: graphs.Graph) -> StageSpec:
    return StageSpec(
        name="draw", kind="comfyui", comfyui=ComfySpec(graph=graph, inputs={"width": Target(node="2", field="width")})
    )


def test_a_job_with_a_graph_stores_its_output_files(harness: WorkerHarness, tmp_path: Path, temporary: Path) -> None:
    # R157
    with ComfyServer(tmp_path / "comfy") as comfy:
        adapter = SelfHosted(comfy.url)
        harness.start(comfyui_worker(adapter, timeouts=QUICK))
        job_id = harness.submit(_stage(graphs.basic(255)), input={"width": 20})
        job = harness.wait_for_end(job_id)
        assert (job.status, job.error_message) == ("completed", None)
        [file] = harness.files(job_id)
        assert harness.bytes_of(file) == sample_files.png(20, 24, 0xFFFFFF ^ 255)
        assert json.loads(harness.outputs(job_id)[0])["outputs"][0]["media_type"] == file.media_type == "image/png"
        assert list(temporary.iterdir()) == []
        adapter.close()


def test_a_cancel_of_the_job_reaches_the_server(harness: WorkerHarness, tmp_path: Path) -> None:
    with ComfyServer(tmp_path / "comfy") as comfy:
        adapter = SelfHosted(comfy.url)
        harness.start(comfyui_worker(adapter, timeouts=QUICK))
        graph = graphs.slow(seconds=30, steps=300)
        job_id = harness.submit(StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graph)), lease_seconds=3)
        wait_until(lambda: "2" in comfy.reached)
        harness.cancel(job_id)
        assert harness.wait_for_end(job_id).status == "canceled"
        assert comfy.queue == {"running": [], "pending": []}
        adapter.close()


def test_a_stopped_worker_cancels_its_self_hosted_prompt_and_another_worker_runs_it(
    harness: WorkerHarness, tmp_path: Path
) -> None:
    with ComfyServer(tmp_path / "comfy") as comfy:
        adapter = SelfHosted(comfy.url)
        worker = comfyui_worker(adapter, timeouts=QUICK)
        first = harness.start(worker, harness.link("w1"))
        hold = comfy.hold("2")
        job_id = harness.submit(
            StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.slow(seconds=0.05)))
        )
        wait_until(lambda: "2" in comfy.reached)
        stopping = threading.Thread(target=first.stop)
        stopping.start()
        wait_until(lambda: any(request.path.endswith("/cancel") for request in comfy.requests))
        hold.set()
        stopping.join()
        wait_until(lambda: comfy.queue == {"running": [], "pending": []})
        harness.start(worker, harness.link("w2"))
        assert harness.wait_for_end(job_id).status == "completed"
        assert len(comfy.runs) == 2
        assert harness.outcomes(job_id) == ["requeued", "completed"]
        assert len(harness.files(job_id)) == 1
        adapter.close()


def _recorded_ref(harness: WorkerHarness, job_id: str) -> str | None:
    """Return the submission that is recorded for a job."""
    attempts = harness.engine.reads.attempts(harness.task(job_id).id)
    return attempts[-1].ref if attempts else None


def test_a_stopped_worker_leaves_its_cloud_prompt_to_the_next_one(harness: WorkerHarness, tmp_path: Path) -> None:
    # R157
    with CloudV1Server(tmp_path / "cloud") as cloud:
        adapter = CloudV1(KEY, cloud.url)
        worker = comfyui_worker(adapter, timeouts=QUICK)
        hold = cloud.hold("2")
        adapter.submit(str(uuid.uuid4()), graphs.slow(seconds=0.05))
        wait_until(lambda: "2" in cloud.reached)
        first = harness.start(worker, harness.link("w1"))
        job_id = harness.submit(StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.basic())))
        wait_until(lambda: _recorded_ref(harness, job_id) in cloud.queue["pending"])
        first.stop()
        hold.set()
        harness.start(worker, harness.link("w2"))
        assert harness.wait_for_end(job_id).status == "completed"
        assert harness.outcomes(job_id) == ["requeued", "completed"]
        assert (len(cloud.requests_to("/api/prompt")), len(harness.files(job_id))) == (2, 1)
        adapter.close()
