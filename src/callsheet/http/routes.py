"""All routes."""

from callsheet.http import (
    admin,
    blobs,
    events,
    files,
    health,
    jobs,
    listing,
    parts,
    quotes,
    reference,
    scaling,
    uploads,
    wallets,
    why,
    worker,
    workers,
    workflows,
)
from callsheet.http.route import Route

_API: tuple[Route, ...] = (
    *jobs.ROUTES, *listing.ROUTES, *parts.ROUTES, *files.ROUTES, *uploads.ROUTES, *blobs.ROUTES, *why.ROUTES,
    *events.ROUTES, *quotes.ROUTES, *wallets.ROUTES, *workflows.ROUTES, *workers.ROUTES, *admin.ROUTES,
    *scaling.ROUTES, *health.ROUTES, *worker.ROUTES,
)  # fmt: skip
ROUTES: tuple[Route, ...] = (*_API, *reference.routes(_API))
