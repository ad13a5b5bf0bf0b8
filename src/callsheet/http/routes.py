"""All routes."""

from callsheet.http import admin, events, health, jobs, parts, quotes, wallets, workflows
from callsheet.http.route import Route

ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES, *parts.ROUTES, *events.ROUTES, *quotes.ROUTES, *wallets.ROUTES, *workflows.ROUTES, *admin.ROUTES,
    *health.ROUTES,
)  # fmt: skip
