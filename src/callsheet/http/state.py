"""State shared by all request handlers of one server."""

import sys
import traceback
from collections.abc import Callable

from callsheet.blobs.base import Blobs
from callsheet.config import HttpSettings
from callsheet.dispatch.file_deletion import FileDeletion
from callsheet.dispatch.fleet import Fleet
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.dispatch.task_reports import TaskReports
from callsheet.dispatch.uploads import Uploads
from callsheet.engine.engine import Engine
from callsheet.http.auth.authenticator import Authenticator, Signer
from callsheet.http.auth.throttles import FailedAuthLimiter
from callsheet.http.broadcaster import Broadcaster
from callsheet.http.metrics import Metrics
from callsheet.queries.context import QueryContext

ErrorReporter = Callable[[str, Exception], None]


def report_to_stderr(request_id: str, error: Exception) -> None:
    """Write an internal error with its traceback to standard error."""
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(f"request {request_id} failed:\n{text}")


class AppState:
    """Built once by the composition root; handlers receive it as their first argument."""

    def __init__(
        self,
        engine: Engine,
        blobs: Blobs,
        secret: bytes,
        settings: HttpSettings,
        report_error: ErrorReporter = report_to_stderr,
    ) -> None:
        self.engine = engine
        self.blobs = blobs
        self.settings = settings
        self.signer = Signer(secret)
        self.authenticator = Authenticator(engine.reads, self.signer)
        self.broadcaster = Broadcaster(engine, settings)
        self.queries = QueryContext(engine, self.signer, settings)
        self.fleet = Fleet(engine, settings)
        self.payloads = TaskPayloads(engine, blobs)
        self.reports = TaskReports(engine, self.payloads)
        self.uploads = Uploads(engine, blobs, settings.signed_url_expires_in_seconds)
        self.file_deletion = FileDeletion(engine, blobs)
        self.failed_auth_limiter = FailedAuthLimiter(settings.failed_auth_max)
        self.metrics = Metrics()
        self.report_error = report_error
