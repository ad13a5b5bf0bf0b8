"""The working set: the rows a batch has in its hands.

Decisions read rows from it and put changed ones back, so the second command of a batch sees what the first one
did. A row nobody has loaded raises `Missing`; the engine loads it and asks again. A refused command is undone
from the journal, and its neighbours never notice.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from callsheet.core.limits import Limits
from callsheet.core.machine import Actor
from callsheet.core.rows import Event, Job, Row

R = TypeVar("R", bound=Row)
Key = Hashable
_KEYS: dict[type[Row], Callable[[Row], Key]] = {}
_encode = msgspec.json.Encoder(order="deterministic").encode


class Missing(Exception):  # noqa: N818 - a request to the engine, not an error
    """A decision needs rows that the batch has not loaded."""

    def __init__(self, want: str, key: Key) -> None:
        super().__init__(f"{want} {key}")
        self.want = want
        self.key = key


def key_of(row: Row) -> Key:
    """Return a row's primary key: one value, or a tuple."""
    cls = type(row)
    getter = _KEYS.get(cls)
    if getter is None:
        getter = _KEYS[cls] = attrgetter(*cls.KEY)
    return getter(row)


def encode(value: Any) -> str:
    """Encode JSON the same way every time."""
    return _encode(value).decode()


class WorkingSet:
    """Rows by table and key, with what was new, what changed, and facts counted from live rows."""

    def __init__(self, now: int, limits: Limits, *, again: bool = False) -> None:
        self.now = now
        self.limits = limits
        self.again = again
        """The commands may have been committed before: look for their own work."""
        self.facts: dict[tuple[str, Key], Any] = {}
        self.woken: set[str] = set()
        """Kinds that have new work."""
        self.purged: list[str] = []
        """Jobs whose documents go."""
        self._loaded: dict[type[Row], dict[Key, Row | None]] = {}
        self._rows: dict[type[Row], dict[Key, Row | None]] = {}
        self._appended: list[Row] = []
        self._events: list[Event] = []
        self._seqs: dict[str, int] = {}
        self._undo: list[Callable[[], Any]] = []

    # -- reading

    def load(self, cls: type[R], rows: Iterable[R], wanted: Iterable[Key] = ()) -> None:
        """Take rows in from the database; a wanted key without a row is known to be absent."""
        loaded = self._loaded.setdefault(cls, {})
        for row in rows:
            loaded.setdefault(key_of(row), row)
        for key in wanted:
            loaded.setdefault(key, None)

    def find(self, cls: type[R], key: Key) -> R | None:
        """Return a row, or None if it is known to be absent."""
        rows = self._rows.get(cls)
        if rows is not None and key in rows:
            return rows[key]  # type: ignore[return-value]
        try:
            return self._loaded[cls][key]  # type: ignore[return-value]
        except KeyError:
            raise Missing(cls.TABLE, key) from None

    def get(self, cls: type[R], key: Key) -> R:
        """Return a row that must exist, because another row points to it."""
        row = self.find(cls, key)
        if row is None:
            message = f"{cls.TABLE} {key!r} is referred to and does not exist"
            raise LookupError(message)
        return row

    def all(self, cls: type[R]) -> Iterator[R]:
        """Yield every row of a table that is in hand, in its newest form."""
        changed = self._rows.get(cls, {})
        for key, row in self._loaded.get(cls, {}).items():
            current = changed.get(key, row)
            if current is not None:
                yield current  # type: ignore[misc]
        for key, row in changed.items():
            if row is not None and key not in self._loaded.get(cls, {}):
                yield row  # type: ignore[misc]

    def knows(self, cls: type[Row], key: Key) -> bool:
        """Say whether a key has been looked up."""
        return key in self._loaded.get(cls, ()) or key in self._rows.get(cls, ())

    def fact(self, name: str, key: Key) -> Any:
        """Return something counted from live rows (active jobs of a wallet, tail of a queue, …)."""
        try:
            return self.facts[name, key]
        except KeyError:
            raise Missing(name, key) from None

    # -- writing

    def put(self, row: Row) -> None:
        """Replace or add a row."""
        rows = self._rows.setdefault(type(row), {})
        key = key_of(row)
        if key in rows:
            before = rows[key]
            self._undo.append(lambda: rows.__setitem__(key, before))
        else:
            self._undo.append(lambda: rows.pop(key))
        rows[key] = row

    def append(self, row: Row) -> None:
        """Add a row that will never change: ledger entries and documents."""
        self._appended.append(row)
        self._undo.append(self._appended.pop)

    def set_fact(self, name: str, key: Key, value: Any) -> None:
        """Keep a counted fact true while the batch goes on."""
        before = self.facts.get((name, key))
        self._undo.append(lambda: self.facts.__setitem__((name, key), before))
        self.facts[name, key] = value

    def purge(self, job_id: str) -> None:
        """Drop a deleted job's documents."""
        self.purged.append(job_id)
        self._undo.append(self.purged.pop)

    def emit(
        self, job: Job, type_: str, actor: Actor, *,
        entity_id: str | None = None, source: str | None = None, target: str | None = None, **data: Any,
    ) -> None:  # fmt: skip
        """Write down a fact about a job, with the next number of its own."""
        before = self._seqs.get(job.id)
        seq = (job.seq if before is None else before) + 1
        self._seqs[job.id] = seq
        at = max(self.now, job.updated_at)
        body = encode(data) if data else None
        self._events.append(Event(job.id, seq, job.tenant, job.run, at, type_, entity_id, source, target, actor, body))

        def undo() -> None:
            self._events.pop()
            if before is None:
                del self._seqs[job.id]
            else:
                self._seqs[job.id] = before

        self._undo.append(undo)

    # -- the end of a command, and of the batch

    def begin(self) -> None:
        """Forget how to undo what earlier commands did: they stand."""
        self._undo.clear()

    def undo(self) -> None:
        """Take back everything since `begin`."""
        while self._undo:
            self._undo.pop()()

    def writes(self) -> Iterator[tuple[type[Row], list[Row], list[Row]]]:
        """Yield each table's new and changed rows."""
        for job_id, seq in self._seqs.items():
            job = self.get(Job, job_id)
            self._rows.setdefault(Job, {})[job_id] = replace(job, seq=seq, updated_at=max(self.now, job.updated_at))
        for cls, rows in self._rows.items():
            loaded = self._loaded.get(cls, {})
            new: list[Row] = []
            changed: list[Row] = []
            for key, row in rows.items():
                before = loaded.get(key)
                if row is not None and row != before:
                    (new if before is None else changed).append(row)
            if new or changed:
                yield cls, new, changed
        appended: dict[type[Row], list[Row]] = {}
        for row in (*self._appended, *self._events):
            appended.setdefault(type(row), []).append(row)
        for cls, rows_ in appended.items():
            yield cls, rows_, []
