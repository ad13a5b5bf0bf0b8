"""HTTP to a server that runs graphs: patient, without an Origin, and without its key to anybody else.

ComfyUI may stall for seconds while it encodes previews: timeouts are long, and one slow answer means nothing.
"""

import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx

from callsheet.worker.comfyui.base import Away, Declined, Gone, Output, Rejected

TIMEOUT_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_TRIES = 3
READY_SECONDS = 5.0
"""How long a look whether a server is there may take."""
_PAUSES = (0.2, 1.0, None)
"""Between the tries of a file; after the last there is none."""
_WAIT_SECONDS, _WAIT_SECONDS_MAX = 5.0, 60.0
_PIECE_BYTES = 1 << 20
_MIB = 1 << 20
_DENIED = {401: "does not accept the key", 402: "has no credits left", 403: "does not allow this"}
_SERVER_ERROR = 500
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""There was no connection: nobody has heard the request."""


class Wire:
    """One server. Called from many threads."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, proxied: bool, bytes_max: int,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:  # fmt: skip
        parts = urlsplit(url.rstrip("/"))
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a ComfyUI server, such as http://127.0.0.1:8188.")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self.socket_url = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{parts.path}"
        """Where WebSockets are, with the name and password that the address may hold."""
        self._host = parts.hostname
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        self._bytes_max = bytes_max
        timeout = httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS)
        self._client = httpx.Client(
            base_url=self.url, headers=headers, auth=login, timeout=timeout, verify=tls(), trust_env=proxied
        )
        self._bare = httpx.Client(timeout=timeout, verify=tls(), trust_env=proxied)
        """Knows no key: for storage that the server points to."""

    def close(self) -> None:
        self._client.close()
        self._bare.close()

    def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send one request; whatever is not an answer is `Away`."""
        try:
            answer = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            sent = not isinstance(error, _UNSENT)
            raise Away(f"ComfyUI did not answer ({type(error).__name__}).", sent=sent) from error
        return answer

    def get(self, path: str) -> Any:
        """Return the JSON at a path; None if there is none."""
        answer = self.ask("GET", path)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return body_of(good(answer))

    def bring(self, path: str, field: str, name: str, file: Path, more: Mapping[str, str]) -> httpx.Response:
        """Send a file as a form; it is read anew for each try."""
        for left in reversed(range(_TRIES)):
            try:
                with file.open("rb") as body:
                    return self.ask(
                        "POST", path, files={field: (name, body, more.get("content_type"))}, data=dict(more)
                    )
            except Away:
                if not left:
                    raise
        raise AssertionError("not reached")

    @contextmanager
    def stream(self, path: str) -> Iterator[httpx.Response]:
        """Open an answer that goes on for a while."""
        with self._client.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
            yield answer

    def fetch(self, output: Output, path: str, params: Mapping[str, str], into: Path) -> str:
        """Write a file; follow the server to its storage, but leave the key at home."""
        for pause in _PAUSES:
            try:
                with self._client.stream("GET", path, params=dict(params)) as answer:
                    if answer.is_redirect:
                        return self._from_storage(output, answer.headers.get("location", ""), into)
                    return self._written(output, answer, into)
            except Away:
                if pause is None:
                    raise
            except httpx.HTTPError as error:
                if pause is None:
                    raise Away(f"Fetching {output.name} failed ({type(error).__name__}).") from error
            time.sleep(pause)
        raise AssertionError("not reached")

    def _from_storage(self, output: Output, location: str, into: Path) -> str:
        target = urlsplit(location)
        if target.scheme != "https" and target.hostname != self._host:
            raise Rejected(
                "The server points to storage that is neither encrypted nor its own. The graph ran, and is not run "
                "again by itself.", code="output_unreachable",
            )  # fmt: skip
        with self._bare.stream("GET", location) as answer:
            return self._written(output, answer, into)

    def _written(self, output: Output, answer: httpx.Response, into: Path) -> str:
        if answer.status_code in {httpx.codes.NOT_FOUND, httpx.codes.GONE}:
            raise Gone(output)
        good(answer)
        size = 0
        with into.open("wb") as file:
            for piece in answer.iter_bytes(_PIECE_BYTES):
                size += len(piece)
                if size > self._bytes_max:
                    raise Rejected(
                        f"{output.name} is larger than {self._bytes_max // _MIB} MiB.", code="file_too_large"
                    )
                file.write(piece)
        return str(answer.headers.get("content-type", ""))


@cache
def tls() -> ssl.SSLContext:
    """Return what certificates are checked with; to read them takes a while, so that is done once."""
    return httpx.create_ssl_context()


def good(answer: httpx.Response) -> httpx.Response:
    """Return an answer that is none of trouble; what the server says in it is not passed on."""
    if answer.is_success:
        return answer
    if answer.status_code in _DENIED:
        raise Declined(f"ComfyUI {_DENIED[answer.status_code]}.")
    raise Away(f"ComfyUI answered with status {answer.status_code}.")


def body_of(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise Away("ComfyUI did not answer with JSON.") from error


def in_trouble(answer: httpx.Response) -> bool:
    return answer.status_code >= _SERVER_ERROR


def wait_of(answer: httpx.Response) -> float:
    """Return how long a server that takes no work wants to be left alone."""
    try:
        return min(float(answer.headers.get("Retry-After", _WAIT_SECONDS)), _WAIT_SECONDS_MAX)
    except ValueError:
        return _WAIT_SECONDS
