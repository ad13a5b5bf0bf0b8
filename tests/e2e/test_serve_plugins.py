"""`callsheet serve` with plugins of each kind from the `[plugins]` table of the settings file."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes.cli_process import ServerProcess, run
from tests.support.wait import wait_until

PLUGIN = '''
import json
from pathlib import Path

from callsheet.core.model import commands
from callsheet.core.model.commands import Outcome, Verdict
from callsheet.http.auth.key_location import authenticate_by_header
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.route import WRITERS, Response, Route

LOG = Path(__file__).with_name("events.jsonl")


def refuse_rain(command):
    """The gate."""
    if "rain" in str(command.input):
        return Verdict("rain_refused", "It rains.")


def write_events(events):
    """The sink."""
    with LOG.open("a") as log:
        for one in events:
            log.write(json.dumps({"type": one.type, "job_id": one.job_id}) + "\\n")


class Forecaster:
    """The provider."""

    def collect(self, call_id, ref):
        return Outcome("completed", output={"forecast": "sun", "ref": ref})

    def cancel(self, call_id, ref):
        pass


async def start_forecast(state, request):
    """Submit the next task to the provider."""
    (task,) = await state.engine.aexecute(commands.Claim(worker_id="plugin", kinds=("forecast",)))
    await state.engine.aexecute(commands.RecordIntent(lease=task.lease, provider="forecaster"))
    await state.engine.aexecute(commands.HandOff(lease=task.lease, ref="ref-7"))
    return Response({"job_id": task.lease.job_id, "tenant": request.caller.tenant})


def create_api():
    routes = (Route("POST", "/start", start_forecast, WRITERS, "Start the next forecast"),)
    return Api("/weather", routes, authenticate_by_header("X-Weather-Key"))
'''
SETTINGS = """
[plugins]
gates = ["weather_plugin:refuse_rain"]
sinks = ["weather_plugin:write_events"]
providers = { forecaster = "weather_plugin:Forecaster" }
apis = ["weather_plugin:create_api"]
"""
WORKFLOW = {"stages": [{"name": "forecast", "kind": "forecast", "provider": "forecaster"}], "collect_seconds": 1}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server process with the plugin module in its path."""
    (tmp_path / "weather_plugin.py").write_text(PLUGIN)
    (tmp_path / "callsheet.toml").write_text(SETTINGS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = ("--config", tmp_path / "callsheet.toml")
    with ServerProcess(tmp_path / "data", *options, command="serve", env={"PYTHONPATH": path}) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {server.key}"}, timeout=40) as client:
        client.put("/v1/workflows/forecast", json={"definition": WORKFLOW}).raise_for_status()
        yield client


def submit(client: httpx.Client, place: str) -> httpx.Response:
    return client.post("/v1/jobs", json={"workflow": "forecast", "user": "ann", "input": {"place": place}})


def logged_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events that the sink wrote."""
    log = folder / "events.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_gate_of_the_settings_file_refuses_jobs(client: httpx.Client) -> None:
    refused = submit(client, "rain forest")
    assert (refused.status_code, refused.json()["code"]) == (403, "rain_refused")
    assert "It rains." in refused.json()["message"]
    assert submit(client, "desert").status_code == 201
    assert len(client.get("/v1/jobs").json()["jobs"]) == 1


def test_a_sink_of_the_settings_file_receives_events(client: httpx.Client, tmp_path: Path) -> None:
    job = submit(client, "desert").raise_for_status().json()
    wait_until(lambda: bool(logged_events(tmp_path)), 30)
    assert logged_events(tmp_path)[0] == {"type": "job.created", "job_id": job["id"]}


def test_an_api_and_a_provider_of_the_settings_file_run_a_job(server: ServerProcess, client: httpx.Client) -> None:
    job = submit(client, "desert").raise_for_status().json()
    refused = httpx.post(f"{server.url}/weather/start")
    assert refused.status_code == 401
    started = httpx.post(f"{server.url}/weather/start", headers={"x-weather-key": server.key}).raise_for_status()
    assert started.json() == {"job_id": job["id"], "tenant": "default"}
    ended = client.get(f"/v1/jobs/{job['id']}", params={"wait_seconds": 30}).json()
    assert ended["status"] == "completed"
    (output,) = client.get(f"/v1/jobs/{job['id']}/outputs").json()["outputs"]
    assert output["output"] == {"forecast": "sun", "ref": "ref-7"}


def test_a_plugin_that_cannot_be_loaded_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "callsheet.toml").write_text('[plugins]\ngates = ["no_such_module:gate"]\n')
    done = run("serve", "--port", 0, "--data-dir", tmp_path / "data", "--config", tmp_path / "callsheet.toml")
    assert done.returncode != 0
    assert "no_such_module:gate" in done.stderr
    assert "Traceback" not in done.stderr
