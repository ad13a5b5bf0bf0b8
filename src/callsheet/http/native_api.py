"""The native API: `/v1`, and at the root its documentation, health checks and metrics."""

from collections.abc import Sequence

from callsheet.http.auth.key_location import authenticate_bearer
from callsheet.http.routes import api_docs, health
from callsheet.http.routes.table import API_ROUTES
from callsheet.http.server.cors import Cors
from callsheet.http.server.mounted_api import Api
from callsheet.http.server.route import Route
from callsheet.settings import HttpSettings

PREFIX = "/v1"


def native_apis(settings: HttpSettings, others: Sequence[Api] = ()) -> tuple[Api, ...]:
    """Return the APIs of every server; the documentation describes those of `others` that are documented."""
    cors = Cors(settings.cors_origins)
    documented = [route._replace(path=api.full_path(route)) for api in others if api.documented for route in api.routes]
    versioned = [route for route in API_ROUTES if _is_versioned(route)]
    root = [route for route in API_ROUTES if not _is_versioned(route)]
    return (
        Api(
            PREFIX, tuple(route._replace(path=route.path.removeprefix(PREFIX)) for route in versioned),
            authenticate_bearer, cors=cors, documented=True,
        ),
        Api(
            "", (*root, *api_docs.routes((*API_ROUTES, *documented))), authenticate_bearer, cors=cors, documented=True
        ),
    )  # fmt: skip


def health_api() -> Api:
    """Return the API of a port that only serves health checks and metrics."""
    return Api("", health.ROUTES, authenticate_bearer)


def _is_versioned(route: Route) -> bool:
    return route.path.startswith(f"{PREFIX}/")
