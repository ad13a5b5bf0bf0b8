"""Clients: they submit, change and cancel jobs, repeat requests, and try to change jobs of other tenants."""

from collections.abc import Callable
from typing import Any

from callsheet.blobs import object_keys
from callsheet.core.model import commands as c
from callsheet.core.model.workflow_definition import StageSpec
from tests.sim.checks.inspector import Inspector
from tests.sim.environment.blobs import SimulatedBlobs
from tests.sim.environment.network import Request, ignore_answers
from tests.sim.environment.scenario import Scenario
from tests.sim.environment.simulation_context import World

_OPEN = ("pending", "queued", "running", "paused")
_JOBS_WITH_SHARED_FILES = """SELECT DISTINCT f.job_id FROM file f JOIN job_file u ON u.file_id = f.id
    JOIN job j ON j.id = u.job_id AND j.finished_at IS NULL
    WHERE f.tenant = ? AND f.user_id = ? AND f.job_id IS NOT NULL ORDER BY 1"""
"""Jobs with output files that an open job needs."""
_JOBS_MISSING_FILES = """SELECT DISTINCT j.id FROM job j JOIN job_file u ON u.job_id = j.id
    JOIN file f ON f.id = u.file_id
    WHERE j.tenant = ? AND j.user_id = ? AND j.status IN ('failed', 'expired') AND f.status = 'deleted' ORDER BY 1"""
_APPROVED_JOBS = """SELECT DISTINCT j.id FROM job j JOIN stage s ON s.job_id = j.id
    WHERE j.tenant = ? AND j.user_id = ? AND j.status IN ('failed', 'expired') AND s.approved_at IS NOT NULL
    ORDER BY 1"""
_STARTED_PAUSED_JOBS = """SELECT id FROM job WHERE tenant = ? AND user_id = ? AND status = 'paused'
    AND started_at IS NOT NULL AND stages_total > 1 AND price > 0 ORDER BY 1"""
_CONSUMED_JOBS = """SELECT DISTINCT j.id FROM job j JOIN run r ON r.job_id = j.id
    WHERE j.tenant = ? AND j.user_id = ? AND j.finished_at IS NOT NULL AND r.consumed > 0 ORDER BY 1"""
_NEEDED_FOR_RETRY = """EXISTS (SELECT 1 FROM job_file u JOIN job j ON j.id = u.job_id
    WHERE u.file_id = f.id AND j.status IN ('failed', 'expired'))"""


class Client:
    """One user of one tenant."""

    def __init__(
        self, world: World, inspector: Inspector, scenario: Scenario, blobs: SimulatedBlobs, tenant: str, user: str
    ) -> None:
        self._world = world
        self._random = world.random
        self._inspector = inspector
        self._scenario = scenario
        self._blobs = blobs
        self._tenant = tenant
        self._user = user
        self._last_sent: dict[Callable[[], list[c.Command]], list[c.Command]] = {}
        """The last commands of the actions that are sometimes repeated."""
        self._actions: tuple[tuple[int, Callable[[], list[c.Command]]], ...] = (
            (14, self._submit), (2, self._bulk), (5, self._cancel), (4, self._pause), (5, self._resume),
            (6, self._retry), (6, self._approve), (3, self._require_approval), (2, self._delete), (2, self._update),
            (3, self._add_tasks), (3, self._add_stage), (3, self._top_up), (1, self._adjust), (5, self._refund),
            (1, self._touch_foreign_job),
            (4, self.create_upload), (6, self.finish_upload), (5, self._delete_file),
        )  # fmt: skip
        focused = {getattr(self, f"_{name}") for name in world.focus.actions}
        self._weights = [weight * (4 if action in focused else 1) for weight, action in self._actions]

    def act(self) -> Request | None:
        actions = [action for _, action in self._actions]
        commands = self._random.choices(actions, self._weights)[0]()
        if not commands:
            return None
        if self._random.random() < 0.08:
            commands = [*commands, *commands]
        return Request(commands, ignore_answers)

    def _repeat_or(self, draw: Callable[[], list[c.Command]]) -> list[c.Command]:
        """Draw commands, or repeat the last ones."""
        if not self._last_sent.get(draw) or self._random.random() < 0.7:
            self._last_sent[draw] = draw()
        return self._last_sent[draw]

    # -- submits and credits

    def _submit(self) -> list[c.Command]:
        random = self._random
        focused = bool(self._world.focus.workflows) and random.random() < 0.7
        workflow = random.choice(self._world.focus.workflows if focused else self._scenario.workflows)
        stages = self._draw_stages() if workflow == "tree" and random.random() < 0.8 else None
        key = f"key-{random.randrange(4)}" if random.random() < 0.5 and not focused else None
        if key is not None:
            workflow, stages = random.choice(("sketch", "clip")), None
        return [
            c.Submit(
                tenant=self._tenant, user=self._user, workflow=workflow, idempotency_key=key, stages=stages,
                input={"n": 0 if random.random() < 0.75 else 1} if key is not None else self._draw_input(),
                priority=random.choice((None, None, 10, 90)) if key is None else None,
                start_in_seconds=random.choice((0, 0, 0, 20)) if key is None else 0,
                deadline_seconds=random.choice((None, None, None, 90)) if key is None else None,
                verdict=c.Verdict("not_allowed", "Denied by policy.", random.random() < 0.5)
                if random.random() < 0.05
                else None,
            )
        ]  # fmt: skip

    def _draw_input(self) -> dict[str, Any]:
        """Draw an input, sometimes with a file: mostly one that may be used, sometimes any."""
        roll = self._random.random()
        if roll < 0.35:
            return {"n": 0}
        own, ready = "f.tenant = ? AND f.user_id = ?", "f.status = 'ready'"
        is_output = "f.job_id IS NOT NULL"  # outputs of jobs are inputs of others
        found = self._pick_file(
            f"{own} AND {ready}" if roll < 0.6 else f"{own} AND {ready} AND {is_output}" if roll < 0.85
            else f"NOT ({own}) AND {ready}" if roll < 0.97 else own
        )  # fmt: skip
        return {"n": 0} if found is None else {"of": [{"$file": found}]}

    def _pick_file(self, condition: str) -> str | None:
        rows = self._inspector.rows(
            f"SELECT f.id FROM file f WHERE {condition} ORDER BY f.id", self._tenant, self._user
        )
        return self._random.choice(rows)[0] if rows else None

    def _draw_stages(self) -> list[StageSpec]:
        random = self._random
        return [
            StageSpec(name=f"s{n}", kind=random.choice(("draw", "cut")), tasks=random.choice((0, 1, 1, 2)),
                      approval=random.random() < 0.15)
            for n in range(random.choice((1, 1, 2, 3)))
        ]  # fmt: skip

    def _bulk(self) -> list[c.Command]:
        return [command for _ in range(self._random.choice((2, 3, 5))) for command in self._submit()]

    def _top_up(self) -> list[c.Command]:
        amount = self._random.choice((4, 20))
        key = f"pay-{amount}-{self._random.randrange(3)}" if self._random.random() < 0.6 else ""
        amount = amount + 1 if key and self._random.random() < 0.2 else amount
        return [c.TopUp(tenant=self._tenant, user=self._user, amount=amount, idempotency_key=key)]

    def _adjust(self) -> list[c.Command]:
        amount = self._random.choice((-30, -3, 2))
        return [c.Adjust(tenant=self._tenant, user=self._user, amount=amount, reason="goodwill")]

    def _refund(self) -> list[c.Command]:
        return self._repeat_or(self._draw_refund)

    def _draw_refund(self) -> list[c.Command]:
        """Ask an admin for a refund, of the last run or of another one."""
        fields: dict[str, Any] = {"reason": "blurred", "run": self._random.choice((None, None, 1, 2)), "actor": "admin"}
        if self._random.random() < 0.7 and (job := self._pick(_CONSUMED_JOBS)):
            return [c.Refund(tenant=self._tenant, job_id=job, **fields)]
        return self._aim(c.Refund, "completed", "failed", "canceled", **fields)

    # -- files

    def create_upload(self) -> list[c.Command]:
        digest = f"{self._random.getrandbits(64):064x}"
        return [
            c.CreateUpload(
                tenant=self._tenant, user=self._user, name="cat.png", media_type="image/png", bytes=3, sha256=digest
            )
        ]

    def finish_upload(self) -> list[c.Command]:
        """Upload the bytes of a file and finish the upload."""
        found = self._pick_file("f.tenant = ? AND f.user_id = ? AND f.status = 'uploading'")
        if found is None:
            return []
        self._blobs.put(object_keys.upload_key(self._tenant, found))
        return [c.FinishUpload(tenant=self._tenant, file_id=found)]

    def _delete_file(self) -> list[c.Command]:
        """Delete a file, preferably one that a retry of a job would need."""
        own = "f.tenant = ? AND f.user_id = ?"
        found = (
            self._pick_file(f"{own} AND {_NEEDED_FOR_RETRY}") if self._random.random() < 0.6 else self._pick_file(own)
        )
        return [] if found is None else [c.DeleteFiles(file_ids=(found,), tenant=self._tenant)]

    # -- changes of jobs

    def _pick(self, query: str) -> str | None:
        """Pick a job of this user that a query finds."""
        rows = self._inspector.rows(query, self._tenant, self._user)
        return self._random.choice(rows)[0] if rows else None

    def _pick_job(self, *statuses: str) -> str | None:
        marks = ", ".join("?" * len(statuses))
        rows = self._inspector.rows(
            f"SELECT id FROM job WHERE tenant = ? AND user_id = ? AND status IN ({marks}) ORDER BY id",
            self._tenant, self._user, *statuses,
        )  # fmt: skip
        return self._random.choice(rows)[0] if rows else None

    def _aim(self, make: Callable[..., c.Command], *statuses: str, **fields: Any) -> list[c.Command]:
        """Make a command for a job in one of these statuses, sometimes in any status."""
        if self._random.random() < 0.15:
            statuses = (*_OPEN, "completed", "failed", "canceled", "expired")
        job = self._pick_job(*statuses)
        return [] if job is None else [make(tenant=self._tenant, job_id=job, **fields)]

    def _cancel(self) -> list[c.Command]:
        grace = self._random.choice((None, 0, 5, 60))
        if self._random.random() < 0.5 and (job := self._pick(_STARTED_PAUSED_JOBS)):
            return [c.Cancel(tenant=self._tenant, job_id=job, grace_seconds=grace)]
        statuses = self._random.choice((("running",), ("running", "paused"), ("paused",), _OPEN))
        return self._aim(c.Cancel, *statuses, grace_seconds=grace)

    def _pause(self) -> list[c.Command]:
        return self._aim(c.Pause, "queued", "running", "pending")

    def _resume(self) -> list[c.Command]:
        return self._aim(c.Resume, "paused")

    def _retry(self) -> list[c.Command]:
        return self._repeat_or(self._draw_retry)

    def _draw_retry(self) -> list[c.Command]:
        retry_as = self._random.choice(("new_run", "new_run", "new_job"))
        fields: dict[str, Any] = {"retry_as": retry_as, "actor": self._random.choice(("user", "admin"))}
        fields["idempotency_key"] = self._random.choice((None, "k1", "k2"))
        roll = self._random.random()
        query = _JOBS_MISSING_FILES if roll < 0.3 else _APPROVED_JOBS if roll < 0.6 else None
        if query and (job := self._pick(query)):
            return [c.Retry(tenant=self._tenant, job_id=job, **fields)]
        return self._aim(c.Retry, "failed", "expired", **fields)

    def _delete(self) -> list[c.Command]:
        if self._random.random() < 0.5 and (job := self._pick(_JOBS_WITH_SHARED_FILES)):
            return [c.Delete(tenant=self._tenant, job_id=job)]
        return self._aim(c.Delete, *_OPEN, "completed", "failed")

    def _update(self) -> list[c.Command]:
        return self._aim(c.Update, *_OPEN, priority=self._random.choice((5, 50, 95)))

    def _pick_stage(self, *statuses: str) -> tuple[str, str] | None:
        marks = ", ".join("?" * len(statuses))
        rows = self._inspector.rows(
            "SELECT s.job_id, s.id FROM stage s JOIN job j ON j.id = s.job_id"
            f" WHERE j.tenant = ? AND j.user_id = ? AND s.status IN ({marks}) ORDER BY s.job_id, s.no",
            self._tenant, self._user, *statuses,
        )  # fmt: skip
        return self._random.choice(rows) if rows else None

    def _approve(self) -> list[c.Command]:
        found = self._pick_stage("waiting") or self._pick_stage("created", "pending", "running")
        if found is None:
            return []
        return [c.Approve(tenant=self._tenant, job_id=found[0], stage_id=found[1], approver=self._user)]

    def _require_approval(self) -> list[c.Command]:
        statuses = self._random.choice((("pending", "running"), ("created", "pending", "running")))
        found = self._pick_stage(*statuses)
        return [c.RequireApproval(tenant=self._tenant, job_id=found[0], stage_id=found[1])] if found else []

    def _add_tasks(self) -> list[c.Command]:
        found = self._pick_stage("created", "pending", "running", "waiting")
        if found is None:
            return []
        inputs = [self._draw_input() for _ in range(self._random.choice((1, 2)))]
        return [c.AddTasks(tenant=self._tenant, job_id=found[0], stage_id=found[1], inputs=inputs)]

    def _add_stage(self) -> list[c.Command]:
        stage = StageSpec(name="late", kind=self._random.choice(("draw", "cut")), tasks=self._random.choice((0, 1, 2)))
        return self._aim(c.AddStage, *_OPEN, stage=stage)

    def _touch_foreign_job(self) -> list[c.Command]:
        rows = self._inspector.rows("SELECT id FROM job WHERE tenant <> ? ORDER BY id", self._tenant)
        if not rows:
            return []
        make = self._random.choice((c.Cancel, c.Delete, c.Pause))
        return [make(tenant=self._tenant, job_id=self._random.choice(rows)[0])]

    # -- recovery

    def unblock_all(self) -> list[c.Command]:
        """Return commands that resume and approve every open job of this user."""
        owner = (self._tenant, self._user)
        paused = self._inspector.rows(
            "SELECT id FROM job WHERE tenant = ? AND user_id = ? AND status = 'paused' ORDER BY id", *owner
        )
        waiting = self._inspector.rows(
            "SELECT s.job_id, s.id FROM stage s JOIN job j ON j.id = s.job_id WHERE j.tenant = ? AND j.user_id = ?"
            " AND j.deleted_at IS NULL AND s.status = 'waiting' AND s.no = j.stages_completed + 1 ORDER BY s.id",
            *owner,
        )  # fmt: skip
        resumes: list[c.Command] = [c.Resume(tenant=self._tenant, job_id=job) for (job,) in paused]
        return resumes + [
            c.Approve(tenant=self._tenant, job_id=job, stage_id=stage, approver=self._user) for job, stage in waiting
        ]
