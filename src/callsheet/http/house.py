"""What every handler has at hand."""

import sys
import traceback
from collections.abc import Callable

from callsheet.blobs.base import Blobs
from callsheet.config import HttpSettings
from callsheet.engine.engine import Engine
from callsheet.http.auth import Keys, Signed
from callsheet.http.expected import Expectations
from callsheet.http.fleet import Fleet
from callsheet.http.handing import Handing
from callsheet.http.hub import Hub
from callsheet.http.metrics import Metrics
from callsheet.http.observing import Observing
from callsheet.http.strikes import Strikes

Fault = Callable[[str, Exception], None]


def to_stderr(request_id: str, error: Exception) -> None:
    """Write a fault of ours down, for whoever runs the house."""
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(f"request {request_id} broke:\n{text}")


class House:
    """An engine with everything that the edge needs besides."""

    def __init__(
        self, engine: Engine, blobs: Blobs, secret: bytes, settings: HttpSettings, fault: Fault = to_stderr
    ) -> None:
        self.engine = engine
        self.reads = engine.reads
        self.scans = engine.scans
        self.blobs = blobs
        self.settings = settings
        self.signed = Signed(secret)
        self.keys = Keys(engine.reads, self.signed)
        self.hub = Hub(engine, settings)
        self.expectations = Expectations(engine.reads, engine.scans, settings.estimate_seconds)
        self.fleet = Fleet(engine, settings)
        self.handing = Handing(engine, blobs)
        self.strikes = Strikes(settings.strikes_max)
        self.observing = Observing(engine.scans, engine.settings.limits, settings)
        self.metrics = Metrics()
        self.fault = fault
