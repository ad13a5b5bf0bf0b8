"""Registered workers: they register at every start, lose answers, restart, and may share an id with another process."""

from typing import Any

from msgspec.structs import replace

from callsheet.core.model import commands as c
from callsheet.core.model.errors import InvalidWorkerToken, Refusal
from tests.sim.actors.provider import FakeProvider
from tests.sim.actors.workers import ActiveTask, Worker
from tests.sim.environment.blobs import SimulatedBlobs
from tests.sim.environment.network import Request, ignore_answers
from tests.sim.environment.scenario import KINDS
from tests.sim.environment.server import Admission
from tests.sim.environment.simulation_context import World

LOCAL_PROVIDER = "comfyui"


class LeakedLeases:
    """Recent leases of all registered workers, which another worker may misuse."""

    def __init__(self) -> None:
        self.held_task_ids: list[tuple[str, ActiveTask]] = []

    def add(self, owner: str, task: ActiveTask) -> None:
        self.held_task_ids = [*self.held_task_ids[-5:], (owner, task)]


class FleetWorker(Worker):
    """A registered worker. Another process may use the same id."""

    def __init__(
        self, world: World, name: str, provider: FakeProvider, blobs: SimulatedBlobs, leaked_leases: LeakedLeases
    ) -> None:
        super().__init__(world, name, provider, blobs)
        self.report_as = name
        self.session: str | None = None
        self._past_sessions: list[str] = []
        """The sessions of its earlier starts."""
        self._leaked_leases = leaked_leases
        self._concurrency = world.random.choice((1, 2, 2, 4))
        self._silent_steps = 0
        self._running = False
        """Its token was replaced while it ran, and it registers again with its tasks."""

    @property
    def needs_registration(self) -> bool:
        return self.session is None

    def _next_request(self) -> Request | None:
        if self._silent_steps:
            self._silent_steps -= 1
            return None
        roll = self._random.random()
        if roll < 0.04:
            self._restart()
        if roll < (0.3 if self._world.focus.late_reports else 0.14) and (misbehavior := self._misbehave()):
            return misbehavior
        if self.session is None:
            return self._register(self._kinds, self._concurrency)
        if roll < 0.155:
            return self._deregister(self.session)
        if roll < 0.165:
            self._world.log(f"  {self.name} sends nothing for some steps")
            self._silent_steps = self._random.choice((3, 9))
            return None
        if self._active_tasks and roll < 0.75:
            task = self._random.choice(self._active_tasks)
            local = task.kind in {"draw", "cut"} and task.report is None
            return self._record_ref(task) if local and self._random.random() < 0.25 else self._work(task)
        return self.claim(self._random.choice((1, 1, 2, 3)))

    def _restart(self) -> None:
        """Restart with the same id; late reports of the old process may follow."""
        self._world.log(f"  {self.name} restarts")
        self._stale_tasks.extend(self._active_tasks)
        self._active_tasks.clear()
        self._running = False
        self._forget_session()

    def _forget_session(self) -> None:
        if self.session is not None:
            self._past_sessions.append(self.session)
        self.session = None

    # -- registration

    def _register(self, kinds: tuple[str, ...], concurrency: int) -> Request:
        approved = not self._world.approval_required
        register = c.Register(
            worker_id=self.name,
            kinds=kinds,
            token_hash="",
            concurrency=concurrency,
            approved=approved,
            requested_by="fleet",
            held_task_ids=tuple(task.lease.task_id for task in self._active_tasks) if self._running else (),
        )
        return Request([register], self._on_registered)

    def _on_registered(self, answers: list[Any] | None) -> None:
        """Store the session; the registration has requeued the earlier tasks of this worker, except those it runs."""
        answer = answers[0] if answers else None
        if isinstance(answer, Admission):
            self.session = answer.session
            if not self._running:
                self._stale_tasks.extend(self._active_tasks)
                self._active_tasks.clear()
            self._running = False

    def _deregister(self, session: str) -> Request:
        def on_reply(answers: list[Any] | None) -> None:
            if answers and answers[0] is not None:
                self._restart()

        return Request(
            [c.Deregister(worker_id=self.name, token_hash=session, reason="shutdown", requested_by=self.name)],
            on_reply,
        )

    def replace_session(self, session: str) -> None:
        """Take the new session after a rotation; sometimes it does not arrive."""
        if self.session is not None and not self._world.fault_occurs(0.3):
            self._past_sessions.append(self.session)
            self.session = session

    # -- claims

    def claim(self, count: int, lease_seconds: int | None = None, *, every_kind: bool = False) -> Request:
        if self.session is None:
            return self._register(KINDS if every_kind else self._kinds, count if every_kind else self._concurrency)
        if not self._world.faults_stopped:
            lease_seconds = self._random.choice((None, None, None, 8, 40))
        return self._claim(self.session, count, lease_seconds, KINDS if every_kind else self._kinds)

    def _claim(self, session: str, count: int, lease_seconds: int | None, kinds: tuple[str, ...]) -> Request:
        sent = self._world.faults_stopped or self._random.random() < 0.8
        held_task_ids = tuple(task.lease.task_id for task in self._active_tasks) if sent else None
        claim = c.Claim(
            worker_id=self.name,
            kinds=kinds,
            count=count,
            lease_seconds=lease_seconds,
            token_hash=session,
            held_task_ids=held_task_ids,
        )
        return Request([claim], self._on_claimed)

    def _on_claimed(self, answers: list[Any] | None) -> None:
        if answers and isinstance(answers[0], InvalidWorkerToken):
            if self._active_tasks and self._random.random() < 0.5:
                self._running = True
                self._forget_session()
            else:
                self._restart()
        super()._on_claimed(answers)
        if answers and isinstance(answers[0], list):
            for task in self._active_tasks[-len(answers[0]) :] if answers[0] else ():
                self._leaked_leases.add(self.name, task)

    def _record_ref(self, task: ActiveTask) -> Request:
        ref = f"prompt-{self._random.randrange(3)}"
        sent = c.RecordSubmission(lease=task.lease, provider=LOCAL_PROVIDER, ref=ref, worker_id=self.report_as)
        return Request([sent], lambda answers: self._on_ref_recorded(task, answers))

    def _on_ref_recorded(self, task: ActiveTask, answers: list[Any] | None) -> None:
        task.ref_recorded = True
        if answers and isinstance(answers[0], Refusal) and task in self._active_tasks:
            self._active_tasks.remove(task)
            self._stale_tasks.append(task)

    # -- misbehavior

    def _misbehave(self) -> Request | None:
        """Use an old session, report on a task of another worker, or repeat a report."""
        roll = self._random.random()
        if roll < 0.4 and self._past_sessions:
            session = self._random.choice(self._past_sessions[-3:])
            if self._random.random() < 0.2:
                return Request(
                    [c.Deregister(worker_id=self.name, token_hash=session, reason="late", requested_by=self.name)],
                    ignore_answers,
                )
            claim = self._claim(session, 1, None, self._kinds).commands
            return Request([replace(command, held_task_ids=()) for command in claim], ignore_answers)
        others = [
            task for owner, task in self._leaked_leases.held_task_ids if owner != self.name and not task.provider_called
        ]
        if roll < 0.7 and others:
            return self._stale_report(self._random.choice(others))
        return self._repeat_stale() if self._stale_tasks or self._sent_reports else None

    # -- recovery

    def restart_cleanly(self) -> None:
        """Restart as a worker without faults."""
        self._waiting = False
        self._restart()
