"""`HttpLink`: the link to a server over HTTP. The worker needs no open port."""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from callsheet.api.worker_protocol import (
    Claim,
    ClaimResult,
    Complete,
    Deregister,
    Deregistered,
    Fail,
    FileGrants,
    FileGrantsRequest,
    Heartbeat,
    HeartbeatResponse,
    InputFile,
    PreviousOutput,
    PreviousOutputs,
    PreviousOutputsRequest,
    ProviderSubmission,
    Register,
    Registration,
    ReportResult,
    Requeue,
    TaskHeartbeat,
    TaskPayload,
)
from callsheet.core.model.commands import OutputFile
from callsheet.core.model.errors import BadInput, Conflict, Denied, LeaseLost, Refusal
from callsheet.transport.backoff import backoff_delays
from callsheet.transport.retry_after import parse_retry_after
from callsheet.worker.errors import (
    InvalidTokenError,
    NonRetryableError,
    RegistrationError,
    RetryableError,
    UnreachableError,
)
from callsheet.worker.files.signed_url_transfer import NETWORK_ERRORS, FileTransfer, GrantRejectedError
from callsheet.worker.files.signed_urls import GrantCache
from callsheet.worker.link.base import LOST_LEASE_CODES, Check

T = TypeVar("T")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
"""Hosts that are never reached through a proxy from the environment."""
_REQUEST_TIMEOUT_SECONDS, _CONNECT_TIMEOUT_SECONDS, _SHUTDOWN_TIMEOUT_SECONDS = 30.0, 5.0, 5.0
_FLEET_FULL_RETRY_SECONDS = 15.0
_TRANSFER_TIMEOUT_SECONDS = 60.0
"""How long a transfer may make no progress."""
_UNAUTHORIZED, _TOO_MANY_REQUESTS, _SERVER_ERROR = 401, 429, 500


class _TooLarge(BadInput):
    """The request body exceeds the limit of the server or of a proxy."""


_ERRORS_BY_STATUS: dict[int, type[Refusal]] = {400: BadInput, 413: _TooLarge, 422: BadInput, 403: Denied, 409: Conflict}


class _Problem(Struct, frozen=True):
    """The body of an error response."""

    code: str = "refused"
    message: str = ""


class HttpLink:
    """A link to the server at `url` for the worker called `name`.

    `secret` returns the fleet secret; it is called at every registration, so that a rotated secret is picked up.
    `capabilities` and `labels` are shown to operators.
    """

    def __init__(
        self, url: str, secret: Callable[[], str], name: str, *, capabilities: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._url = url.rstrip("/")
        self._secret = secret
        self.name = name
        self._capabilities = dict(capabilities) if capabilities else None
        self._labels = dict(labels) if labels else None
        try:
            msgspec.json.encode([self._capabilities, self._labels])
        except (TypeError, ValueError) as error:  # raise now, not later in a thread
            raise ValueError(f"Labels and capabilities must be JSON: {error}.") from None
        self._token = ""
        ssl_context = httpx.create_ssl_context()
        options: dict[str, Any] = {
            "verify": ssl_context,
            "trust_env": not _LOOPBACK.fullmatch(_host_of(self._url)),
            "follow_redirects": False,
            "headers": {"user-agent": "callsheet-worker"},
        }
        self._http, self._claim_http = httpx.Client(**options), httpx.Client(**options)
        self._transfer_http = httpx.Client(
            **options, timeout=httpx.Timeout(_TRANSFER_TIMEOUT_SECONDS, connect=_CONNECT_TIMEOUT_SECONDS)
        )
        self._transfer = FileTransfer(self._transfer_http, self._url)
        self._grant_caches: dict[str, GrantCache] = {}
        self._stopping, self._closed = threading.Event(), threading.Event()
        self._pending_claim: SimpleQueue[ClaimResult | Exception] | None = None
        self._lock = threading.Lock()

    # -- registration

    def register(self, kinds: Sequence[str], concurrency: int, held_task_ids: Sequence[str] = ()) -> Registration:
        request = Register(
            worker=self.name, kinds=list(kinds), concurrency=concurrency, capabilities=self._capabilities,
            labels=self._labels, held_task_ids=list(held_task_ids),
        )  # fmt: skip
        try:
            result = self._post("register", request, Registration, token=self._secret())
        except InvalidTokenError:
            raise RegistrationError(
                "The server rejected the fleet secret: it is wrong or was revoked. Pass an active one."
            ) from None
        except Conflict as error:  # the fleet is full: retry later
            raise UnreachableError(error.message, _FLEET_FULL_RETRY_SECONDS) from None
        except Refusal as error:
            raise RegistrationError(f"The server rejected this worker: {error.message}") from None
        self._token = result.token
        return result

    def deregister(self, reason: str) -> Deregistered:
        return self._post("deregister", Deregister(reason=reason), Deregistered, _SHUTDOWN_TIMEOUT_SECONDS)

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            if self._pending_claim is not None:
                self._pending_claim.put(ClaimResult([], drain=False))

    def close(self) -> None:
        self.stop()
        self._closed.set()
        self._http.close()
        self._transfer_http.close()
        with self._lock:
            if self._pending_claim is None:
                self._claim_http.close()

    # -- tasks

    def claim(self, request: Claim) -> ClaimResult:
        """Send the claim in a separate thread, because a waiting request cannot be interrupted.

        Tasks that it still receives after `stop` are requeued.
        """
        result_queue: SimpleQueue[ClaimResult | Exception] = SimpleQueue()
        with self._lock:
            if self._stopping.is_set():
                return ClaimResult([], drain=False)
            self._pending_claim = result_queue
        threading.Thread(
            target=self._claim_in_thread, args=(request, result_queue), name="callsheet-claim", daemon=True
        ).start()
        claimed = result_queue.get()
        if isinstance(claimed, Exception):
            raise claimed
        for work in claimed.tasks:
            self._grant_caches[work.lease.token] = GrantCache(work.files)
        return claimed

    def heartbeat(self, heartbeats: Sequence[TaskHeartbeat], timeout_seconds: float) -> HeartbeatResponse:
        request = Heartbeat(
            heartbeats=[
                replace(heartbeat, downloads=self._grant_cache_of(heartbeat.lease.token).list_expiring())
                for heartbeat in heartbeats
            ]
        )
        response = self._post("heartbeat", request, HeartbeatResponse, timeout_seconds)
        if len(response.results) != len(heartbeats):
            raise UnreachableError("the server returned results for other leases")
        for heartbeat, result in zip(heartbeats, response.results, strict=True):
            if result.grants is not None:
                self._grant_cache_of(heartbeat.lease.token).add(result.grants.downloads)
        return response

    def record_submission(self, request: ProviderSubmission) -> ReportResult:
        return self._post("submitted", request, ReportResult)

    def complete(self, request: Complete) -> ReportResult:
        try:
            return self._post("complete", request, ReportResult, _TRANSFER_TIMEOUT_SECONDS)
        except _TooLarge:
            too_large = "The output exceeds the size limit of the server. Upload it as a file instead."
            raise BadInput("output_too_large", too_large) from None

    def fail(self, request: Fail) -> ReportResult:
        return self._post("fail", request, ReportResult)

    def requeue(self, request: Requeue) -> ReportResult:
        return self._post("requeue", request, ReportResult, _SHUTDOWN_TIMEOUT_SECONDS)

    def forget(self, work: TaskPayload) -> None:
        self._grant_caches.pop(work.lease.token, None)

    # -- files

    def previous_outputs(self, work: TaskPayload) -> list[PreviousOutput]:
        page = self._post("previous-outputs", PreviousOutputsRequest(lease=work.lease), PreviousOutputs)
        tasks = page.tasks
        while page.next is not None:
            page = self._post(
                "previous-outputs", PreviousOutputsRequest(lease=work.lease, cursor=page.next), PreviousOutputs
            )
            tasks += page.tasks
        for previous_outputs in tasks:
            self._grant_cache_of(work.lease.token).add(previous_outputs.files)
        return tasks

    def input_file(self, work: TaskPayload, file_id: str) -> InputFile:
        granted = self._request_grants(FileGrantsRequest(lease=work.lease, downloads=[file_id])).downloads
        if not granted:
            raise NonRetryableError(f"This task has no file {file_id!r}.", code="file_not_found")
        return granted[0]

    def download(self, work: TaskPayload, file: InputFile, into: Path, check: Check) -> None:
        cached_grant = self._grant_cache_of(work.lease.token).pop(file.id)
        try:
            self._transfer.download(cached_grant or self.input_file(work, file.id).download, into, file.bytes, check)
        except GrantRejectedError as error:
            if cached_grant is None:  # a new URL is rejected too
                raise RetryableError(f"A file cannot be downloaded: {error}.", code="file_refused") from None
            raise

    def upload(self, work: TaskPayload, output_file: OutputFile, body: bytes | Path, check: Check) -> None:
        granted = self._request_grants(FileGrantsRequest(lease=work.lease, uploads=[output_file])).uploads
        if not granted:
            raise RetryableError("The server returned no upload URL for a file.", code="file_refused")
        try:
            self._transfer.upload(granted[0].upload, body, output_file.bytes, check)
        except GrantRejectedError as error:
            raise RetryableError(f"A file cannot be uploaded: {error}.", code="file_refused") from None

    def upload_preview(self, work: TaskPayload, picture: bytes, media_type: str) -> None:
        _ = media_type  # the server detects it
        grant_cache = self._grant_cache_of(work.lease.token)
        grant = grant_cache.preview or self._request_grants(FileGrantsRequest(lease=work.lease, preview=True)).preview
        if grant is None:
            raise UnreachableError("the server returned no upload URL for a preview")
        try:
            self._transfer.upload(grant, picture, len(picture), lambda: None)
        except UnreachableError:
            grant_cache.discard_preview()
            raise

    # -- helpers

    def _grant_cache_of(self, token: str) -> GrantCache:
        return self._grant_caches.get(token) or GrantCache()

    def _request_grants(self, request: FileGrantsRequest) -> FileGrants:
        grants = self._post("files", request, FileGrants)
        self._grant_cache_of(request.lease.token).add((), grants.preview)
        return grants

    def _claim_in_thread(self, request: Claim, result_queue: "SimpleQueue[ClaimResult | Exception]") -> None:
        try:
            result: ClaimResult | Exception = self._post(
                "claim", request, ClaimResult, request.wait_seconds + _REQUEST_TIMEOUT_SECONDS, http=self._claim_http
            )
        except Exception as error:  # noqa: BLE001 - raised again by claim()
            result = error
        with self._lock:
            if not self._stopping.is_set():
                result_queue.put(result)
                self._pending_claim = None
                return
        for work in result.tasks if isinstance(result, ClaimResult) else ():  # claim() has already returned
            self._requeue_unwanted(work)
        with self._lock:
            self._pending_claim = None
            self._claim_http.close()

    def _requeue_unwanted(self, work: TaskPayload) -> None:
        """Requeue a task that arrived after `stop`. If this fails, deregistering requeues it."""
        request = Requeue(lease=work.lease, reason="the worker is shutting down")
        deadline = time.monotonic() + work.lease_seconds
        for pause in backoff_delays():
            try:
                with suppress(Refusal, InvalidTokenError):  # the lease has ended
                    self._post("requeue", request, ReportResult, _SHUTDOWN_TIMEOUT_SECONDS, http=self._claim_http)
            except UnreachableError as error:
                if self._closed.wait(max(pause, error.retry_after_seconds)) or time.monotonic() >= deadline:
                    return
            else:
                return

    def _post(
        self, path: str, request: Any, response_type: type[T], seconds: float = _REQUEST_TIMEOUT_SECONDS, *,
        token: str | None = None,
        http: httpx.Client | None = None,
    ) -> T:  # fmt: skip
        """Send one request; return the parsed response or raise the error it contains."""
        bearer_token = self._token if token is None else token
        headers = {"authorization": f"Bearer {bearer_token}", "content-type": "application/json"}
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_TIMEOUT_SECONDS))
        body, sent_at = msgspec.json.encode(request), time.monotonic()
        try:
            response = (http or self._http).post(
                f"{self._url}/v1/worker/{path}", content=body, headers=headers, timeout=timeout
            )
        except (*NETWORK_ERRORS, RuntimeError) as error:  # RuntimeError: the client was closed
            raise UnreachableError(f"no response ({type(error).__name__})") from None
        if response.status_code == _UNAUTHORIZED or (token is None and _is_limited_token(response)):
            raise InvalidTokenError(_parse_problem(response).message, sent_at)
        return _parse_response(response, response_type)


def _is_limited_token(response: httpx.Response) -> bool:
    """Return whether the token is invalid and the server has got too many invalid keys from this IP address."""
    return response.status_code == _TOO_MANY_REQUESTS and _parse_problem(response).code == "too_many_failed_auth"


def _parse_response(response: httpx.Response, response_type: type[T]) -> T:
    status = response.status_code
    if response.is_success:
        try:
            return msgspec.json.decode(response.content, type=response_type)
        except msgspec.DecodeError:  # the error page of a proxy, or a server of another version
            raise UnreachableError("the response is not valid for this version of the protocol") from None
    problem = _parse_problem(response)
    if status == _TOO_MANY_REQUESTS or status >= _SERVER_ERROR:
        raise UnreachableError(
            f"status {status} {problem.code}", parse_retry_after(response.headers.get("retry-after"))
        )
    if problem.code in LOST_LEASE_CODES:
        raise LeaseLost(problem.message)
    message = problem.message or f"Status {status}. Check that {response.url.host} is a Callsheet server."
    raise _ERRORS_BY_STATUS.get(status, Refusal)(problem.code, message)


def _parse_problem(response: httpx.Response) -> _Problem:
    try:
        return msgspec.json.decode(response.content, type=_Problem)
    except msgspec.DecodeError:
        return _Problem()


def _host_of(url: str) -> str:
    """Return the host of a URL; raise ValueError if it is not an HTTP URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"{url!r} is not a server URL: it must begin with http:// or https://.")
    return parsed.host
