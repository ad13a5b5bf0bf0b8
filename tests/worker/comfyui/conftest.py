"""Servers to run graphs at, and a handler that is in a hurry."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from callsheet.worker.comfyui import CloudV1, CloudV2, ComfyHandler, Pace, SelfHosted
from tests.support.comfy import cloud, cloud2
from tests.support.comfy.cloud import Cloud
from tests.support.comfy.cloud2 import Cloud2
from tests.support.comfy.machine import NEW, OLD
from tests.support.comfy.server import Comfy

QUICK = Pace(poll_seconds=0.03, look_seconds=0.02, limit_seconds=30, away_seconds=10, cancel_seconds=10)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our own for temporary files, to see what is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(params=[OLD, NEW])
def comfy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Comfy]:
    """A ComfyUI server of each version."""
    with Comfy(tmp_path / "comfy", request.param) as server:
        yield server


@pytest.fixture
def adapter(comfy: Comfy) -> Iterator[SelfHosted]:
    made = SelfHosted(comfy.url)
    yield made
    made.close()


@pytest.fixture
def handler(adapter: SelfHosted) -> ComfyHandler:
    return ComfyHandler(adapter, QUICK)


@pytest.fixture
def cloud_v1(tmp_path: Path) -> Iterator[Cloud]:
    with Cloud(tmp_path / "cloud") as server:
        yield server


@pytest.fixture
def adapter_v1(cloud_v1: Cloud) -> Iterator[CloudV1]:
    made = CloudV1(cloud.KEY, cloud_v1.url)
    yield made
    made.close()


@pytest.fixture
def cloud_v2(tmp_path: Path) -> Iterator[Cloud2]:
    with Cloud2(tmp_path / "cloud2") as server:
        yield server


@pytest.fixture
def adapter_v2(cloud_v2: Cloud2) -> Iterator[CloudV2]:
    made = CloudV2(cloud2.KEY, cloud_v2.url)
    yield made
    made.close()
