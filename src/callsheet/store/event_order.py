"""Continues the order of events in a database that was restored into another cluster."""

from callsheet.core.model.rows import InstallationValue
from callsheet.core.policy.event_order import TRANSACTION_OFFSET, continued_offset
from callsheet.store.connection import Connection


def continue_event_order(connection: Connection) -> None:
    """Make new events follow the stored ones. The caller makes sure that one server does this at a time."""
    newest, upcoming = connection.fetch("event_transactions")[0]
    recorded = connection.fetch("recorded_values", ids=[TRANSACTION_OFFSET])
    offset = continued_offset(int(recorded[0][1]) if recorded else 0, newest or 0, upcoming)
    if offset is None:
        return
    now = connection.now()
    write = connection.update if recorded else connection.insert
    write(InstallationValue, [InstallationValue(TRANSACTION_OFFSET, str(offset), now, now)])
