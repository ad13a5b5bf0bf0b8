"""What every handler has at hand."""

import sys
import traceback
from collections.abc import Callable

from callsheet.blobs.local import LocalBlobs
from callsheet.config import HttpSettings
from callsheet.engine.engine import Engine
from callsheet.http.auth import Keys, Signed
from callsheet.http.hub import Hub
from callsheet.http.metrics import Metrics

Fault = Callable[[str, Exception], None]


def to_stderr(request_id: str, error: Exception) -> None:
    """Write a fault of ours down, for whoever runs the house."""
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(f"request {request_id} broke:\n{text}")


class House:
    """An engine with everything that the edge needs besides."""

    def __init__(
        self, engine: Engine, blobs: LocalBlobs, secret: bytes, settings: HttpSettings, fault: Fault = to_stderr
    ) -> None:
        self.engine = engine
        self.reads = engine.reads
        self.scans = engine.scans
        self.blobs = blobs
        self.settings = settings
        self.signed = Signed(secret)
        self.keys = Keys(engine.reads, self.signed)
        self.hub = Hub(engine, settings)
        self.metrics = Metrics()
        self.fault = fault
