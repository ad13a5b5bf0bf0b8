"""Plugins: gates, sinks, providers and APIs from arguments, configuration and entry points."""

import asyncio
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from callsheet.api.events import FeedQuery, SinkEvent
from callsheet.app import Callsheet
from callsheet.cli.server_settings_file import load_settings
from callsheet.core.model import commands
from callsheet.core.model.errors import BadInput, Refusal
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.http.auth.authenticator import Caller
from callsheet.queries.events.pages_and_cursors import list_tenant_events
from callsheet.settings import PluginSettings, Settings

MODULE = """
from callsheet.core.model.commands import Outcome, Verdict
from callsheet.http.server.mounted_api import Api

delivered = []

def refuse_rain(command):
    if "rain" in str(command.input):
        return Verdict("rain_refused", "It rains.")

def keep_types(events):
    delivered.extend(one.type for one in events)

class Provider:
    def collect(self, call_id, ref):
        return Outcome("pending")
    def cancel(self, call_id, ref):
        pass

async def authenticate(state, request):
    raise NotImplementedError

def make_api():
    return Api("/plugin", (), authenticate)

number = 7
"""
PLUGINS = """
[plugins]
gates = ["{module}:refuse_rain"]
sinks = ["{module}:keep_types"]
apis = ["{module}:make_api"]
providers = {{ fal = "{module}:Provider" }}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of an importable module with one plugin of each kind."""
    name = f"plugins_of_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def open_callsheet(tmp_path: Path, settings: Settings) -> Callsheet:
    callsheet = Callsheet(tmp_path / "callsheet.db", tmp_path, settings)
    callsheet.engine.execute(commands.PutTenant(tenant="default", requested_by="me"))
    definition = WorkflowDefinition(name="sketch", stages=[StageSpec(name="draw", kind="draw")])
    callsheet.engine.execute(commands.PutWorkflow(definition=definition))
    return callsheet


def submit(callsheet: Callsheet, prompt: str) -> None:
    callsheet.engine.execute(commands.Submit(tenant="default", user="ann", workflow="sketch", input={"prompt": prompt}))


def check_plugins(callsheet: Callsheet, module: str) -> None:
    """Check that the gate refuses, the sink gets events, and the provider and the API are registered."""
    with callsheet:
        callsheet.start()
        submit(callsheet, "sun")
        with pytest.raises(Refusal, match="It rains"):
            submit(callsheet, "rain")
        delivered = sys.modules[module].delivered
        for _ in range(400):
            if "job.created" in delivered:
                break
            threading.Event().wait(0.02)
        assert delivered.count("job.created") == 1
        assert list(callsheet.plugins.providers) == ["fal"]
        assert [api.prefix for api in callsheet.plugins.apis] == ["/plugin"]


def test_plugins_are_loaded_from_the_configuration_file(tmp_path: Path, module: str) -> None:
    file = tmp_path / "callsheet.toml"
    file.write_text(PLUGINS.format(module=module))
    settings, _ = load_settings(file)
    check_plugins(open_callsheet(tmp_path, settings), module)


def test_plugins_are_loaded_from_entry_points_of_installed_packages(tmp_path: Path, module: str) -> None:
    install(tmp_path, module)
    check_plugins(open_callsheet(tmp_path, Settings()), module)


def test_entry_points_can_be_switched_off(tmp_path: Path, module: str) -> None:
    install(tmp_path, module)
    with open_callsheet(tmp_path, Settings(plugins=PluginSettings(entry_points=False))) as callsheet:
        submit(callsheet, "rain")
        assert (callsheet.plugins.providers, callsheet.plugins.apis) == ({}, ())
    assert module not in sys.modules


def install(tmp_path: Path, module: str) -> None:
    """Write the metadata of an installed package."""
    metadata = tmp_path / "weather-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: weather\nVersion: 1.0\n")
    groups = {"gates": "refuse_rain", "sinks": "keep_types", "apis": "make_api", "providers": "Provider"}
    (metadata / "entry_points.txt").write_text(
        "".join(f"[callsheet.{group}]\nfal = {module}:{name}\n" for group, name in groups.items())
    )


def test_a_sink_can_be_an_argument_and_gets_its_events_again_after_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    delivered: list[SinkEvent] = []
    done = threading.Event()

    def fail_once(events: Sequence[SinkEvent]) -> None:
        delivered.extend(events)
        if len(delivered) == len(events):
            raise ConnectionError("no route")
        done.set()

    with Callsheet(tmp_path / "callsheet.db", tmp_path, sinks={"mine": fail_once}) as callsheet:
        callsheet.engine.execute(commands.PutTenant(tenant="default", requested_by="me"))
        callsheet.start()
        definition = WorkflowDefinition(name="sketch", stages=[StageSpec(name="draw", kind="draw")])
        callsheet.engine.execute(commands.PutWorkflow(definition=definition))
        submit(callsheet, "sun")
        assert done.wait(10)
        state, query = callsheet.state, FeedQuery()
        viewer = Caller("admin", "default", "key")
        feed = asyncio.run(list_tenant_events(state.queries, viewer, (0, 0), query))
    first, *_, again = delivered
    assert first == again, "it is the same event, with the same cursor"
    assert (first.tenant, first.type, first.data["workflow"]) == ("default", "job.created", "sketch")
    assert (first.job_id, first.seq, first.cursor) == (feed.events[0].job_id, 1, feed.events[0].cursor)
    message = "Delivering events failed: sink mine: ConnectionError: no route. 1 event will be delivered again in 1 sec"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (PluginSettings(gates=("no_such_module:gate",)), "no_such_module:gate of plugins.gates cannot be loaded: Mod"),
        (PluginSettings(gates=("callsheet.plugins",)), "write it as module:name"),
        (PluginSettings(gates=("{module}:absent",)), "AttributeError"),
        (PluginSettings(gates=("{module}:number",)), "it is not callable"),
        (PluginSettings(sinks=("{module}:number",)), "it is not callable"),
        (PluginSettings(apis=("{module}:number",)), "it is not an Api"),
        (PluginSettings(providers={"fal": "{module}:number"}), "`collect` and `cancel`"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_an_error_at_the_start(
    tmp_path: Path, module: str, settings: PluginSettings, message: str
) -> None:
    named = PluginSettings(
        gates=tuple(one.format(module=module) for one in settings.gates),
        sinks=tuple(one.format(module=module) for one in settings.sinks),
        apis=tuple(one.format(module=module) for one in settings.apis),
        providers={name: one.format(module=module) for name, one in settings.providers.items()},
    )
    with pytest.raises(BadInput, match=r"The plugin .* cannot be loaded") as raised:
        Callsheet(tmp_path / "callsheet.db", tmp_path, Settings(plugins=named))
    assert message in str(raised.value)
    assert raised.value.code == "invalid_plugin"


def test_two_plugins_with_one_name_are_refused(tmp_path: Path, module: str) -> None:
    install(tmp_path, module)
    settings = Settings(plugins=PluginSettings(providers={"fal": f"{module}:Provider"}))
    with pytest.raises(BadInput, match="another one has the same name"):
        Callsheet(tmp_path / "callsheet.db", tmp_path, settings)
