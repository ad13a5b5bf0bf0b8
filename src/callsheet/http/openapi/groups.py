"""The routes as a reader looks for them: by what they are about, whichever module answers."""

from collections.abc import Iterable
from typing import NamedTuple

from callsheet.http.server.router import Route


class Group(NamedTuple):
    """Routes that belong together."""

    name: str
    description: str
    modules: tuple[str, ...] = ()
    """All routes of these."""
    operations: tuple[str, ...] = ()
    """Single operations of other modules; they go before."""


GROUPS = (
    Group("jobs", "What users ask and pay for: price it, submit it, watch it, move it, refund it.",
          ("jobs",), ("get_input", "list_runs", "list_outputs", "refund_job")),
    Group("stages and tasks", "What a job is made of, and what waits for a person's word.", ("stages",)),
    Group("files", "What jobs made and what users brought: announce, put, finish, download, delete.",
          ("file_content", "files", "signed_files")),
    Group("events", "Every fact as it happens: as a stream, or page by page.", ("events",)),
    Group("wallets", "Who pays: balances, credits, the ledger.", ("wallets",)),
    Group("workflows", "What may be asked for.", ("workflows",)),
    Group("keys and tenants", "Who may call: keys, users' tokens, tenants, and who did what.", ("admin",)),
    Group("workers", "The fleet: who is here, what they hold, how many there should be.", ("workers", "scaling")),
    Group("health", "How the server is.", ("health",), ("get_ops",)),
    Group("worker protocol", "What a worker says to the house; the SDK says it for you.", ("worker_protocol",)),
    Group("this description", "The API as a page and as OpenAPI.", ("api_docs",)),
)  # fmt: skip


def group_of(route: Route) -> Group:
    """Return where a reader looks for a route."""
    mine = [group for group in GROUPS if route.name in group.operations]
    mine += [group for group in GROUPS if route.tag in group.modules]
    if not mine:
        raise LookupError(f"No group has the routes of {route.tag}: see http/openapi/groups.py.")
    return mine[0]


def group_routes(routes: Iterable[Route]) -> dict[Group, list[Route]]:
    """Return groups with their routes, in order; those without a route are left out."""
    found: dict[Group, list[Route]] = {group: [] for group in GROUPS}
    for route in routes:
        found[group_of(route)].append(route)
    return {group: mine for group, mine in found.items() if mine}
