"""Workers: they claim and report, stop responding, die, and report late with leases that they have lost."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from callsheet.blobs import object_keys
from callsheet.core.model import commands as c
from callsheet.core.model.errors import Refusal
from tests.sim.actors.provider import FakeProvider, NoAnswer, Refused
from tests.sim.environment.blobs import SimulatedBlobs
from tests.sim.environment.network import OnReply, Request, ignore_answers
from tests.sim.environment.scenario import KINDS, PROVIDER
from tests.sim.environment.simulation_context import World


class ActiveTask:
    """A lease of a worker, and the state of its work."""

    def __init__(self, leased: c.LeasedTask) -> None:
        self.lease = leased.lease
        self.kind = leased.kind
        self.tenant = leased.tenant
        self.report: c.Command | None = None
        """The report, which is repeated until it is answered."""
        self.intended = False
        self.ref_recorded = False
        self.provider_called = False
        self.ref: str | None = None
        self.announcement: c.AnnounceOutputs | None = None
        """Announces the output files of the report; sent with it, or before it."""


class Worker:
    """An unregistered worker; after a crash a new process continues with the same id."""

    report_as: str | None = None
    """The worker id in its reports, if it is registered."""

    def __init__(self, world: World, name: str, provider: FakeProvider, blobs: SimulatedBlobs) -> None:
        self._world = world
        self._random = world.random
        self.name = name
        self._provider = provider
        self._blobs = blobs
        self._kinds = world.random.choice((KINDS, KINDS, ("draw",), ("cut", "draw"), ("render",)))
        if world.focus.workflows:
            self._kinds = KINDS
        self._active_tasks: list[ActiveTask] = []
        self._stale_tasks: list[ActiveTask] = []
        self._sent_reports: list[c.Command] = []
        self._waiting = False

    @property
    def needs_registration(self) -> bool:
        """Whether it must register before it can claim."""
        return False

    def act(self) -> Request | None:
        """Send one request, and no other until it is answered."""
        request = None if self._waiting else self._next_request()
        if request is None:
            return None
        self._waiting = True
        return Request(request.commands, partial(self._on_reply, request.on_reply))

    def _on_reply(self, on_reply: OnReply, answers: list[Any] | None) -> None:
        self._waiting = False
        on_reply(answers)

    def _next_request(self) -> Request | None:
        roll = self._random.random()
        if roll < 0.03:
            self._world.log(f"  {self.name} dies")
            self._stale_tasks.extend(self._active_tasks)
            self._active_tasks.clear()
        if roll < (0.3 if self._world.focus.late_reports else 0.12) and (self._stale_tasks or self._sent_reports):
            return self._repeat_stale()
        if self._active_tasks and roll < 0.75:
            return self._work(self._random.choice(self._active_tasks))
        return self.claim(self._random.choice((1, 1, 2, 3)))

    def claim(self, count: int, lease_seconds: int | None = None, *, every_kind: bool = False) -> Request:
        if not self._world.faults_stopped:
            lease_seconds = self._random.choice((None, None, None, 8, 40))
        kinds = KINDS if every_kind else self._kinds
        return Request([c.Claim(worker_id=self.name, kinds=kinds, count=count, lease_seconds=lease_seconds)],
                       self._on_claimed)  # fmt: skip

    def _on_claimed(self, answers: list[Any] | None) -> None:
        if answers and isinstance(answers[0], list):
            self._active_tasks.extend(ActiveTask(leased) for leased in answers[0])

    # -- work

    def _work(self, task: ActiveTask) -> Request | None:
        if task.report is None and self._random.random() < (0.2 if self._world.focus.late_reports else 0.08):
            self._world.log(f"  {self.name} forgets {task.lease.task_id}")
            self._active_tasks.remove(task)
            self._stale_tasks.append(task)
            return None
        if task.report is None and self._random.random() < 0.25:
            if self._random.random() < 0.4:
                return Request([self._upload_outputs(task, (1,))], ignore_answers)
            progress = self._random.choice((None, 0, 30, 99))
            seconds = self._random.choice((None, None, 5, 120))
            log = self._random.choice(((), (), ("a line",), ("two", "lines")))
            heartbeat = c.Heartbeat(
                lease=task.lease, progress=progress, lease_seconds=seconds, log=log, worker_id=self.report_as
            )
            return Request([heartbeat], lambda answers: self._on_heartbeat(task, answers))
        if task.kind == "render" and task.report is None and (task.provider_called or self._random.random() < 0.85):
            return self._submit_to_provider(task)
        if task.report is None:
            task.report = self._draw_report(task)
        return self._send_report(task, task.report)

    def _draw_report(self, task: ActiveTask) -> c.Command:
        roll = self._random.random() if not task.ref_recorded else self._random.choice((0.1, 0.7, 0.7, 0.9))
        if roll < (0.3 if self._world.focus.failures else 0.6):
            delivered = self._random.choice((100, 100, 40))
            output = {"take": self._random.randrange(1_000)}
            announcement = self._upload_outputs(task, range(1, self._random.choice((0, 1, 1, 2)) + 1))
            task.announcement = announcement if self._random.random() < 0.8 else None
            return c.Complete(
                lease=task.lease, output=output, delivered=delivered, files=announcement.files,
                worker_id=self.report_as,
            )  # fmt: skip
        if roll < 0.85:
            retryable = self._random.choice((True, True, False, None))
            return c.Fail(lease=task.lease, message="out of memory", retryable=retryable, worker_id=self.report_as)
        return c.Requeue(lease=task.lease, reason="shutdown", worker_id=self.report_as)

    def _upload_outputs(self, task: ActiveTask, numbers: Iterable[int]) -> c.AnnounceOutputs:
        """Upload outputs and sometimes a preview under the keys of the lease; their rows come with the completion."""
        lease = task.lease
        attempt = (task.tenant, lease.job_id, lease.task_id, lease.attempt)
        files = tuple(
            c.OutputFile(no, f"take-{no}.png", "image/png", 1 + no, f"{self._random.getrandbits(64):064x}")
            for no in numbers
        )
        preview_bytes = self._random.choice((0, 0, 2))
        for file in files:
            self._blobs.put(object_keys.output_key(*attempt, file.no))
        if preview_bytes:
            self._blobs.put(object_keys.preview_key(*attempt))
        return c.AnnounceOutputs(lease=lease, files=files, preview_bytes=preview_bytes, worker_id=self.report_as)

    def _send_report(
        self, task: ActiveTask, command: c.Command, on_reply: Callable[[Any], None] | None = None
    ) -> Request:
        def on_answers(answers: list[Any] | None) -> None:
            if answers is None or answers[-1] is None:
                return
            if on_reply is not None and not isinstance(answers[-1], Refusal):
                on_reply(answers[-1])
                return
            self._sent_reports.append(command)
            if task in self._active_tasks:
                self._active_tasks.remove(task)

        announcement, task.announcement = task.announcement, None
        if announcement is None:
            return Request([command], on_answers)
        if self._random.random() < 0.5:  # the report follows with the next request
            return Request([announcement], ignore_answers)
        return Request([announcement, command], on_answers)

    def _on_heartbeat(self, task: ActiveTask, answers: list[Any] | None) -> None:
        heartbeat = answers[-1] if answers else None
        lost = isinstance(heartbeat, Refusal) or (
            isinstance(heartbeat, c.HeartbeatResult) and heartbeat.cancel and heartbeat.lease_seconds == 0
        )
        if lost and task in self._active_tasks:
            self._active_tasks.remove(task)
            self._stale_tasks.append(task)
        elif isinstance(heartbeat, c.HeartbeatResult) and heartbeat.cancel and self._random.random() < 0.6:
            task.report = task.report or c.Fail(
                lease=task.lease, code="canceled", message="stopped by request", worker_id=self.report_as
            )

    # -- provider calls

    def _submit_to_provider(self, task: ActiveTask) -> Request:
        if task.ref is not None:
            return self._send_report(task, c.HandOff(lease=task.lease, ref=task.ref, worker_id=self.report_as))
        intent = c.RecordIntent(lease=task.lease, provider=PROVIDER, worker_id=self.report_as)
        return self._send_report(task, intent, lambda answer: self._call_provider(task, answer))

    def _call_provider(self, task: ActiveTask, intended: c.CallIntent) -> None:
        task.intended = True
        if task not in self._active_tasks or intended.status != "intended" or task.provider_called:
            return
        if self._world.fault_occurs(0.1):
            self._world.log(f"  {self.name} dies before it calls the provider")
            self._active_tasks.remove(task)
            return
        if self._world.fault_occurs(0.1):
            self._requeue(task)
            return
        task.provider_called = True
        try:
            task.ref = self._provider.submit(intended.call_id, task.lease.task_id, task.lease.job_id)
        except NoAnswer:
            self._world.log(f"  {self.name} gets no answer from the provider and gives up")
            self._active_tasks.remove(task)
        except Refused:
            task.report = c.Fail(
                lease=task.lease, code="refused", message="no capacity", retryable=True, worker_id=self.report_as
            )
            task.kind = "refused"
        else:
            if self._world.fault_occurs(0.1):
                self._requeue(task)
            elif self._world.fault_occurs(0.4 if self._world.focus.late_reports else 0.1):
                self._world.log(f"  {self.name} dies after it called the provider")
                self._active_tasks.remove(task)
                self._stale_tasks.append(task)

    def _requeue(self, task: ActiveTask) -> None:
        """Requeue the task at a shutdown, although the call may have been made."""
        task.report = c.Requeue(lease=task.lease, reason="shutdown", worker_id=self.report_as)
        task.kind = "requeued"

    # -- late reports

    def _repeat_stale(self) -> Request:
        """Repeat an earlier report, or report with a lease that may be lost."""
        if self._sent_reports and (not self._stale_tasks or self._random.random() < 0.5):
            command = self._random.choice(self._sent_reports)
            if isinstance(command, c.Complete) and self._random.random() < 0.4:
                command = c.Complete(lease=command.lease, output={"take": "another"}, worker_id=self.report_as)
            return Request([command], lambda _answers: None)
        return self._stale_report(self._random.choice(self._stale_tasks[-3:]))

    def _stale_report(self, task: ActiveTask) -> Request:
        if task.ref is not None:
            return Request([c.HandOff(lease=task.lease, ref=task.ref, worker_id=self.report_as)], lambda _answers: None)
        stale_reports: tuple[c.Command, ...] = (
            c.Complete(lease=task.lease, output={"take": "stale"}, worker_id=self.report_as),
            c.Heartbeat(lease=task.lease, progress=77, worker_id=self.report_as),
            c.Heartbeat(lease=task.lease, worker_id=self.report_as),
            c.Fail(lease=task.lease, message="stale", retryable=True, worker_id=self.report_as),
            c.Requeue(lease=task.lease, reason="stale", worker_id=self.report_as),
        )
        if task.provider_called:
            stale_reports = stale_reports[1:2]
        return Request([self._random.choice(stale_reports)], lambda _answers: None)

    # -- recovery

    def finish(self) -> list[Request]:
        """Return the reports that finish all active tasks."""
        requests: list[Request | None] = []
        for task in list(self._active_tasks):
            if task.kind == "render":
                requests.append(self._submit_to_provider(task))
            else:
                task.report = task.report or c.Complete(
                    lease=task.lease, output={"take": "recovery"}, worker_id=self.report_as
                )
                requests.append(self._send_report(task, task.report))
        return [request for request in requests if request is not None]
