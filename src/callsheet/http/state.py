"""State shared by all request handlers of one server."""

import sys
import traceback
from collections.abc import Callable, Mapping

from callsheet.blobs.base import Blobs
from callsheet.core.model.terminal_text import sanitize_lines
from callsheet.dispatch.file_deletion import FileDeletion
from callsheet.dispatch.fleet import Fleet
from callsheet.dispatch.log_rate_limit import LogLimiter
from callsheet.dispatch.task_payloads import TaskPayloads
from callsheet.dispatch.upload_targets import UploadTargets
from callsheet.dispatch.user_uploads import Uploads
from callsheet.dispatch.worker_protocol import TaskReports
from callsheet.engine.engine import Engine
from callsheet.engine.loops.storage_identity_check import StorageCheck
from callsheet.http.admission import RequestAdmission
from callsheet.http.auth.authenticator import Authenticator, Signer
from callsheet.http.auth.failed_auth_limit import FailedAuthLimiter
from callsheet.http.metrics import Metrics
from callsheet.http.streams.broadcaster import Broadcaster
from callsheet.queries.context import QueryContext
from callsheet.settings import HttpSettings

ErrorReporter = Callable[[str, Exception], None]


def report_to_stderr(request_id: str, error: Exception) -> None:
    """Write an internal error with its traceback to standard error."""
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(sanitize_lines(f"request {request_id} failed:\n{text}"))


class AppState:
    """Built once by the composition root; handlers receive it as their first argument."""

    def __init__(
        self,
        engine: Engine,
        blobs: Blobs,
        secret: bytes,
        settings: HttpSettings,
        shared_values: Mapping[str, str],
        report_error: ErrorReporter = report_to_stderr,
    ) -> None:
        self.engine = engine
        self.blobs = blobs
        self.settings = settings
        self.shared_values = shared_values
        """What this server has in common with the other servers of its database, by name."""
        self.admission = RequestAdmission(engine, settings)
        self.storage_check = StorageCheck(engine.reads, blobs)
        self.signer = Signer(secret)
        self.authenticator = Authenticator(engine.reads, self.signer)
        self.broadcaster = Broadcaster(engine, settings)
        self.queries = QueryContext(engine, self.signer, settings)
        self.fleet = Fleet(engine, settings)
        self.payloads = TaskPayloads(engine, blobs)
        self.reports = TaskReports(engine, self.payloads, LogLimiter(settings.log_bytes_per_second_max))
        self.uploads = Uploads(engine, blobs, settings.signed_url_expires_in_seconds)
        self.upload_targets = UploadTargets(engine)
        self.file_deletion = FileDeletion(engine, blobs)
        self.failed_auth_limiter = FailedAuthLimiter(settings.failed_auth_max)
        self.metrics = Metrics()
        self.report_error = report_error
