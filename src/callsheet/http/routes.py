"""All routes."""

from callsheet.http import admin, events, files, health, jobs, parts, quotes, reference, wallets, why, workflows
from callsheet.http.route import Route

_API: tuple[Route, ...] = (
    *jobs.ROUTES, *parts.ROUTES, *files.ROUTES, *why.ROUTES, *events.ROUTES, *quotes.ROUTES, *wallets.ROUTES,
    *workflows.ROUTES, *admin.ROUTES, *health.ROUTES,
)  # fmt: skip
ROUTES: tuple[Route, ...] = (*_API, *reference.routes(_API))
