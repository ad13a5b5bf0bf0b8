"""Registry of planted bugs. Each bug removes one rule from the engine, and the simulation must detect it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from callsheet.core.command_registry import COMMANDS
from callsheet.core.model.commands import Command
from callsheet.core.working_set import WorkingSet

InjectBug = Callable[[pytest.MonkeyPatch], None]


class Bug(NamedTuple):
    """A planted bug; its name says what goes wrong."""

    name: str
    inject: InjectBug


BUGS: list[Bug] = []


def bug(inject: InjectBug) -> InjectBug:
    """Register a bug under the name of its function."""
    BUGS.append(Bug(inject.__name__, inject))
    return inject


def replace_decision(patch: pytest.MonkeyPatch, kind: type[Command], decide: Callable[[WorkingSet, Any], Any]) -> None:
    patch.setitem(COMMANDS, kind, COMMANDS[kind]._replace(decide=decide))


def do_nothing(*_: Any, **__: Any) -> None:
    """Replace a function that should do something."""
