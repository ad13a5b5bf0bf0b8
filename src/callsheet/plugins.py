"""Plugins: gates, event sinks, providers and APIs, from arguments, settings and entry points.

If a plugin cannot be loaded, the server does not start. The error names the plugin.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from callsheet.api.events import SinkEvent
from callsheet.core.model.errors import BadInput
from callsheet.engine.gate_plugins import Gate
from callsheet.engine.loops.provider_collector import Provider
from callsheet.http.server.mounted_api import Api
from callsheet.settings import PluginSettings

Sink = Callable[[Sequence[SinkEvent]], None]
"""Receives events in their global order, each at least once. If it raises, the relay delivers them again."""
GATES, SINKS, PROVIDERS, APIS = "gates", "sinks", "providers", "apis"


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of one server."""

    gates: tuple[Gate, ...] = ()
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    """By a stable name: the relay stores its position in the events under it."""
    providers: Mapping[str, Provider] = field(default_factory=dict)
    """By the name that workflows use."""
    apis: tuple[Api, ...] = ()


def load_plugins(arguments: Plugins, settings: PluginSettings) -> Plugins:
    """Return the plugins of the arguments, the settings and the installed packages."""
    return Plugins(
        gates=(*arguments.gates, *(_instantiate(GATES, name, plugin) for name, plugin in _find(GATES, settings))),
        sinks=_merge(SINKS, arguments.sinks, settings),
        providers=_merge(PROVIDERS, arguments.providers, settings),
        apis=(*arguments.apis, *(_instantiate(APIS, name, plugin) for name, plugin in _find(APIS, settings))),
    )


def _merge(group: str, arguments: Mapping[str, Any], settings: PluginSettings) -> dict[str, Any]:
    merged = dict(arguments)
    for name, plugin in _find(group, settings):
        if name in merged:
            raise _load_error(group, name, "another one has the same name: rename one of them")
        merged[name] = _instantiate(group, name, plugin)
    return merged


def _find(group: str, settings: PluginSettings) -> Iterator[tuple[str, Any]]:
    """Yield the plugins of a group by name: first those of the settings, then those of installed packages."""
    configured = getattr(settings, group)
    pairs = configured.items() if isinstance(configured, dict) else zip(configured, configured, strict=True)
    for name, reference in pairs:
        yield name, _load_reference(group, reference)
    if settings.entry_points:
        for point in sorted(entry_points(group=f"callsheet.{group}")):
            yield point.name, _call_safely(group, f"{point.name} ({point.value})", point.load)


def _load_reference(group: str, reference: str) -> Any:
    module, _, name = reference.partition(":")
    if not module or not name.isidentifier():
        raise _load_error(group, reference, "write it as module:name")
    return _call_safely(group, reference, lambda: getattr(import_module(module), name))


def _instantiate(group: str, name: str, plugin: Any) -> Any:
    """Return a valid plugin. A class is instantiated first; for an API, also a function is called."""
    if isinstance(plugin, type) or (group == APIS and callable(plugin)):
        plugin = _call_safely(group, name, plugin)
    if group == APIS and not isinstance(plugin, Api):
        raise _load_error(group, name, "it is not an Api; pass an Api or a function that returns one")
    if group in {GATES, SINKS} and not callable(plugin):
        raise _load_error(group, name, "it is not callable; gates and sinks must be callable")
    if group == PROVIDERS and not (hasattr(plugin, "collect") and hasattr(plugin, "cancel")):
        raise _load_error(group, name, "it is not a provider; a provider has the methods `collect` and `cancel`")
    return plugin


def _call_safely(group: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        raise _load_error(group, name, f"{type(error).__name__}: {error}") from error


def _load_error(group: str, name: str, why: str) -> BadInput:
    return BadInput("invalid_plugin", f"The plugin {name} of plugins.{group} cannot be loaded: {why}.")
