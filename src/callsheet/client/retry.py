"""How a request is tried again: only where that is safe, a little later each time, not in step with others."""

from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from callsheet.client.deadline import seconds_left
from callsheet.client.errors import APIConnectionError, CallsheetError
from callsheet.client.operations import Open, Operation, Reply, Request, Send, Sleep, TransportError
from callsheet.transport.backoff import delay_after
from callsheet.transport.retry_after import parse_retry_after

_TOO_MANY_REQUESTS = 429
_ACTIVE_JOBS_CODE = b'"too_many_active_jobs"'
_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})


class RetryPolicy(Struct, frozen=True):
    """How often, and how long in between."""

    retries_max: int = 6
    base_seconds: float = 0.25
    max_seconds: float = 8.0

    def delay_seconds(self, failures: int) -> float:
        """Return the wait after so many failures: it doubles, and is drawn from its upper half."""
        return delay_after(failures, self.base_seconds, self.max_seconds)


class RetryContext(Protocol):
    """Whoever asks: which server, and how patiently."""

    url: str
    retry_policy: RetryPolicy


def send_with_retries(
    context: RetryContext, request: Request, effect_type: type[Send] | type[Open] = Send
) -> Operation[Reply]:
    """Send a request until it is answered, the patience is over, or nobody waits for the answer any more."""
    failures = 0
    while True:
        answer: Reply | TransportError
        try:
            answer = yield effect_type(request)
        except TransportError as error:
            answer = error
        if failures >= context.retry_policy.retries_max or not _should_retry(answer, request):
            break
        failures += 1
        yield Sleep(
            min(
                max(context.retry_policy.delay_seconds(failures), _retry_after_seconds(answer)),
                seconds_left(request.deadline),
            )
        )
        if not seconds_left(request.deadline):
            break
    if isinstance(answer, TransportError):
        raise connection_error(answer, context.url, request) from None
    return answer


def connection_error(error: TransportError, url: str, request: Request) -> APIConnectionError:
    """Say who does not answer: the server, or the storage to which it showed the way."""
    parts = urlsplit(request.path if request.omit_credentials else url)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"  # no name, no password, and no signature
    return APIConnectionError("connection_failed", f"{origin} does not answer: {error}.")


def is_temporary(error: CallsheetError) -> bool:
    """Say whether an error is that nobody did the work for now, rather than a word about it."""
    return isinstance(error, APIConnectionError) or error.status in {*_UNAVAILABLE_STATUSES, _TOO_MANY_REQUESTS}


def _should_retry(answer: Reply | TransportError, request: Request) -> bool:
    """Say whether another try may help: a 429 was not done; behind a 503, or what broke, it may have been.

    A cap on active jobs is the caller's to wait for: it lasts as long as a job does.
    """
    if isinstance(answer, TransportError):
        return request.idempotent or not answer.sent
    if answer.status == _TOO_MANY_REQUESTS:
        return "retry-after" in answer.headers and _ACTIVE_JOBS_CODE not in answer.body
    return answer.status in _UNAVAILABLE_STATUSES and request.idempotent


def _retry_after_seconds(answer: Reply | TransportError) -> float:
    """Return the wait that the server asks for, within reason."""
    return 0.0 if isinstance(answer, TransportError) else parse_retry_after(answer.headers.get("retry-after"))
