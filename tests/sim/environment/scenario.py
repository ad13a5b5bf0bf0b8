"""The scenario of a simulation: tenants, users, workflows and limits, drawn from the seed."""

from random import Random
from typing import Literal, NamedTuple

from callsheet.core.model.commands import Command, PutTenant, PutWorkflow, TopUp
from callsheet.core.model.workflow_definition import Backoff, RefundPolicy, RetryPolicy, StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from tests.sim.environment.simulation_context import Focus

PROVIDER = "studio"
KINDS = ("draw", "cut", "render")
FOCUSES = (
    Focus(),
    Focus(operator=True),
    Focus(workflows=("clip",)),
    Focus(workflows=("sketch",), actions=("delete_file", "delete", "retry"), failures=True),
    Focus(workflows=("film", "gift"), actions=("approve", "require_approval", "retry"), failures=True),
    Focus(workflows=("film", "tree"), actions=("pause", "cancel", "refund")),
    Focus(late_reports=True),
    Focus(workflows=("clip",), late_reports=True),
)


CROWD = Focus(workflows=("sketch",), actions=("submit", "bulk"))
"""Two users of each tenant submit more jobs than the workers can run."""
CROWD_EVERY = 10
"""The seeds that have a crowd. It is not drawn, so that the scenarios of other seeds do not depend on it."""


class Scenario(NamedTuple):
    """The setup of a simulation."""

    users: list[tuple[str, str]]
    workflows: list[str]
    limits: Limits
    approval_required: bool
    """Whether a worker waits for an operator's approval."""
    setup: list[Command]
    focus: Focus
    has_running_limits: bool
    """Whether running tasks occupy places that other tasks wait for."""


def draw_scenario(random: Random, seed: int) -> Scenario:
    """Draw a scenario."""
    scenario = _draw(random)
    if seed % CROWD_EVERY != 1:
        return scenario
    tenants = list(dict.fromkeys(tenant for tenant, _ in scenario.users))
    users = [(tenant, user) for tenant in tenants for user in ("ann", "bob")]
    setup: list[Command] = [command for command in scenario.setup if isinstance(command, PutWorkflow)]
    setup += [PutTenant(tenant=tenant, weight=n + 1) for n, tenant in enumerate(tenants)]
    setup += [TopUp(tenant=tenant, user=user, amount=1_000, idempotency_key="first") for tenant, user in users]
    return scenario._replace(users=users, setup=setup, focus=CROWD)


def _draw(random: Random) -> Scenario:
    tenants = ["acme", "bolt", "cine"][: random.choice((2, 2, 3))]
    users = [(tenant, user) for tenant in tenants for user in ("ann", "bob")[: random.choice((1, 2))]]
    definitions = _draw_definitions(random)
    limits = Limits(
        flush_every=2,
        stages_per_job_max=6,
        kind_running_max={"draw": random.choice((1, 2, 4))} if random.random() < 0.3 else {},
        provider_running_max={PROVIDER: random.choice((1, 2))} if random.random() < 0.3 else {},
        kind_rate_max={random.choice(("cut", "draw")): random.choice(("2/minute", "3/minute"))}
        if random.random() < 0.4
        else {},
        workers_max=random.choice((1, 2, 1_000, 1_000)),
        worker_timeout_seconds=random.choice((60, 600)),
        upload_timeout_seconds=120,
        upload_retention_seconds=random.choice((None, 30, 300)),
        uploads_pending_max=2,
        pending_bytes_max=random.choice((1_000, 1_000, 5)),
        file_bytes_per_job_max=random.choice((1_000, 1_000, 4)),
        log_bytes_per_job_max=random.choice((1_000, 30)),
        progress_events_per_job_max=random.choice((1_000, 2)),
    )
    setup: list[Command] = [
        PutTenant(
            tenant=t,
            weight=random.choice((1, 2)),
            active_jobs_max=random.choice((None, 2, 4)),
            storage_bytes_max=random.choice((None, None, None, 8)),
        )
        for t in tenants
    ]
    setup.extend(PutWorkflow(definition=definition) for definition in definitions)
    setup.extend(TopUp(tenant=t, user=u, amount=random.choice((12, 40, 90)), idempotency_key="first") for t, u in users)
    has_running_limits = bool(
        limits.kind_running_max
        or limits.provider_running_max
        or any(definition.running_max for definition in definitions)
    )
    return Scenario(
        users,
        [definition.name for definition in definitions],
        limits,
        random.random() < 0.15,
        setup,
        random.choice(FOCUSES),
        has_running_limits,
    )


def _draw_definitions(random: Random) -> list[WorkflowDefinition]:
    def retry() -> RetryPolicy:
        backoff = Backoff(base_seconds=random.choice((0, 2.0, 10.0)), max_seconds=20.0)
        policies: tuple[Literal["any", "transient", "never"], ...] = ("any", "any", "transient", "never")
        return RetryPolicy(
            attempts_max=random.choice((1, 2, 3)), requeues_max=random.choice((0, 1, 3)), on=random.choice(policies),
            backoff=backoff,
        )  # fmt: skip

    def lease() -> int:
        return random.choice((15, 30, 60))

    def refunds() -> RefundPolicy:
        return RefundPolicy(
            failed=random.choice((100, 100, 30)), canceled_running=random.choice((50, 30, 0)),
            expired=random.choice((100, 100, 0)),
        )  # fmt: skip

    film_stages = [
        StageSpec(name="shoot", kind="draw", tasks=random.choice((1, 2, 3))),
        StageSpec(name="edit", kind="cut", approval=random.random() < 0.5),
        StageSpec(name="grade", kind="draw", inputs=[{"reel": 1}, {"reel": 2}]),
    ]
    return [
        WorkflowDefinition(name="sketch", price=5, stages=[StageSpec(name="draw", kind="draw")], retry=retry(),
               refunds=refunds(), lease_seconds=lease(), cancel_grace_seconds=10,
               retention_seconds=random.choice((None, 20, 300))),
        WorkflowDefinition(name="film", price=9, stages=film_stages[: random.choice((2, 3))], retry=retry(),
        refunds=refunds(),
               lease_seconds=lease(), running_max=random.choice((None, None, 1, 2)),
               retention_seconds=random.choice((None, None, 30))),
        WorkflowDefinition(name="clip", price=7, stages=[StageSpec(name="render", kind="render", provider=PROVIDER)],
               retry=retry(), refunds=refunds(), lease_seconds=lease(), provider_deadline_seconds=300,
               collect_seconds=10),
        WorkflowDefinition(name="gift", stages=[StageSpec(name="draw", kind="draw", approval=random.random() < 0.5)],
        retry=retry(),
               lease_seconds=lease()),
        WorkflowDefinition(name="tree", price=3, inline=True, retry=retry(), refunds=refunds(), lease_seconds=lease(),
               deadline_seconds=7_200),
    ]  # fmt: skip
