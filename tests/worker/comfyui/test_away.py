"""A server that is away: before work is taken, while a task waits, and when what was paid for is to be fetched."""

from pathlib import Path
from typing import Any

import pytest

from callsheet.core.comfy import ComfySpec
from callsheet.core.commands import Resumed
from callsheet.core.recipe import StageSpec
from callsheet.worker import Retry, Unreachable
from callsheet.worker.comfyui import (
    Away,
    CloudV1,
    CloudV2,
    Comfy,
    ComfyHandler,
    Declined,
    Output,
    SelfHosted,
    comfyui_worker,
)
from callsheet.worker.facts import Fact, Ready, Waiting
from tests.support.comfy import cloud, cloud2
from tests.support.comfy.cloud import Cloud
from tests.support.comfy.cloud2 import Cloud2
from tests.support.comfy.listening import as_json
from tests.support.comfy.server import Comfy as Server
from tests.support.waiting import wait_until
from tests.worker.comfyui import graphs
from tests.worker.comfyui.conftest import QUICK
from tests.worker.comfyui.recording import Beside, Recorded, task
from tests.worker.comfyui.test_cloud import HASTY
from tests.worker.floor import Floor

BUSY = as_json({}, 503)
STAGE = StageSpec(name="draw", kind="comfyui", comfyui=ComfySpec(graph=graphs.basic()))


# -- what was paid for


def test_a_file_that_a_server_in_trouble_does_not_give_is_asked_for_again(
    cloud_v1: Cloud, adapter_v1: CloudV1, tmp_path: Path
) -> None:
    (cloud_v1.disk.root / "output" / "a.png").write_bytes(b"made")
    cloud_v1.answers["/view"] = [as_json({}, 500), as_json({}, 429)]
    adapter_v1.fetch(Output("9", "a.png"), tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == b"made"
    cloud_v1.answers["/view"] = [BUSY] * 3
    with pytest.raises(Away):
        adapter_v1.fetch(Output("9", "a.png"), tmp_path / "here")


def test_what_cannot_be_fetched_for_now_is_collected_by_the_next_try_and_paid_once(
    floor: Floor, cloud_v1: Cloud
) -> None:
    """And by the one after that: each is told where the prompt lies."""
    adapter = CloudV1(cloud.KEY, cloud_v1.url)
    cloud_v1.answers["/view"] = [BUSY] * 6
    floor.start(comfyui_worker(adapter, pace=HASTY))
    job_id = floor.submit(STAGE)
    assert floor.ended(job_id).status == "completed"
    assert floor.outcomes(job_id) == ["failed", "failed", "completed"]
    assert len(cloud_v1.runs) == 1
    assert len(floor.files(job_id)) == 1
    adapter.close()


@pytest.mark.parametrize("which", ["files", "status", "house"])
def test_a_try_that_cannot_collect_hands_its_prompt_on(cloud_v1: Cloud, adapter_v1: CloudV1, which: str) -> None:
    class Storeless(Recorded):
        """A house whose store does not answer."""

        def upload(self, name: str, body: bytes | Path, media_type: str = "") -> None:
            raise Unreachable(f"{name} ({media_type}) is not taken: {body!r}")

    ctx = (Storeless if which == "house" else Recorded)(task(graphs.basic()).comfyui)
    if which == "files":
        cloud_v1.answers["/view"] = [BUSY] * 3
    elif which == "status":
        cloud_v1.answers["/api/jobs"] = [BUSY] * 1_000
        ctx.resumed = Resumed("comfy-cloud", "mark:of-an-earlier-try")
    with pytest.raises(Retry) as raised:
        ComfyHandler(adapter_v1, HASTY)(ctx)
    assert raised.value.resume
    codes = {"files": "output_unreachable", "status": "comfyui_unreachable", "house": "unreachable"}
    assert raised.value.code == codes[which]


@pytest.mark.parametrize("which", ["failed", "gone", "never sent"])
def test_a_prompt_that_failed_or_is_gone_is_handed_on_to_nobody(comfy: Server, adapter: SelfHosted, which: str) -> None:
    ctx = task(graphs.failing("Allocation on device failed", kind="oom") if which == "failed" else graphs.basic())
    ctx.resumed = Resumed("comfyui", "of-an-earlier-try")
    if which == "gone":
        comfy.answers["/view"] = [as_json(None, 404)] * 10
    elif which == "never sent":
        ctx.resumed = None
        comfy.down()
    with pytest.raises(Retry) as raised:
        ComfyHandler(adapter, HASTY)(ctx)
    assert not raised.value.resume


def test_the_clouds_own_name_of_an_earlier_prompt_is_written_down(cloud_v1: Cloud, adapter_v1: CloudV1) -> None:
    ref = adapter_v1.submit("a-mark", graphs.basic())
    ctx = task(graphs.basic(), resumed=Resumed("comfy-cloud", "mark:a-mark"))
    assert ComfyHandler(adapter_v1, QUICK)(ctx)["outputs"]
    assert (ctx.refs, cloud_v1.runs) == ([("comfy-cloud", ref)], [ref])


# -- while a task waits


def test_a_task_that_waits_for_its_server_says_so_once(comfy: Server, adapter: SelfHosted) -> None:
    told: list[Fact] = []
    hold = comfy.hold("2")
    ctx = task(graphs.slow(seconds=0.05))
    comfy.answers["/prompt"] = [BUSY] * 2
    running = Beside(ComfyHandler(adapter, QUICK, tell=told.append), ctx)
    wait_until(lambda: "2" in comfy.reached)
    assert ctx.messages[0] == "waiting for ComfyUI"
    comfy.answers["/queue"] = [BUSY] * 5
    wait_until(lambda: ctx.messages.count("waiting for ComfyUI") == 2)
    wait_until(lambda: ctx.messages[-1] != "waiting for ComfyUI")
    hold.set()
    assert running.ended()["outputs"]
    assert [type(fact) for fact in told] == [Waiting, Waiting]
    assert "waits for ComfyUI: ComfyUI could not read" in str(told[0])


# -- before work is taken


def test_no_work_is_taken_before_the_server_is_there(floor: Floor, tmp_path: Path) -> None:
    server = Server(tmp_path / "comfy")
    adapter = SelfHosted(server.url)
    link = floor.link()
    shift = floor.start(comfyui_worker(adapter, pace=QUICK), link)
    job_id = floor.submit(STAGE)
    wait_until(lambda: floor.faults)
    assert floor.faults == [
        f"No work is taken yet: ComfyUI did not answer (ConnectError). Is {server.url} the server?"
    ]  # fmt: skip
    assert (link.asked, floor.job(job_id).status) == ([], "queued")
    with server:
        assert floor.ended(job_id).status == "completed"
        assert [type(fact) for fact in floor.facts if isinstance(fact, Ready)] == [Ready]
        shift.stop()
    assert len(floor.faults) == 1
    adapter.close()


def test_a_worker_that_waits_for_its_server_is_drained_all_the_same(remote: Floor, tmp_path: Path) -> None:
    adapter = SelfHosted(Server(tmp_path / "comfy").url)
    shift = remote.start(comfyui_worker(adapter, pace=QUICK))
    wait_until(lambda: remote.faults)
    remote.operator.patch("/v1/admin/workers/w1", json={"draining": True}).raise_for_status()
    assert shift.wait(20)
    assert (shift.failure, remote.worker().status) == (None, "gone")
    adapter.close()


def test_each_adapter_sees_whether_its_server_is_there(
    comfy: Server, adapter: SelfHosted, cloud_v1: Cloud, adapter_v1: CloudV1, cloud_v2: Cloud2, adapter_v2: CloudV2
) -> None:
    seen: list[Comfy] = [adapter, adapter_v1, adapter_v2]
    for one in seen:
        one.ready()
    strange: Any = [
        SelfHosted(f"{comfy.url}/nowhere"), SelfHosted(cloud_v2.url), CloudV1(cloud.KEY, f"{comfy.url}/nowhere"),
        CloudV2(cloud2.KEY, comfy.url), CloudV1("wrong", cloud_v1.url), CloudV2("wrong", cloud_v2.url),
    ]  # fmt: skip
    for one in strange:
        with pytest.raises((Away, Declined)):
            one.ready()
        one.close()
    comfy.answers["/queue"] = [as_json({"status": "ok"})]
    with pytest.raises(Away, match="no ComfyUI server"):
        adapter.ready()
