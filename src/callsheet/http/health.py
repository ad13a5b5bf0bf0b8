"""Health, metrics, and the description of the API."""

import asyncio

from msgspec import Struct

from callsheet.http.house import House
from callsheet.http.metrics import Moment
from callsheet.http.problem import Problem
from callsheet.http.request import Request
from callsheet.http.route import ANYBODY, HOUSE, Answer, Route
from callsheet.http.scaling import usual
from callsheet.store.connection import StoreError

_READY_SECONDS = 5.0
"""Whoever asks whether we are ready wants to know it now."""


class Health(Struct, frozen=True):
    """That we are there."""

    status: str


async def healthz(house: House, request: Request) -> Answer:
    _ = house, request
    return Answer(Health("ok"))


async def readyz(house: House, request: Request) -> Answer:
    _ = request
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await house.reads.fetch("feed_end", tx=0, position=0)
    except (StoreError, TimeoutError):
        raise Problem(503, "not_ready", "The database does not answer.", {"retry-after": "1"}) from None
    if house.engine.trouble:
        raise Problem(503, "not_ready", house.engine.trouble, {"retry-after": "1"})
    return Answer(Health("ready"))


async def metrics(house: House, request: Request) -> Answer:
    _ = request
    try:
        depths, active, working, (calls,) = await house.scans.fetch_all([
            ("depths", {}), ("active_jobs", {}), ("workers_live", {}), ("calls_open", {}),
        ])  # fmt: skip
        moment = Moment(house.hub.count, depths, active, working, await usual(house), calls)
    except StoreError:
        moment = Moment(house.hub.count)  # what this process counted is told all the same
    return Answer(house.metrics.text(moment), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    Route("GET", "/healthz", healthz, ANYBODY, "Whether the process lives", Health),
    Route("GET", "/readyz", readyz, ANYBODY, "Whether it can do its work", Health, problems=("503 not_ready",)),
    Route("GET", "/metrics", metrics, HOUSE, "Metrics for Prometheus", media_type="text/plain"),
)  # fmt: skip
