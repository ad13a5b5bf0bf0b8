"""Commands about the installation: what all servers of a database share, and whether the database accepts writes."""

from callsheet.core.model.commands.base import Command


class RecordInstallationValue(Command, frozen=True, kw_only=True, gc=False):
    """Record a value at its first use. If it is recorded already, nothing changes. Returns the recorded value."""

    name: str
    value: str


class ReplaceInstallationValue(Command, frozen=True, kw_only=True, gc=False):
    """Replace a recorded value, because an operator asked for it."""

    name: str
    value: str


class CheckWrite(Command, frozen=True, kw_only=True, gc=False):
    """Write one row, to find out whether the database accepts writes."""
