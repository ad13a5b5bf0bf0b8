"""Groups of routes in the reference, by resource. A group may contain routes of several modules."""

from collections.abc import Iterable
from typing import NamedTuple

from callsheet.http.server.route import Route


class Group(NamedTuple):
    """A section of the reference."""

    name: str
    description: str
    modules: tuple[str, ...] = ()
    """Modules whose routes all belong to the group."""
    operations: tuple[str, ...] = ()
    """Operations of other modules that belong to the group. They take precedence over `modules`."""


GROUPS = (
    Group("jobs", "A job runs a workflow for a user and costs credits. Quote, submit, follow, cancel, retry and refund "
          "jobs.",
          ("jobs",), ("get_input", "list_runs", "list_outputs", "refund_job")),
    Group("stages and tasks",
          "A job runs as a sequence of stages, each with one or more tasks. Stages can wait for an approval.",
          ("job_parts",), ("get_preview",)),
    Group("files", "Upload input files, and download the output files of jobs.",
          ("files", "downloads", "signed_files")),
    Group("events", "Every change of a job is an event. Stream events, or list them page by page.", ("events",)),
    Group("wallets", "Each user has a wallet of credits and a ledger of its entries.", ("wallets",)),
    Group("workflows", "A workflow is a named definition with an input schema, stages, a price and limits.",
          ("workflows",)),
    Group("keys and tenants", "Manage tenants, API keys and user tokens, and read the audit log.", ("admin",)),
    Group("workers", "Manage the fleet of workers, and get signals for autoscaling.", ("workers", "scaling")),
    Group("health", "Health checks, metrics and load counts.", ("health",), ("get_ops",)),
    Group("worker protocol", "Routes for workers. The worker SDK calls them for you.", ("worker_protocol",)),
    Group("documentation", "The reference page and the OpenAPI document.", ("api_docs",)),
)  # fmt: skip


def group_of(route: Route) -> Group:
    """Return the group of a route. Routes of a plugin's API are in a group named after their module."""
    matching = [group for group in GROUPS if route.name in group.operations]
    matching += [group for group in GROUPS if route.tag in group.modules]
    return matching[0] if matching else Group(route.tag.replace("_", " "), "Routes of a mounted API.", (route.tag,))


def group_routes(routes: Iterable[Route]) -> dict[Group, list[Route]]:
    """Return the groups with their routes, in order. Groups without routes are left out."""
    by_group: dict[Group, list[Route]] = {group: [] for group in GROUPS}
    for route in routes:
        by_group.setdefault(group_of(route), []).append(route)
    return {group: own_routes for group, own_routes in by_group.items() if own_routes}
