"""The working set: the rows that the commands of one batch read and change.

Decisions read rows from it and put changed rows back, so that a command sees what earlier commands of its batch did.
A row that is not loaded raises `NotLoaded`; the engine loads it and runs the decision again. The changes of a refused
command are undone and do not affect the other commands.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.model.graph_rules_protocol import NO_GRAPHS, GraphRules
from callsheet.core.model.rows import (
    ROWS,
    Audit,
    Document,
    Event,
    File,
    Job,
    JobFile,
    LedgerEntry,
    Row,
    Task,
    Worker,
    WorkflowFile,
)
from callsheet.core.model.state_machines import Actor
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.core.prefetched_facts import Fact, Key, Line, Need

R = TypeVar("R", bound=Row)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_FactKey = tuple[Fact[Any, Any], Key]


class _Absent:
    """Marks a key that is not loaded."""

    def __bool__(self) -> bool:
        return False


_ABSENT = _Absent()
_POP = object()
_POP_EVENT = object()
encode_bytes = msgspec.json.Encoder(order="deterministic").encode
"""Encodes JSON deterministically, as bytes."""
_encode_event_data = msgspec.json.Encoder().encode


CACHED_ROWS = tuple(
    row for row in ROWS if row not in {Event, LedgerEntry, Document, File, JobFile, WorkflowFile, Worker, Audit}
)
"""Rows that are kept for the next batch if no other process can write in between."""


class NotLoaded(Exception):  # noqa: N818 - a request to the engine, not an error
    """A decision needs rows that the batch has not loaded."""

    def __init__(self, need: Need, key: Key) -> None:
        super().__init__(f"{need} {key}")
        self.need = need
        self.key = key


def encode(value: Any) -> str:
    """Encode JSON deterministically, as text."""
    return encode_bytes(value).decode()


class QueueExit(NamedTuple):
    """A task that has left its queue, with the turn that it had."""

    line: Line
    task_id: str
    rank: int
    started: bool


class WorkingSet:
    """Rows by table and key, which of them are new or changed, and facts derived from rows."""

    def __init__(
        self, now: int, limits: Limits, *, graph_rules: GraphRules = NO_GRAPHS, retrying: bool = False,
        previous: "WorkingSet | None" = None,
    ) -> None:  # fmt: skip
        self.now = now
        self.limits = limits
        self.graph_rules = graph_rules
        self.retrying = retrying
        """The engine retries these commands: a decision must look for what it has already committed."""
        self.facts: dict[_FactKey, Any] = {}
        self._cached_facts: dict[_FactKey, Any] = {}
        self.woken_kinds: set[str] = set()
        """Kinds that have new claimable tasks."""
        self.queue_exits: list[QueueExit] = []
        """Tasks that have left their queue."""
        self.purged_job_ids: list[str] = []
        """Jobs whose documents are deleted with this batch."""
        self.discarded_outputs: list[DiscardedOutputs] = []
        self._rows: dict[type[Row], dict[Key, Row | None]] = {row: {} for row in ROWS}
        if previous is not None:
            self._rows |= {row: previous._rows[row] for row in CACHED_ROWS}  # noqa: SLF001 - the same class
            self._cached_facts = previous._cached_facts  # noqa: SLF001
            self._cached_facts.update(previous._facts_to_cache())  # noqa: SLF001
        self._originals: dict[type[Row], dict[Key, Row | None]] = {row: {} for row in ROWS}
        """Rows as they were before this batch; None for new ones."""
        self._absent: list[tuple[type[Row], Key]] = []
        self._appended: dict[type[Row], list[Row]] = {}
        self._events: list[Event] = []
        self._seqs: dict[str, int] = {}
        self._undo: list[tuple[Any, Key, Any]] = []

    def _facts_to_cache(self) -> Iterator[tuple[_FactKey, Any]]:
        """Yield the facts to keep. Drops absent keys first: callers choose them, so they could fill the memory."""
        for cls, key in self._absent:
            if self._rows[cls].get(key, _ABSENT) is None:
                del self._rows[cls][key]
        for (fact, key), value in self.facts.items():
            if fact.cached and (
                fact not in facts.CURRENT_WORKFLOW_FACTS or self.facts.get((facts.CURRENT_DEFINITION, key)) is not None
            ):
                yield (fact, key), value

    # -- reading

    def load(self, cls: type[R], rows: Iterable[R], wanted: Iterable[Key] = ()) -> None:
        """Add rows from the database; a wanted key without a row is recorded as absent."""
        rows_by_key = self._rows[cls]
        key_of = cls.key_of
        for row in rows:
            rows_by_key.setdefault(key_of(row), row)
        for key in wanted:
            if key not in rows_by_key:
                rows_by_key[key] = None
                self._absent.append((cls, key))

    def find(self, cls: type[R], key: Key) -> R | None:
        """Return a row, or None if it does not exist."""
        try:
            return self._rows[cls][key]  # type: ignore[return-value]
        except KeyError:
            raise NotLoaded(cls, key) from None

    def get(self, cls: type[R], key: Key) -> R:
        """Return a row that must exist because another row refers to it."""
        try:
            row = self._rows[cls][key]
        except KeyError:
            raise NotLoaded(cls, key) from None
        if row is None:
            raise LookupError(f"{cls.TABLE} {key!r} is referred to and does not exist")
        return row  # type: ignore[return-value]

    def loaded(self, cls: type[R]) -> list[R]:
        """Return the loaded rows of a table."""
        return [row for row in self._rows[cls].values() if row is not None]  # type: ignore[misc]

    def is_loaded(self, cls: type[Row], key: Key) -> bool:
        """Return whether a key has been loaded, present or absent."""
        return key in self._rows[cls]

    def not_loaded(self, cls: type[Row], keys: Iterable[Key]) -> list[Key]:
        """Return the keys that have not been loaded."""
        rows_by_key = self._rows[cls]
        return [key for key in keys if key not in rows_by_key]

    def get_fact(self, fact: Fact[K, V], key: K) -> V:
        """Return a fact, such as the number of active jobs of a wallet."""
        try:
            value: V = self.facts[fact, key]
        except KeyError:
            value = self._cached_facts.get((fact, key), _ABSENT)
        if value is _ABSENT:
            raise NotLoaded(fact, key)
        return value

    def has_fact(self, fact: Fact[K, Any], key: K) -> bool:
        """Return whether a fact is loaded."""
        return (fact, key) in self.facts or (fact, key) in self._cached_facts

    def find_fact(self, fact: Fact[K, V], key: K) -> V | None:
        """Return a fact, or None if it is not loaded."""
        found: V | None = self.facts.get((fact, key), _ABSENT)
        return self._cached_facts.get((fact, key)) if found is _ABSENT else found

    def change_time(self, row: Row, *others: Row) -> int:
        """Return the time of a change: now, but never before the last change of the rows that it changes.

        The database's clock may have been set back, and the time of another server may be ahead.
        """
        at = max(self.now, row.newest_time())
        for other in others:
            at = max(at, other.newest_time())
        return at

    def command_time(self) -> int:
        """Return the time of the current command: now, or the newest time of the rows that it has changed."""
        put = (target.get(key) for target, key, _ in self._undo if isinstance(target, dict))
        return max([self.now, *(row.newest_time() for row in put if isinstance(row, Row))])

    def stored_job(self, job: Job) -> Job:
        """Return a job as this batch will store it, with the sequence number and time of its last event."""
        job = self.get(Job, job.id) if self.is_loaded(Job, job.id) else job
        seq = self._seqs.get(job.id, job.seq)
        return job if seq == job.seq else replace(job, seq=seq, updated_at=self.change_time(job))

    # -- writing

    def put(self, row: Row) -> None:
        """Replace or add a row."""
        cls = row.__class__
        key = cls.key_of(row)
        rows = self._rows[cls]
        before = rows.get(key, _ABSENT)
        self._undo.append((rows, key, before))
        rows[key] = row
        originals = self._originals[cls]
        if key not in originals:
            originals[key] = None if before is _ABSENT else before  # type: ignore[assignment]

    def append(self, row: Row) -> None:
        """Add a row that never changes, such as a ledger entry or a document.

        Audit lines are written last: they get their place in the chain when the batch is stored.
        """
        rows = self._appended.setdefault(row.__class__, [])
        rows.append(row)
        self._undo.append((rows, None, _POP))

    @property
    def audit_lines(self) -> list[Audit]:
        """The audit lines of the batch. They can be replaced in place."""
        return self._appended.get(Audit, [])  # type: ignore[return-value]

    def set_fact(self, fact: Fact[K, V], key: K, value: V) -> None:
        """Update a fact for the commands that follow in this batch."""
        self._undo.append((self.facts, (fact, key), self.facts.get((fact, key), _ABSENT)))
        self.facts[fact, key] = value

    def purge(self, job_id: str) -> None:
        """Delete the documents of a job."""
        self.purged_job_ids.append(job_id)
        self._undo.append((self.purged_job_ids, None, _POP))

    def leave_queue(self, task: Task, *, started: bool = False) -> None:
        """Record that a waiting task has started or was withdrawn. Its tenant's turns are settled with the batch."""
        if task.ready:
            self.queue_exits.append(QueueExit((task.queue, task.priority, task.tenant), task.id, task.rank, started))
            self._undo.append((self.queue_exits, None, _POP))

    def discard_outputs(self, outputs: DiscardedOutputs) -> None:
        """Delete objects of an ended attempt after the commit."""
        self.discarded_outputs.append(outputs)
        self._undo.append((self.discarded_outputs, None, _POP))

    def emit(
        self, job: Job, type_: str, actor: Actor, data: Mapping[str, Any] | None = None, *,
        entity_id: str | None = None, source: str | None = None, target: str | None = None,
    ) -> None:  # fmt: skip
        """Append an event to a job, with the job's next sequence number."""
        seqs, events = self._seqs, self._events
        seq = seqs.get(job.id, job.seq) + 1
        change_time = self.change_time(job)
        body = _encode_event_data(data).decode() if data else None
        events.append(
            Event(job.id, seq, job.tenant, job.run, change_time, type_, entity_id, source, target, actor, body)
        )
        seqs[job.id] = seq
        self._undo.append((events, job.id, _POP_EVENT))

    def __len__(self) -> int:
        """Count the rows and facts that the next batch would keep."""
        return len(self._cached_facts) + sum(len(self._rows[row]) for row in CACHED_ROWS)

    # -- the end of a command, and of the batch

    def begin(self) -> None:
        """Start a savepoint: `undo` restores the state of this moment."""
        self._undo.clear()

    @property
    def changed(self) -> bool:
        """Whether anything changed since `begin`."""
        return bool(self._undo)

    def undo(self) -> None:
        """Undo everything since `begin`."""
        while self._undo:
            target, key, before = self._undo.pop()
            if before is _POP:
                target.pop()
            elif before is _POP_EVENT:
                self._seqs[target.pop().subject] -= 1
            elif before is _ABSENT:
                del target[key]
            else:
                target[key] = before

    def take_appended(self) -> Iterator[tuple[type[Row], list[Row]]]:
        """Yield and remove the appended rows of decided commands, so that they can be written early."""
        self.begin()
        for cls, appended in self._appended.items():
            if appended and cls is not Audit:
                yield cls, appended[:]
                appended.clear()
        if self._events:
            yield Event, list[Row](self._events)
            self._events.clear()

    def writes(self) -> Iterator[tuple[type[Row], list[Row], list[Row]]]:
        """Yield each table's new and changed rows."""
        jobs = self._rows[Job]
        for job_id, seq in self._seqs.items():
            job = jobs.get(job_id)
            if not isinstance(job, Job) or job.seq == seq:
                continue  # its events were undone
            self._originals[Job].setdefault(job_id, job)
            jobs[job_id] = self.stored_job(job)
        for cls, originals in self._originals.items():
            rows = self._rows[cls]
            new: list[Row] = []
            changed: list[Row] = []
            for key, before in originals.items():
                row = rows.get(key)
                if row is not None and row is not before:
                    (new if before is None else changed).append(row)
            if new or changed:
                yield cls, new, changed
        yield from ((cls, rows, []) for cls, rows in self.take_appended())
        if lines := self._appended.pop(Audit, None):
            yield Audit, lines, []
