"""A worker's link to a house over HTTP: it calls, and is never called."""

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

from callsheet.core.commands import Made
from callsheet.core.errors import BadInput, Conflict, Denied, LeaseLost, Refusal
from callsheet.protocol import (
    Beat,
    Before,
    Claim,
    Claimed,
    Complete,
    Deregister,
    Earlier,
    EarlierStages,
    Fail,
    Files,
    Given,
    Gone,
    Grants,
    Heartbeat,
    Heartbeaten,
    Register,
    Registered,
    Reported,
    Requeue,
    Submitted,
    Work,
)
from callsheet.worker.addresses import Addresses
from callsheet.worker.errors import Barred, Dismissed, GiveUp, Retry, Unreachable
from callsheet.worker.link import GONE, Check
from callsheet.worker.patience import asked, pauses
from callsheet.worker.transfer import BROKEN, Stale, Transfer

T = TypeVar("T")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1")
"""Where no proxy of the environment can lead."""
_ANSWER_SECONDS, _CONNECT_SECONDS, _GOODBYE_SECONDS = 30.0, 5.0, 5.0
_ROOM_SECONDS = 15.0
_TRANSFER_SECONDS = 60.0
"""How long a transfer may stand still."""
_UNAUTHORIZED, _LATER, _FAULT = 401, 429, 500


class _TooLarge(BadInput):
    """The house, or a proxy before it, does not take a body of this size."""


_REFUSALS: dict[int, type[Refusal]] = {400: BadInput, 413: _TooLarge, 422: BadInput, 403: Denied, 409: Conflict}


class _Problem(Struct, frozen=True):
    """What the house says when it does not do something."""

    code: str = "refused"
    message: str = ""


class HttpLink:
    """Reaches a house by its URL, under a name of the worker's own; `secret` returns the fleet's secret when asked."""

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
        except (TypeError, ValueError) as error:  # said here, to whoever can act on it, and not in a thread
            raise ValueError(f"Labels and capabilities must be JSON: {error}.") from None
        self._token = ""
        trusted = httpx.create_ssl_context()
        options: dict[str, Any] = {
            "verify": trusted,
            "trust_env": not _LOOPBACK.fullmatch(_host(self._url)),
            "follow_redirects": False,
            "headers": {"user-agent": "callsheet-worker"},
        }
        self._http, self._claims = httpx.Client(**options), httpx.Client(**options)
        self._bare = httpx.Client(**options, timeout=httpx.Timeout(_TRANSFER_SECONDS, connect=_CONNECT_SECONDS))
        self._transfer = Transfer(self._bare, self._url)
        self._addresses: dict[str, Addresses] = {}
        self._stopping, self._closed = threading.Event(), threading.Event()
        self._asking: SimpleQueue[Claimed | Exception] | None = None
        self._lock = threading.Lock()

    # -- coming and going

    def register(self, kinds: Sequence[str], concurrency: int) -> Registered:
        told = Register(
            worker=self.name, kinds=list(kinds), concurrency=concurrency, capabilities=self._capabilities,
            labels=self._labels,
        )  # fmt: skip
        try:
            came = self._ask("register", told, Registered, token=self._secret())
        except Dismissed:
            raise Barred("The house does not take this fleet secret: it is wrong, or was revoked.") from None
        except Conflict as error:  # the fleet is full: there may be room later
            raise Unreachable(error.message, _ROOM_SECONDS) from None
        except Refusal as error:
            raise Barred(f"The house does not let this worker in: {error.message}") from None
        self._token = came.token
        return came

    def deregister(self, reason: str) -> Gone:
        return self._ask("deregister", Deregister(reason=reason), Gone, _GOODBYE_SECONDS)

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            if self._asking is not None:
                self._asking.put(Claimed([], drain=False))

    def close(self) -> None:
        self.stop()
        self._closed.set()
        self._http.close()
        self._bare.close()
        with self._lock:
            if self._asking is None:
                self._claims.close()

    # -- work

    def claim(self, asked: Claim) -> Claimed:
        """Ask in a thread of its own: a request that waits cannot be cut off, only left alone.

        What such a request still gets after `stop` is given back.
        """
        answer: SimpleQueue[Claimed | Exception] = SimpleQueue()
        with self._lock:
            if self._stopping.is_set():
                return Claimed([], drain=False)
            self._asking = answer
        threading.Thread(target=self._claim, args=(asked, answer), name="callsheet-claim", daemon=True).start()
        claimed = answer.get()
        if isinstance(claimed, Exception):
            raise claimed
        for work in claimed.tasks:
            self._addresses[work.lease.token] = Addresses(work.files)
        return claimed

    def heartbeat(self, beats: Sequence[Beat], within_seconds: float) -> Heartbeaten:
        told = Heartbeat(beats=[replace(beat, gets=self._of(beat.lease.token).growing_old()) for beat in beats])
        heard = self._ask("heartbeat", told, Heartbeaten, within_seconds)
        if len(heard.beats) != len(beats):
            raise Unreachable("the house answers for other leases than it was asked about")
        for beat, answer in zip(beats, heard.beats, strict=True):
            if answer.grants is not None:
                self._of(beat.lease.token).take(answer.grants.gets)
        return heard

    def submitted(self, told: Submitted) -> Reported:
        return self._ask("submitted", told, Reported)

    def complete(self, told: Complete) -> Reported:
        try:
            return self._ask("complete", told, Reported, _TRANSFER_SECONDS)
        except _TooLarge:
            too_large = "The output is larger than the house takes: put it into a file."
            raise BadInput("output_too_large", too_large) from None

    def fail(self, told: Fail) -> Reported:
        return self._ask("fail", told, Reported)

    def requeue(self, told: Requeue) -> Reported:
        return self._ask("requeue", told, Reported, _GOODBYE_SECONDS)

    def forget(self, work: Work) -> None:
        self._addresses.pop(work.lease.token, None)

    # -- files

    def earlier(self, work: Work) -> list[Earlier]:
        page = self._ask("earlier", Before(lease=work.lease), EarlierStages)
        tasks = page.tasks
        while page.next is not None:
            page = self._ask("earlier", Before(lease=work.lease, after=page.next), EarlierStages)
            tasks += page.tasks
        for earlier in tasks:
            self._of(work.lease.token).take(earlier.files)
        return tasks

    def given(self, work: Work, file_id: str) -> Given:
        found = self._files(Files(lease=work.lease, gets=[file_id])).gets
        if not found:
            raise GiveUp("This task has no such file.", code="file_not_found")
        return found[0]

    def get(self, work: Work, file: Given, into: Path, check: Check) -> None:
        known = self._of(work.lease.token).use(file.id)
        try:
            self._transfer.get(known or self.given(work, file.id).get, into, file.bytes, check)
        except Stale as error:
            if known is None:  # not even a new address is taken
                raise Retry(f"A file cannot be read: {error}.", code="file_refused") from None
            raise

    def put(self, work: Work, made: Made, body: bytes | Path, check: Check) -> None:
        granted = self._files(Files(lease=work.lease, puts=[made])).puts
        if not granted:
            raise Retry("The house gives no address for a file.", code="file_refused")
        try:
            self._transfer.put(granted[0].put, body, made.bytes, check)
        except Stale as error:
            raise Retry(f"A file cannot be put: {error}.", code="file_refused") from None

    def put_preview(self, work: Work, picture: bytes, media_type: str) -> None:
        _ = media_type  # whoever looks at it finds out
        addresses = self._of(work.lease.token)
        grant = addresses.preview or self._files(Files(lease=work.lease, preview=True)).preview
        if grant is None:
            raise Unreachable("the house takes no preview")
        try:
            self._transfer.put(grant, picture, len(picture), lambda: None)
        except Unreachable:
            addresses.drop_preview()
            raise

    # -- inside

    def _of(self, token: str) -> Addresses:
        return self._addresses.get(token) or Addresses()

    def _files(self, told: Files) -> Grants:
        grants = self._ask("files", told, Grants)
        self._of(told.lease.token).take((), grants.preview)
        return grants

    def _claim(self, told: Claim, answer: "SimpleQueue[Claimed | Exception]") -> None:
        try:
            came: Claimed | Exception = self._ask(
                "claim", told, Claimed, told.wait_seconds + _ANSWER_SECONDS, http=self._claims
            )
        except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
            came = error
        with self._lock:
            if not self._stopping.is_set():
                answer.put(came)
                self._asking = None
                return
        for work in came.tasks if isinstance(came, Claimed) else ():  # nobody waits for it any more
            self._give_back(work)
        with self._lock:
            self._asking = None
            self._claims.close()

    def _give_back(self, work: Work) -> None:
        """Give back what nobody will work on; if that is not heard, saying goodbye does it."""
        told = Requeue(lease=work.lease, reason="the worker takes no more work")
        until = time.monotonic() + work.lease_seconds
        for pause in pauses():
            try:
                with suppress(Refusal, Dismissed):  # it is not this worker's any more
                    self._ask("requeue", told, Reported, _GOODBYE_SECONDS, http=self._claims)
            except Unreachable as error:
                if self._closed.wait(max(pause, error.after_seconds)) or time.monotonic() >= until:
                    return
            else:
                return

    def _ask(
        self, path: str, told: Any, kind: type[T], seconds: float = _ANSWER_SECONDS, *, token: str | None = None,
        http: httpx.Client | None = None,
    ) -> T:  # fmt: skip
        """Send one message, and return its answer or raise what it says instead."""
        mine = self._token if token is None else token
        headers = {"authorization": f"Bearer {mine}", "content-type": "application/json"}
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        body = msgspec.json.encode(told)
        try:
            answer = (http or self._http).post(
                f"{self._url}/v1/worker/{path}", content=body, headers=headers, timeout=timeout
            )
        except (*BROKEN, RuntimeError) as error:  # a RuntimeError is a client that was closed meanwhile
            raise Unreachable(f"it does not answer ({type(error).__name__})") from None
        if answer.status_code == _UNAUTHORIZED and token is None and mine != self._token:
            raise Unreachable("the worker registered anew meanwhile")
        return _read(answer, kind)


def _read(answer: httpx.Response, kind: type[T]) -> T:
    status = answer.status_code
    if answer.is_success:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError:  # a proxy's page, or a house of another version
            raise Unreachable("it answers something that no house of this version says") from None
    problem = _problem(answer)
    if status == _UNAUTHORIZED:
        raise Dismissed(problem.message)
    if status == _LATER or status >= _FAULT:
        raise Unreachable(f"it answers {status} {problem.code}", asked(answer.headers.get("retry-after")))
    if problem.code in GONE:
        raise LeaseLost(problem.message)
    said = problem.message or f"It answers {status}: is {answer.url.host} the house?"
    raise _REFUSALS.get(status, Refusal)(problem.code, said)


def _problem(answer: httpx.Response) -> _Problem:
    try:
        return msgspec.json.decode(answer.content, type=_Problem)
    except msgspec.DecodeError:
        return _Problem()


def _host(url: str) -> str:
    """Return the host of an address that is one."""
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL:
        found = httpx.URL("")
    if found.scheme not in {"http", "https"} or not found.host:
        raise ValueError("The house's address begins with http:// or https://.")
    return found.host
