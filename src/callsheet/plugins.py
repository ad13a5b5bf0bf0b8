"""Plugins: gates, event sinks, providers and APIs, from arguments, configuration and entry points.

A plugin that cannot be loaded stops the start with a sentence that names it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from callsheet.config import PluginSettings
from callsheet.core.model.errors import BadInput
from callsheet.engine.loops.provider_collector import Provider
from callsheet.engine.reads.synchronous import PositionedEvent
from callsheet.engine.submit_gates import Gate
from callsheet.http.server.mounted_api import Api

Sink = Callable[[Sequence[PositionedEvent]], None]
"""Gets events in their global order, each at least once; an error makes the relay deliver them again."""
GATES, SINKS, PROVIDERS, APIS = "gates", "sinks", "providers", "apis"


@dataclass(frozen=True, slots=True)
class Plugins:
    """What extends one server."""

    gates: tuple[Gate, ...] = ()
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    """By a name that stays the same: the position in the event order is stored under it."""
    providers: Mapping[str, Provider] = field(default_factory=dict)
    """By the name that workflows use."""
    apis: tuple[Api, ...] = ()


def load_plugins(arguments: Plugins, settings: PluginSettings) -> Plugins:
    """Add the plugins of the configuration and of installed packages to those that were passed as arguments."""
    return Plugins(
        gates=(*arguments.gates, *(_checked(GATES, name, plugin) for name, plugin in _find(GATES, settings))),
        sinks=_merge(SINKS, arguments.sinks, settings),
        providers=_merge(PROVIDERS, arguments.providers, settings),
        apis=(*arguments.apis, *(_checked(APIS, name, plugin) for name, plugin in _find(APIS, settings))),
    )


def _merge(group: str, arguments: Mapping[str, Any], settings: PluginSettings) -> dict[str, Any]:
    merged = dict(arguments)
    for name, plugin in _find(group, settings):
        if name in merged:
            raise _refuse(group, name, "another one has the same name: rename one of them")
        merged[name] = _checked(group, name, plugin)
    return merged


def _find(group: str, settings: PluginSettings) -> Iterator[tuple[str, Any]]:
    """Yield the plugins of a group by name: first those of the configuration, then those of installed packages."""
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
        raise _refuse(group, reference, "write it as module:name")
    return _call_safely(group, reference, lambda: getattr(import_module(module), name))


def _checked(group: str, name: str, plugin: Any) -> Any:
    """Return a plugin, made first if it is a class or, for an API, a function without arguments."""
    if isinstance(plugin, type) or (group == APIS and callable(plugin)):
        plugin = _call_safely(group, name, plugin)
    if group == APIS and not isinstance(plugin, Api):
        raise _refuse(group, name, "it is not an Api, nor a function that returns one")
    if group in {GATES, SINKS} and not callable(plugin):
        raise _refuse(group, name, "it cannot be called")
    if group == PROVIDERS and not (hasattr(plugin, "collect") and hasattr(plugin, "cancel")):
        raise _refuse(group, name, "a provider has the methods `collect` and `cancel`")
    return plugin


def _call_safely(group: str, name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        raise _refuse(group, name, f"{type(error).__name__}: {error}") from error


def _refuse(group: str, name: str, why: str) -> BadInput:
    return BadInput("invalid_plugin", f"The plugin {name} of plugins.{group} cannot be loaded: {why}.")
