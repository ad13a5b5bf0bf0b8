"""ComfyUI servers of each kind, adapters for them, and a handler with short timeouts."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.worker.comfyui import CloudV1, CloudV2, ComfyHandler, SelfHosted, Timeouts
from tests.support.comfyui import cloud_v1 as v1
from tests.support.comfyui import cloud_v2 as v2
from tests.support.comfyui.cloud_v1 import CloudV1Server
from tests.support.comfyui.cloud_v2 import CloudV2Server
from tests.support.comfyui.server import ComfyServer
from tests.support.comfyui.server_state import NEW, OLD

QUICK = Timeouts(
    poll_seconds=0.03,
    retry_seconds=0.02,
    prompt_timeout_seconds=30,
    outage_timeout_seconds=10,
    cancel_timeout_seconds=10,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, to check what is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(params=[OLD, NEW])
def comfy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ComfyServer]:
    """A ComfyUI server of each version."""
    with ComfyServer(tmp_path / "comfy", request.param) as server:
        yield server


@pytest.fixture
def adapter(comfy: ComfyServer) -> Iterator[SelfHosted]:
    made = SelfHosted(comfy.url)
    yield made
    made.close()


@pytest.fixture
def handler(adapter: SelfHosted) -> ComfyHandler:
    return ComfyHandler(adapter, QUICK)


@pytest.fixture
def cloud_v1(tmp_path: Path) -> Iterator[CloudV1Server]:
    with CloudV1Server(tmp_path / "cloud") as server:
        yield server


@pytest.fixture
def adapter_v1(cloud_v1: CloudV1Server) -> Iterator[CloudV1]:
    made = CloudV1(v1.KEY, cloud_v1.url)
    yield made
    made.close()


@pytest.fixture
def cloud_v2(tmp_path: Path) -> Iterator[CloudV2Server]:
    with CloudV2Server(tmp_path / "cloud2") as server:
        yield server


@pytest.fixture
def adapter_v2(cloud_v2: CloudV2Server) -> Iterator[CloudV2]:
    made = CloudV2(v2.KEY, cloud_v2.url)
    yield made
    made.close()
