"""The table of all routes of the native API."""

from callsheet.http.routes import (
    admin,
    api_docs,
    downloads,
    events,
    files,
    health,
    job_parts,
    jobs,
    scaling,
    signed_files,
    wallets,
    worker_protocol,
    workers,
    workflows,
)
from callsheet.http.server.route import Route

API_ROUTES: tuple[Route, ...] = (
    *jobs.ROUTES, *job_parts.ROUTES, *files.ROUTES, *downloads.ROUTES, *signed_files.ROUTES,
    *events.ROUTES, *wallets.ROUTES, *workflows.ROUTES, *workers.ROUTES, *admin.ROUTES,
    *scaling.ROUTES, *health.ROUTES, *worker_protocol.ROUTES,
)  # fmt: skip
ROUTES: tuple[Route, ...] = (*API_ROUTES, *api_docs.routes(API_ROUTES))
