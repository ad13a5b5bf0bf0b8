"""What a decision needs in addition to its command: rows, and facts that are derived from rows.

A fact is a count, a list of ids or a lock. Each fact is one typed constant: the command registry, the prefetch and the
working set all use the constant, so a wrong name, key or value is a type error.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, overload

from callsheet.core.model.rows import Job, Row
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.core.policy.input_schema.validator import InputSchema

Key = Hashable
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Fact(Generic[K, V]):
    """A value derived from rows, by key; `cached` facts are kept for the next batch."""

    __slots__ = ("cached", "name")

    def __init__(self, name: str, *, cached: bool = False) -> None:
        self.name = name
        self.cached = cached

    def __repr__(self) -> str:
        return self.name


Line: TypeAlias = tuple[str, int, str]
"""Queue, priority and tenant: tasks of one line exchange their turns."""


class QueueTail(NamedTuple):
    """The ranks of the first ready task of all, and of the last one of the tenant or user."""

    head: int | None
    last: int | None


Need: TypeAlias = type[Row] | Fact[Any, Any]
"""A table or a fact."""


class Needs:
    """The keys to load, by table or fact."""

    __slots__ = ("keys",)

    def __init__(self) -> None:
        self.keys: dict[Need, set[Any]] = {}

    @overload
    def add(self, need: type[Row], key: Key) -> None: ...
    @overload
    def add(self, need: Fact[K, Any], key: K) -> None: ...
    def add(self, need: Need, key: Key) -> None:
        keys = self.keys.get(need)
        if keys is None:
            self.keys[need] = {key}
        else:
            keys.add(key)

    @overload
    def update(self, need: type[Row], keys: Iterable[Key]) -> None: ...
    @overload
    def update(self, need: Fact[K, Any], keys: Iterable[K]) -> None: ...
    def update(self, need: Need, keys: Iterable[Any]) -> None:
        self.keys.setdefault(need, set()).update(keys)

    def move(self, need: Need, target: "Needs") -> None:
        """Move the keys of one table or fact to other needs."""
        if keys := self.keys.pop(need, None):
            target.update(need, keys)


# -- workflows

CURRENT_DEFINITION: Final[Fact[str, WorkflowDefinition | None]] = Fact("current_definition", cached=True)
"""By workflow name: its current definition."""
CURRENT_VERSION: Final[Fact[str, int]] = Fact("current_version", cached=True)
"""By workflow name: its current version; 0 if there is no such workflow."""
INPUT_SCHEMA: Final[Fact[str, InputSchema | None]] = Fact("input_schema", cached=True)
"""By workflow name: the compiled input schema of its current version, or None."""
CURRENT_WORKFLOW_FACTS: Final[frozenset[Fact[str, Any]]] = frozenset(
    {CURRENT_DEFINITION, CURRENT_VERSION, INPUT_SCHEMA}
)
DEFINITION: Final[Fact[tuple[str, int], WorkflowDefinition]] = Fact("definition", cached=True)
"""By workflow name and version."""
QUEUE_COUNT: Final[Fact[str, int]] = Fact("queue_count")
"""By workflow name: how many queues its jobs use."""

# -- jobs

JOB_BY_IDEMPOTENCY_KEY: Final[Fact[str, Job | None]] = Fact("job_by_idempotency_key")
RUN_EXISTS: Final[Fact[tuple[str, str], bool]] = Fact("run_exists")
"""By job id and the id of the command that opened the run."""
ACTIVE_JOB_COUNT: Final[Fact[str, int]] = Fact("active_job_count")
"""By wallet id: jobs that have not ended, counted up to a number that every limit of active jobs is below."""
STAGES_OF_JOB: Final[Fact[str, Sequence[str]]] = Fact("stages_of_job", cached=True)
TASKS_OF_STAGE: Final[Fact[str, Sequence[str]]] = Fact("tasks_of_stage")
OPEN_TASKS_OF_STAGE: Final[Fact[str, Sequence[str]]] = Fact("open_tasks_of_stage")
QUEUE_TAIL: Final[Fact[Line, QueueTail]] = Fact("queue_tail")
"""By line: the first rank of the queue with this priority, and the last one of the tenant."""
USER_TAIL: Final[Fact[tuple[str, int, str, str], QueueTail]] = Fact("user_tail")
"""By line and user: the first `user_rank` of the tenant, and the last one of the user."""
FIRST_TURNS: Final[Fact[Line, tuple[str, ...]]] = Fact("first_turns")
"""By line: the tasks with the first turns of the tenant that a claim may use, locked and loaded."""
LAST_TURNS: Final[Fact[Line, tuple[str, ...]]] = Fact("last_turns")
"""By line: the tasks with the last turns of the tenant, locked and loaded."""

# -- claims and workers

CANDIDATE_TASK_IDS: Final[Fact[tuple[str, ...], tuple[str, ...]]] = Fact("candidate_task_ids")
"""By the kinds of a claim: tasks that the claim may lease, best first."""
NEXT_CANDIDATE: Final[Fact[tuple[str, ...], int]] = Fact("next_candidate")
"""By the kinds of a claim: the index of the first candidate that no claim of the batch has considered."""
HAS_RATE_LIMIT: Final[Fact[str, bool]] = Fact("has_rate_limit")
"""By queue: whether a rate limit counts its starts."""
LEASED_TASK_IDS: Final[Fact[str, tuple[str, ...]]] = Fact("leased_task_ids")
"""By worker id: the tasks that it has leased, neither locked nor loaded."""
TASKS_OF_WORKER: Final[Fact[str, tuple[str, ...]]] = Fact("tasks_of_worker")
"""By worker id: the tasks that it has leased, locked with their jobs and loaded."""
WORKER_COUNT: Final[Fact[str, int]] = Fact("worker_count")
"""By fleet: registered workers."""

# -- files

FILE_LINKS_OF_JOB: Final[Fact[str, Sequence[tuple[str, str]]]] = Fact("file_links_of_job")
"""By job id: the keys of its rows in `job_file`, for the files that its inputs refer to."""
OUTPUT_FILES_OF_JOB: Final[Fact[str, Sequence[str]]] = Fact("output_files_of_job")
NEW_FILES_OF_JOB: Final[Fact[str, Sequence[str]]] = Fact("new_files_of_job")
"""By job id: the output files that earlier commands of the batch have stored. Absent if there are none."""
NEEDED_BY: Final[Fact[str, str | None]] = Fact("needed_by")
"""By file id: the workflow that names the file, "" if an open job needs it, None if nothing does."""
NEEDED_BY_OTHERS: Final[Fact[str, str | None]] = Fact("needed_by_others")
"""Like `NEEDED_BY`, but without the job that created the file."""
PENDING_UPLOAD_COUNT: Final[Fact[tuple[str, str], int]] = Fact("pending_upload_count")
"""By tenant and user: uploads whose bytes have not arrived, counted up to `uploads_pending_max`."""

# -- provider calls

CALL_BY_REFERENCE: Final[Fact[tuple[str, str | None], str | None]] = Fact("call_by_reference")
"""By provider and the provider's reference: the call's id."""
JOB_OF_CALL: Final[Fact[str, str | None]] = Fact("job_of_call")
WAITING_CALLBACKS: Final[Fact[str, Sequence[str]]] = Fact("waiting_callbacks")
"""By reference: callbacks that arrived before the reference was recorded."""

# -- money and keys

LEDGER_AMOUNT: Final[Fact[str, int | None]] = Fact("ledger_amount")
"""By idempotency key of a ledger entry: its amount, or None if there is no such entry."""
API_KEY_BY_SECRET: Final[Fact[str, str | None]] = Fact("api_key_by_secret")
"""By the hash of a secret: the id of its API key."""

# -- locks

REFERENCE_LOCK: Final[Fact[str, bool]] = Fact("reference_lock")
"""An exclusive lock on a name, for the rest of the transaction."""
TENANT_LOCK: Final[Fact[str, bool]] = Fact("tenant_lock")
"""An exclusive lock on a tenant's row, for the rest of the transaction."""
