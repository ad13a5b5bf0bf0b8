"""All planted bugs: each removes one rule from the engine, and the simulation must detect it."""

from tests.sim.planted import engine, files, fleet, jobs, leases, limits, money, provider_calls
from tests.sim.planted.registry import BUGS, Bug

__all__ = ["BUGS", "Bug", "engine", "files", "fleet", "jobs", "leases", "limits", "money", "provider_calls"]
