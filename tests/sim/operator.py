"""The operator: new versions of workflows, wider limits, tenants that are suspended and let in again."""

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from callsheet.core.commands import Command, PutTenant, PutWorkflow
from callsheet.core.recipe import Recipe
from tests.sim.catalog import House
from tests.sim.network import Request, nobody


class Operator:
    """Changes the set-up while it is in use; limits only ever grow, so that what runs stays within them."""

    def __init__(self, random: Random, house: House) -> None:
        self._random = random
        self._tenants = {put.tenant: put for put in house.setup if isinstance(put, PutTenant)}
        self._recipes = {put.recipe.name: put.recipe for put in house.setup if isinstance(put, PutWorkflow)}

    def act(self) -> Request:
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
