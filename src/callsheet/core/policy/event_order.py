"""How the order of events continues when a database was restored into another PostgreSQL cluster.

Events are ordered by the transaction that wrote them. Each cluster counts its transactions from 1, so the database
records an offset that is added to the number.
"""

TRANSACTION_OFFSET = "event_transaction_offset"
"""The name of the recorded offset."""
_GAP = 2**40
"""Numbers that are left out, so that cursors that clients received after the backup are also before new events."""


def continued_offset(offset: int, newest: int, upcoming: int) -> int | None:
    """Return the offset with which new transactions follow the stored ones; None if they do already.

    `newest` is the highest stored transaction, `upcoming` one that the cluster has not reached yet, with the offset.
    """
    return None if newest < upcoming else offset + newest - upcoming + _GAP
