"""The whole way: a job with a ComfyUI graph, a worker of the SDK, a ComfyUI server, and the files in the house."""

import json
import threading
import uuid
from pathlib import Path

from callsheet.core.comfy import ComfySpec, Target
from callsheet.core.recipe import StageSpec
from callsheet.worker.comfyui import CloudV1, SelfHosted, comfyui_worker
from tests.support.comfy import samples
from tests.support.comfy.cloud import KEY, Cloud
from tests.support.comfy.server import Comfy
from tests.support.waiting import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.floor import Floor


def _stage(graph: graphs.Graph) -> StageSpec:
    return StageSpec(
        name="draw", kind="comfyui", comfyui=ComfySpec(graph=graph, inputs={"width": Target(node="2", field="width")})
    )


def test_a_job_with_a_graph_becomes_files_of_the_house(floor: Floor, tmp_path: Path, temporary: Path) -> None:
    with Comfy(tmp_path / "comfy") as comfy:
        adapter = SelfHosted(comfy.url)
        floor.start(comfyui_worker(adapter, pace=QUICK))
        job_id = floor.submit(_stage(graphs.basic(255)), input={"width": 20})
        job = floor.ended(job_id)
        assert (job.status, job.error_message) == ("completed", None)
        [file] = floor.files(job_id)
        assert floor.bytes_of(file) == samples.png(20, 24, 0xFFFFFF ^ 255)
        assert json.loads(floor.outputs(job_id)[0])["outputs"][0]["media_type"] == file.media_type == "image/png"
        assert list(temporary.iterdir()) == []
        adapter.close()


def test_a_cancel_of_the_job_reaches_the_server(floor: Floor, tmp_path: Path) -> None:
    with Comfy(tmp_path / "comfy") as comfy:
        adapter = SelfHosted(comfy.url)
        floor.start(comfyui_worker(adapter, pace=QUICK))
        graph = graphs.slow(seconds=30, steps=300)
        job_id = floor.submit(StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graph)), lease_seconds=3)
        wait_until(lambda: "2" in comfy.reached)
        floor.cancel(job_id)
        assert floor.ended(job_id).status == "canceled"
        assert comfy.queue == {"running": [], "pending": []}
        adapter.close()


def test_a_worker_that_leaves_its_own_server_cancels_its_prompt_and_another_runs_it_anew(
    floor: Floor, tmp_path: Path
) -> None:
    with Comfy(tmp_path / "comfy") as comfy:
        adapter = SelfHosted(comfy.url)
        worker = comfyui_worker(adapter, pace=QUICK)
        first = floor.start(worker, floor.link("w1"))
        hold = comfy.hold("2")
        job_id = floor.submit(
            StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.slow(seconds=0.05)))
        )
        wait_until(lambda: "2" in comfy.reached)
        leaving = threading.Thread(target=first.stop)
        leaving.start()
        wait_until(lambda: any(request.path.endswith("/cancel") for request in comfy.requests))
        hold.set()
        leaving.join()
        wait_until(lambda: comfy.queue == {"running": [], "pending": []})
        floor.start(worker, floor.link("w2"))
        assert floor.ended(job_id).status == "completed"
        assert len(comfy.runs) == 2
        assert floor.outcomes(job_id) == ["requeued", "completed"]
        assert len(floor.files(job_id)) == 1
        adapter.close()


def _written(floor: Floor, job_id: str) -> str | None:
    """Return what the house knows of the prompt of a job's try."""
    attempts = floor.engine.read.attempts(floor.task(job_id).id)
    return attempts[-1].ref if attempts else None


def test_a_worker_that_leaves_a_cloud_is_followed_by_one_that_collects_its_prompt(floor: Floor, tmp_path: Path) -> None:
    with Cloud(tmp_path / "cloud") as cloud:
        adapter = CloudV1(KEY, cloud.url)
        worker = comfyui_worker(adapter, pace=QUICK)
        hold = cloud.hold("2")
        adapter.submit(str(uuid.uuid4()), graphs.slow(seconds=0.05))
        wait_until(lambda: "2" in cloud.reached)
        first = floor.start(worker, floor.link("w1"))
        job_id = floor.submit(StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.basic())))
        wait_until(lambda: _written(floor, job_id) in cloud.queue["pending"])
        first.stop()
        hold.set()
        floor.start(worker, floor.link("w2"))
        assert floor.ended(job_id).status == "completed"
        assert floor.outcomes(job_id) == ["requeued", "completed"]
        assert (len(cloud.asked_for("/api/prompt")), len(floor.files(job_id))) == (2, 1)
        adapter.close()
