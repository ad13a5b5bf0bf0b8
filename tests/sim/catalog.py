"""What each life sells: tenants, users, workflows and limits, drawn from the seed."""

from random import Random
from typing import Literal, NamedTuple

from callsheet.core.commands import Command, PutTenant, PutWorkflow, TopUp
from callsheet.core.limits import Limits
from callsheet.core.recipe import Backoff, Recipe, Refunds, Retry, StageSpec

PROVIDER = "studio"
KINDS = ("draw", "cut", "render")


class House(NamedTuple):
    """The set-up of a life."""

    users: list[tuple[str, str]]
    workflows: list[str]
    limits: Limits
    approval: bool
    """Whether a worker waits for an operator's approval."""
    setup: list[Command]
    limited: bool
    """Whether running tasks hold places that others may wait for."""


def furnish(random: Random) -> House:
    """Draw a house."""
    tenants = ["acme", "bolt", "cine"][: random.choice((2, 2, 3))]
    users = [(tenant, user) for tenant in tenants for user in ("ann", "bob")[: random.choice((1, 2))]]
    recipes = _recipes(random)
    aside = Random(random.getstate()[1][-2])  # what came later is drawn beside: the other lives stay as they were
    limits = Limits(
        unsaid_max=2,
        stages_per_job_max=6,
        kind_running_max={"draw": random.choice((1, 2, 4))} if random.random() < 0.3 else {},
        provider_running_max={PROVIDER: random.choice((1, 2))} if random.random() < 0.3 else {},
        kind_rate_max={"cut": aside.choice(("2/minute", "3/minute"))} if aside.random() < 0.15 else {},
        workers_max=random.choice((1, 2, 1_000, 1_000)),
        worker_silence_seconds=random.choice((60, 600)),
        upload_seconds_max=120,
        upload_keep_seconds=random.choice((0, 30, 300)),
        uploads_awaited_max=2,
    )
    setup: list[Command] = [
        PutTenant(tenant=t, weight=random.choice((1, 2)), active_jobs_max=random.choice((0, 2, 4))) for t in tenants
    ]
    setup.extend(PutWorkflow(recipe=recipe) for recipe in recipes)
    setup.extend(TopUp(tenant=t, user=u, amount=random.choice((12, 40, 90)), idempotency_key="first") for t, u in users)
    limited = bool(limits.kind_running_max or limits.provider_running_max or any(r.running_max for r in recipes))
    return House(users, [recipe.name for recipe in recipes], limits, random.random() < 0.15, setup, limited)


def _recipes(random: Random) -> list[Recipe]:
    def retry() -> Retry:
        backoff = Backoff(base_seconds=random.choice((0, 2.0, 10.0)), max_seconds=20.0)
        policies: tuple[Literal["any", "transient", "never"], ...] = ("any", "any", "transient", "never")
        return Retry(
            tries_max=random.choice((1, 2, 3)), requeues_max=random.choice((0, 1, 3)), on=random.choice(policies),
            backoff=backoff,
        )  # fmt: skip

    def lease() -> int:
        return random.choice((15, 30, 60))

    def refunds() -> Refunds:
        return Refunds(
            failed=random.choice((100, 100, 30)), canceled_running=random.choice((100, 50)),
            expired=random.choice((100, 100, 0)),
        )  # fmt: skip

    film = [
        StageSpec(name="shoot", kind="draw", tasks=random.choice((1, 2, 3))),
        StageSpec(name="edit", kind="cut", gate=random.random() < 0.4),
        StageSpec(name="grade", kind="draw", inputs=[{"reel": 1}, {"reel": 2}]),
    ]
    return [
        Recipe(name="sketch", price=5, stages=[StageSpec(name="draw", kind="draw")], retry=retry(),
               refunds=refunds(), lease_seconds=lease(), cancel_grace_seconds=10,
               keep_seconds=random.choice((0, 20, 300))),
        Recipe(name="film", price=9, stages=film[: random.choice((2, 3))], retry=retry(), refunds=refunds(),
               lease_seconds=lease(), running_max=random.choice((0, 0, 1, 2)),
               keep_seconds=random.choice((0, 0, 30))),
        Recipe(name="clip", price=7, stages=[StageSpec(name="render", kind="render", provider=PROVIDER)],
               retry=retry(), refunds=refunds(), lease_seconds=lease(), provider_deadline_seconds=300,
               collect_seconds=10),
        Recipe(name="gift", stages=[StageSpec(name="draw", kind="draw", gate=random.random() < 0.2)], retry=retry(),
               lease_seconds=lease()),
        Recipe(name="tree", price=3, inline=True, retry=retry(), refunds=refunds(), lease_seconds=lease(),
               deadline_seconds=7_200),
    ]  # fmt: skip
