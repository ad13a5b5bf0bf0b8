"""The operator: new versions of workflows, wider limits, tenants and workers that are shut out and let in again."""

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from callsheet.core.commands import Command, PutTenant, PutWorkflow, RevokeWorker, RotateWorker, SetWorker
from callsheet.core.recipe import Recipe
from tests.sim.catalog import KINDS, House
from tests.sim.fleet import FleetWorker
from tests.sim.network import Request, nobody
from tests.sim.server import Admitted


class Operator:
    """Changes the set-up while it is in use; limits only ever grow, so that what runs stays within them."""

    def __init__(self, random: Random, house: House, fleet: list[FleetWorker]) -> None:
        self._random = random
        self._fleet = fleet
        self._tenants = {put.tenant: put for put in house.setup if isinstance(put, PutTenant)}
        self._recipes = {put.recipe.name: put.recipe for put in house.setup if isinstance(put, PutWorkflow)}

    def act(self) -> Request:
        if self._fleet and self._random.random() < 0.8:
            return self._to_the_fleet(self._random.choice(self._fleet))
        actions: tuple[Callable[[], Command], ...] = (self._price, self._widen, self._suspend, self._raise_cap)
        return Request([self._random.choice(actions)()], nobody)

    def _price(self) -> Command:
        recipe = self._recipes[self._random.choice(sorted(self._recipes))]
        return self._put(replace(recipe, price=self._random.choice((0, 4, 11))))

    def _widen(self) -> Command:
        film = self._recipes["film"]
        return self._put(replace(film, running_max=film.running_max + 1 if film.running_max else 0))

    def _put(self, recipe: Recipe) -> Command:
        self._recipes[recipe.name] = recipe
        return PutWorkflow(recipe=recipe)

    def _suspend(self) -> Command:
        tenant = self._tenants[self._random.choice(sorted(self._tenants))]
        active = tenant.status == "active"
        self._tenants[tenant.tenant] = replace(tenant, status="suspended" if active else "active")
        return self._tenants[tenant.tenant]

    def _raise_cap(self) -> Command:
        tenant = self._tenants[self._random.choice(sorted(self._tenants))]
        cap = tenant.active_jobs_max + 1 if tenant.active_jobs_max else 0
        self._tenants[tenant.tenant] = replace(tenant, active_jobs_max=cap, weight=self._random.choice((1, 2, 3)))
        return self._tenants[tenant.tenant]

    # -- the fleet

    def _to_the_fleet(self, worker: FleetWorker) -> Request:
        """Approve most of the time: whoever is shut out for good is of no more use to anybody."""
        name, fate = worker.name, self._random.random()
        if fate < 0.12:
            return Request([RevokeWorker(worker_id=name, by="op")], nobody)
        if fate < 0.27:
            return Request([RotateWorker(worker_id=name, token_hash="", by="op")], lambda told: _tell(worker, told))
        if fate < 0.4:
            return Request([SetWorker(worker_id=name, draining=True, by="op")], nobody)
        if fate < 0.5:
            kinds = self._random.choice((("draw",), ("cut", "draw"), KINDS))
            return Request([SetWorker(worker_id=name, kinds=kinds, by="op")], nobody)
        approved = None if self._random.random() < 0.1 else self._random.random() < 0.9
        return Request([SetWorker(worker_id=name, approved=approved, draining=False, by="op")], nobody)

    def settle_down(self) -> list[Command]:
        """Return what lets every worker in again."""
        names = dict.fromkeys(worker.name for worker in self._fleet)
        return [SetWorker(worker_id=name, approved=True, draining=False, kinds=(), by="op") for name in names]


def _tell(worker: FleetWorker, answers: list[Any] | None) -> None:
    if answers and isinstance(answers[0], Admitted):
        worker.rotated(answers[0].session)
