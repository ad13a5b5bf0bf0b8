"""Interruption notices, which announce that the cloud will reclaim this machine: from AWS metadata, a file or a URL."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import httpx
from msgspec import Struct

from callsheet.worker.errors import UnreachableError
from callsheet.worker.runtime.worker_events import EventListener, WorkerError, ignore_listener_errors

POLL_SECONDS = 5.0
_METADATA_URL = "http://169.254.169.254"
_TIMEOUT_SECONDS = 2.0
_TOKEN_TTL_SECONDS = "21600"  # noqa: S105 - a duration
_OK, _UNAUTHORIZED = 200, 401
_REASON_CHARS_MAX = 200


class Interruption(Struct, frozen=True):
    """An interruption notice. With `drain`, running tasks may finish; otherwise they are requeued immediately."""

    reason: str
    drain: bool = False


class InterruptionSource(Protocol):
    """A source of interruption notices, polled every few seconds. Exceptions are reported and otherwise ignored."""

    def poll(self) -> Interruption | None:
        """Return the current notice, or None."""
        ...


class AwsSpotSource:
    """AWS instance metadata (IMDSv2): spot interruptions and rebalance recommendations, which only drain."""

    def __init__(self, base_url: str = _METADATA_URL, *, rebalance: bool = True) -> None:
        # A link-local address: never use a proxy from the environment.
        self._http = httpx.Client(base_url=base_url, timeout=_TIMEOUT_SECONDS, trust_env=False)
        self._rebalance = rebalance
        self._token: str | None = None

    def poll(self) -> Interruption | None:
        if self._exists("/latest/meta-data/spot/instance-action"):
            return Interruption("spot interruption")
        if self._rebalance and self._exists("/latest/meta-data/events/recommendations/rebalance"):
            return Interruption("spot rebalance recommendation", drain=True)
        return None

    def _exists(self, path: str) -> bool:
        response = self._get_metadata(path)
        if response.status_code == _UNAUTHORIZED:  # the token has expired
            self._token = None
            response = self._get_metadata(path)
        return response.status_code == _OK

    def _get_metadata(self, path: str) -> httpx.Response:
        if self._token is None:
            token_response = self._http.put(
                "/latest/api/token", headers={"x-aws-ec2-metadata-token-ttl-seconds": _TOKEN_TTL_SECONDS}
            )
            self._token = token_response.raise_for_status().text
        return self._http.get(path, headers={"x-aws-ec2-metadata-token": self._token})


class FileSource:
    """A file that exists once the machine will be reclaimed. Its first line is the reason."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def poll(self) -> Interruption | None:
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return None
        return Interruption(_first_line(text) or "a notice file")


class UrlSource:
    """A URL that returns 200 once the machine will be reclaimed. The first line of the body is the reason."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.Client(timeout=_TIMEOUT_SECONDS, trust_env=False)

    def poll(self) -> Interruption | None:
        response = self._http.get(self._url)
        return Interruption(_first_line(response.text) or "a notice") if response.status_code == _OK else None


class InterruptionWatcher:
    """Polls the sources and calls back once per notice."""

    def __init__(
        self, sources: Sequence[InterruptionSource], on_interruption: Callable[[Interruption], None],
        on_event: EventListener,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:  # fmt: skip
        self._sources = sources
        self._on_interruption = on_interruption
        self._emit = ignore_listener_errors(on_event)
        self._poll_seconds = poll_seconds
        self._reported: set[Interruption] = set()
        self._failing: set[int] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callsheet-interruption", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for number, source in enumerate(self._sources):
                interruption = self._poll_source(number, source)
                if interruption is not None and interruption not in self._reported:
                    self._reported.add(interruption)
                    self._on_interruption(interruption)
            self._stopping.wait(self._poll_seconds)

    def _poll_source(self, number: int, source: InterruptionSource) -> Interruption | None:
        """Poll once. A failure is reported when it begins, not at every poll."""
        try:
            interruption = source.poll()
        except Exception as error:  # noqa: BLE001 - a failing source is not an interruption
            if number not in self._failing:
                self._failing.add(number)
                reason = UnreachableError(type(error).__name__)
                self._emit(WorkerError("Polling for an interruption notice failed", reason))
            return None
        self._failing.discard(number)
        return interruption


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:_REASON_CHARS_MAX].strip() if lines else ""
