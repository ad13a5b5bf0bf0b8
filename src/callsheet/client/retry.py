"""Retries: only where a request is safe to repeat, with exponential backoff and jitter."""

from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from callsheet.client.deadline import seconds_left
from callsheet.client.errors import APIConnectionError, CallsheetError
from callsheet.client.operation_effects import Open, Operation, Reply, Request, Send, Sleep, TransportError
from callsheet.transport.backoff import delay_after
from callsheet.transport.retry_after import parse_retry_after

_TOO_MANY_REQUESTS = 429
_OVERLOADED_CODE = b'"overloaded"'
_ACTIVE_JOBS_CODE = b'"too_many_active_jobs"'
_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})


class RetryPolicy(Struct, frozen=True):
    """The number of retries and the delay between them."""

    retries_max: int = 6
    base_seconds: float = 0.25
    max_seconds: float = 8.0

    def delay_seconds(self, failures: int) -> float:
        """Return the delay after this many failures: exponential, with jitter in its upper half."""
        return delay_after(failures, self.base_seconds, self.max_seconds)


class RetryContext(Protocol):
    """The server and the retry policy of a request."""

    url: str
    retry_policy: RetryPolicy


def send_with_retries(
    context: RetryContext, request: Request, effect_type: type[Send] | type[Open] = Send
) -> Operation[Reply]:
    """Send a request, and retry it until it gets a response, the retries are used up, or its deadline passes."""
    failures = 0
    while True:
        outcome: Reply | TransportError
        try:
            outcome = yield effect_type(request)
        except TransportError as error:
            outcome = error
        if failures >= context.retry_policy.retries_max or not _should_retry(outcome, request):
            break
        failures += 1
        yield Sleep(
            min(
                context.retry_policy.delay_seconds(failures) + _retry_after_seconds(outcome),
                seconds_left(request.deadline),
            )
        )
        if not seconds_left(request.deadline):
            break
    if isinstance(outcome, TransportError):
        raise connection_error(outcome, context.url, request) from None
    return outcome


def connection_error(error: TransportError, url: str, request: Request) -> APIConnectionError:
    """Return the error for a failed connection. It names the host: the server, or the storage it redirected to."""
    parts = urlsplit(request.path if request.omit_credentials else url)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # without credentials or signature
    return APIConnectionError("connection_failed", f"No response from {origin}: {error}.")


def is_temporary(error: CallsheetError) -> bool:
    """Return whether an error is likely to disappear: unreachable, unavailable or rate limited."""
    return isinstance(error, APIConnectionError) or error.status in {*_UNAVAILABLE_STATUSES, _TOO_MANY_REQUESTS}


def _should_retry(outcome: Reply | TransportError, request: Request) -> bool:
    """Return whether to retry. A 429 was not processed; after a 503 or a broken connection, the request may have been.

    An overloaded server processes nothing of a request that it refuses.

    The limit of active jobs is not retried: it lasts as long as a job does.
    """
    if isinstance(outcome, TransportError):
        return request.idempotent or not outcome.sent
    if outcome.status == _TOO_MANY_REQUESTS:
        return "retry-after" in outcome.headers and _ACTIVE_JOBS_CODE not in outcome.body
    return outcome.status in _UNAVAILABLE_STATUSES and (request.idempotent or _OVERLOADED_CODE in outcome.body)


def _retry_after_seconds(outcome: Reply | TransportError) -> float:
    """Return the delay of the Retry-After header, up to a maximum."""
    return 0.0 if isinstance(outcome, TransportError) else parse_retry_after(outcome.headers.get("retry-after"))
