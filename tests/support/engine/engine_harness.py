"""An engine in virtual time with short methods, so that a test reads like a scenario.

By default the tenant is acme, the user ada, the workflow sketch and the worker w1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from callsheet.core.model import commands
from callsheet.core.model.commands import (
    Balance,
    Command,
    HeartbeatResult,
    JobState,
    Lease,
    LeasedTask,
    SubmitResult,
    TaskState,
)
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import ROWS, Job, Run, Stage, Task, Wallet
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.engine import Engine
from callsheet.engine.engine import database_for
from callsheet.engine.gate_plugins import Gate
from callsheet.engine.loops.sweeper import Sweeper
from callsheet.settings import Settings
from callsheet.store.connection import Connection
from callsheet.store.migrate import dialect_of, migrate
from callsheet.store.verify import Violation, check
from tests.support.doubles.virtual_clock import VirtualClock, VirtualClockDatabase

FAST_GIVE_UP = Settings(database_retry_seconds=5)
"""A command that cannot succeed fails after 5 seconds."""
TENANT, USER, WORKFLOW, WORKER = "acme", "ada", "sketch", "w1"


def stage(name: str = "draw", kind: str | None = None, **fields: Any) -> StageSpec:
    """Return a stage; its kind is its name by default."""
    return StageSpec(name=name, kind=kind or name, **fields)


class EngineHarness:
    """One engine on one database; a second harness on the same database and clock is a second server."""

    def __init__(
        self,
        database_url: str,
        settings: Settings | None = None,
        *,
        gates: Sequence[Gate] = (),
        clock: VirtualClock | None = None,
    ) -> None:
        self.database_url = database_url
        self.clock = clock or VirtualClock()
        self.settings = settings or FAST_GIVE_UP
        self.database = VirtualClockDatabase(database_for(database_url, self.settings), self.clock)
        connection = self.database.connect()
        try:
            migrate(connection, dialect_of(self.database.name))
        finally:
            connection.close()
        self.engine = Engine(self.database, self.settings, gates=gates)
        self.reads = self.engine.reads
        self.sweeper = Sweeper(self.engine)
        self.engine.start()

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- commands

    def do(self, command: Command) -> Any:
        return self.engine.execute(command)

    def expect_refusal(self, command: Command) -> Refusal:
        """Return the refusal of a command; fail if it was accepted."""
        result = self.engine.execute_many([command])[0]
        if not isinstance(result, Refusal):
            raise AssertionError(f"{command} was not refused: {result!r}")  # noqa: TRY004 - the scenario is wrong
        return result

    # -- setup

    def tenant(self, name: str = TENANT, **fields: Any) -> None:
        self.do(commands.PutTenant(tenant=name, **fields))

    def workflow(self, name: str = WORKFLOW, **definition: Any) -> None:
        """Store a definition; by default one stage with one task of kind draw for 5 credits."""
        definition.setdefault("stages", [stage()])
        definition.setdefault("price", 5)
        self.do(commands.PutWorkflow(definition=WorkflowDefinition(name=name, **definition)))

    def top_up(self, amount: int, user: str = USER, tenant: str = TENANT, key: str = "") -> Balance:
        balance: Balance = self.do(commands.TopUp(tenant=tenant, user=user, amount=amount, idempotency_key=key))
        return balance

    # -- users

    def submission(self, workflow: str = WORKFLOW, user: str = USER, **fields: Any) -> commands.Submit:
        fields.setdefault("tenant", TENANT)
        return commands.Submit(workflow=workflow, user=user, **fields)

    def submit(self, workflow: str = WORKFLOW, user: str = USER, **fields: Any) -> SubmitResult:
        submitted: SubmitResult = self.do(self.submission(workflow, user, **fields))
        return submitted

    def submit_job(self, workflow: str = WORKFLOW, user: str = USER, **fields: Any) -> str:
        """Submit a job and return its id."""
        return self.submit(workflow, user, **fields).job_id

    def cancel(self, job_id: str, tenant: str = TENANT, **fields: Any) -> JobState:
        state: JobState = self.do(commands.Cancel(tenant=tenant, job_id=job_id, **fields))
        return state

    def pause(self, job_id: str) -> JobState:
        state: JobState = self.do(commands.Pause(tenant=TENANT, job_id=job_id))
        return state

    def resume(self, job_id: str) -> JobState:
        state: JobState = self.do(commands.Resume(tenant=TENANT, job_id=job_id))
        return state

    def approve(self, job_id: str, stage_no: int, approver: str = "bea") -> JobState:
        key = self.stages(job_id)[stage_no - 1].id
        state: JobState = self.do(
            commands.Approve(tenant=TENANT, job_id=job_id, stage_id=key, approver=approver),
        )
        return state

    def retry(self, job_id: str, **fields: Any) -> JobState:
        fields.setdefault("actor", "admin")
        state: JobState = self.do(commands.Retry(tenant=TENANT, job_id=job_id, **fields))
        return state

    def delete(self, job_id: str) -> JobState:
        state: JobState = self.do(commands.Delete(tenant=TENANT, job_id=job_id))
        return state

    # -- workers

    def claim(
        self, *kinds: str, count: int = 1, worker: str = WORKER, lease_seconds: int | None = None
    ) -> list[LeasedTask]:
        command = commands.Claim(worker_id=worker, kinds=kinds or ("draw",), count=count, lease_seconds=lease_seconds)
        leased: list[LeasedTask] = self.do(command)
        return leased

    def claim_one(self, *kinds: str, worker: str = WORKER, lease_seconds: int | None = None) -> Lease:
        """Claim exactly one task and return its lease."""
        (leased,) = self.claim(*kinds, worker=worker, lease_seconds=lease_seconds)
        return leased.lease

    def heartbeat(self, lease: Lease, **fields: Any) -> HeartbeatResult:
        heartbeat: HeartbeatResult = self.do(commands.Heartbeat(lease=lease, **fields))
        return heartbeat

    def complete(self, lease: Lease, output: Any = None, delivered: int = 100) -> TaskState:
        state: TaskState = self.do(commands.Complete(lease=lease, output=output, delivered=delivered))
        return state

    def fail(self, lease: Lease, message: str = "It broke.", *, retryable: bool | None = False) -> TaskState:
        state: TaskState = self.do(commands.Fail(lease=lease, message=message, retryable=retryable))
        return state

    def requeue(self, lease: Lease, reason: str = "spot notice") -> TaskState:
        state: TaskState = self.do(commands.Requeue(lease=lease, reason=reason))
        return state

    def finish(self, job_id: str, *kinds: str, output: Any = None) -> None:
        """Claim and complete tasks until the job ends."""
        while self.job(job_id).finished_at is None:
            self.complete(self.claim_one(*kinds), output)

    # -- time

    def advance(self, by_seconds: float) -> int:
        """Advance the virtual time and sweep once; return how many rows were due."""
        self.clock.advance(by_seconds)
        return self.sweeper.run_once(self.reads.now())

    # -- queries

    def job(self, job_id: str, tenant: str = TENANT) -> Job:
        return self.reads.job(tenant, job_id)

    def status(self, job_id: str) -> str:
        return self.job(job_id).status

    def runs(self, job_id: str) -> list[Run]:
        return self.reads.runs(job_id)

    def stages(self, job_id: str) -> list[Stage]:
        return self.reads.stages(job_id)

    def tasks(self, job_id: str) -> list[Task]:
        return self.reads.tasks(job_id)

    def wallet(self, user: str = USER, tenant: str = TENANT) -> Wallet:
        return self.reads.wallet(tenant, user)

    def balance(self, user: str = USER, tenant: str = TENANT) -> int:
        return self.wallet(user, tenant).balance

    def ledger(self, job_id: str | None = None, user: str = USER, tenant: str = TENANT) -> list[tuple[str, int, int]]:
        """Return kind, amount and consumed of the entries of a wallet: of one job, or all."""
        entries = self.reads.ledger(tenant, user)
        return [(e.kind, e.amount, e.consumed) for e in entries if job_id is None or e.job_id == job_id]

    def events(self, job_id: str) -> list[str]:
        return [event.type for event in self.reads.events(job_id)]

    def moves(self, job_id: str) -> list[tuple[str | None, str | None]]:
        """Return the source and target status of each move of the job."""
        events = [event for event in self.reads.events(job_id) if event.type.startswith("job.") and event.target]
        return [(event.source, event.target) for event in events]

    def find_violations(self) -> list[Violation]:
        """Return the invariants that `verify` finds broken."""
        with self._read_connection() as connection:
            return check(connection, connection.now())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run plain SQL and return the rows."""
        with self._read_connection() as connection:
            return [tuple(row) for row in connection.run(sql)]

    def snapshot(self) -> dict[str, list[str]]:
        """Return every row of every table: equal snapshots mean that nothing changed."""
        with self._read_connection() as connection:
            return {row.TABLE: _rows(connection, row.TABLE) for row in ROWS}

    @contextmanager
    def _read_connection(self) -> Iterator[Connection]:
        connection = self.database.connect(reading=True)
        try:
            yield connection
        finally:
            connection.close()


def _rows(connection: Connection, table: str) -> list[str]:
    return sorted(repr(tuple(row)) for row in connection.run(f"SELECT * FROM {table}"))


OpenHarness = Callable[..., EngineHarness]


def set_up(harness: EngineHarness) -> EngineHarness:
    """Create tenant acme and workflow sketch, and give ada 100 credits."""
    harness.tenant()
    harness.workflow()
    harness.top_up(100, key="welcome")
    return harness
