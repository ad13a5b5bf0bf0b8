"""Word that this machine will be taken away: from the cloud's metadata, a file, or an address that somebody serves."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import httpx
from msgspec import Struct

from callsheet.worker.errors import Unreachable
from callsheet.worker.facts import Tell, Trouble, guarded

EVERY_SECONDS = 5.0
_METADATA = "http://169.254.169.254"
_ANSWER_SECONDS = 2.0
_LIFE_SECONDS = "21600"
_OK, _UNAUTHORIZED = 200, 401
_CHARS_MAX = 200


class Noticed(Struct, frozen=True):
    """What was heard; `drain` lets what is in hand end, else it is given back at once."""

    reason: str
    drain: bool = False


class Notice(Protocol):
    """Where word of the end comes from. Asked every few seconds; what it raises is told and changes nothing."""

    def look(self) -> Noticed | None:
        """Return what was heard, if anything was."""
        ...


class SpotNotice:
    """The metadata of an AWS instance (IMDSv2): a spot interruption, or the advice to rebalance, which only drains."""

    def __init__(self, base: str = _METADATA, *, rebalance: bool = True) -> None:
        # The address is of this machine: no proxy of the environment leads there.
        self._http = httpx.Client(base_url=base, timeout=_ANSWER_SECONDS, trust_env=False)
        self._rebalance = rebalance
        self._token: str | None = None

    def look(self) -> Noticed | None:
        if self._found("/latest/meta-data/spot/instance-action"):
            return Noticed("spot interruption")
        if self._rebalance and self._found("/latest/meta-data/events/recommendations/rebalance"):
            return Noticed("spot rebalance recommendation", drain=True)
        return None

    def _found(self, path: str) -> bool:
        answer = self._asked(path)
        if answer.status_code == _UNAUTHORIZED:  # the token has run out
            self._token = None
            answer = self._asked(path)
        return answer.status_code == _OK

    def _asked(self, path: str) -> httpx.Response:
        if self._token is None:
            made = self._http.put("/latest/api/token", headers={"x-aws-ec2-metadata-token-ttl-seconds": _LIFE_SECONDS})
            self._token = made.raise_for_status().text
        return self._http.get(path, headers={"x-aws-ec2-metadata-token": self._token})


class FileNotice:
    """A file that somebody makes when the end comes; its first line says why."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self) -> Noticed | None:
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return None
        return Noticed(_first_line(text) or "a notice file")


class UrlNotice:
    """An address that answers 200 when the end comes, and anything else before."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.Client(timeout=_ANSWER_SECONDS, trust_env=False)

    def look(self) -> Noticed | None:
        answer = self._http.get(self._url)
        return Noticed(_first_line(answer.text) or "a notice") if answer.status_code == _OK else None


class Lookout:
    """Asks for word of the end every few seconds, and passes on each that is new."""

    def __init__(
        self, notices: Sequence[Notice], heard: Callable[[Noticed], None], tell: Tell,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:  # fmt: skip
        self._notices = notices
        self._heard = heard
        self._tell = guarded(tell)
        self._every_seconds = every_seconds
        self._passed: set[Noticed] = set()
        self._failing: set[int] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="callsheet-lookout", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            for number, notice in enumerate(self._notices):
                noticed = self._looked(number, notice)
                if noticed is not None and noticed not in self._passed:
                    self._passed.add(noticed)
                    self._heard(noticed)
            self._stopping.wait(self._every_seconds)

    def _looked(self, number: int, notice: Notice) -> Noticed | None:
        """Look once; that it cannot be done is told when it begins, not every few seconds."""
        try:
            noticed = notice.look()
        except Exception as error:  # noqa: BLE001 - a cloud that does not answer takes nothing away
            if number not in self._failing:
                self._failing.add(number)
                self._tell(Trouble("Looking for a notice failed", Unreachable(type(error).__name__)))
            return None
        self._failing.discard(number)
        return noticed


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:_CHARS_MAX].strip() if lines else ""
