"""Calls about files: their bytes, proved by digest and size before anybody gets them."""

import hashlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from callsheet.client.binding import call
from callsheet.client.errors import Damaged, error_of, failed
from callsheet.client.patience import patiently, unreachable
from callsheet.client.speaking import Speaking, get, path
from callsheet.client.stored import File
from callsheet.client.talk import Ask, Broken, Nap, Open, Read, Reply, Request, Talk, Work

_PART, _ELSEWHERE = 206, 307
_WHOLE = {"accept-encoding": "identity"}
"""Bytes as they are kept, so that they can be counted."""


class Files(Speaking):
    """Fetch what jobs made."""

    @call
    def download(self, file: File | str, to: str | Path) -> Talk[Path]:
        """Write a file's bytes to a path, or into a folder under its own name. It is whole when it has its name."""
        target = Path(to)
        if (yield Work(target.is_dir)):
            target = target / _name(file)
        part = target.with_name(f".{target.name}.part")
        try:
            yield from self._fetched(file, lambda: part.open("wb"))
            yield Work(lambda: part.replace(target))
        finally:
            part.unlink(missing_ok=True)
        return target

    @call
    def read(self, file: File | str) -> Talk[bytes]:
        """Return a file's bytes."""
        sinks: list[_Memory] = []

        def memory() -> _Memory:
            sinks.append(_Memory())
            return sinks[-1]

        yield from self._fetched(file, memory)
        return bytes(sinks[-1])

    @call
    def preview(self, job_id: str, task_id: str) -> Talk[bytes]:
        """Return the newest preview picture (PNG) of a running task."""
        reply = yield from patiently(self.patience, get(path("jobs", job_id, "tasks", task_id, "preview")))
        if failed(reply.status):
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply.body

    def _fetched(self, file: File | str, make: Callable[[], Any]) -> Talk[None]:
        """Stream a file into a new sink; what breaks on the way goes on where it broke, if the file is the same."""
        request = get(path("files", file if isinstance(file, str) else file.id))
        failures = furthest = 0
        got: _Got | None = None
        try:
            while True:
                headers = _WHOLE if got is None else got.rest()
                reply, proof = yield from self._opened(request._replace(headers=headers))
                if got is None or not got.goes_on(reply):
                    got = yield from _anew(got, make, reply)
                try:
                    yield from got.pour()
                    break
                except Broken as error:
                    failures = 1 if got.size > furthest else failures + 1
                    furthest = max(furthest, got.size)
                    if failures > self.patience.retries_max:
                        raise unreachable(error) from None
                yield Nap(self.patience.seconds(failures))
        finally:
            if got is not None:
                got.sink.close()
        _prove(file, got, proof)

    def _opened(self, request: Request) -> Talk[tuple[Reply, str]]:
        """Open a file, in its bucket if the server shows the way; return also what the server says that it is."""
        reply = yield from patiently(self.patience, request, Open)
        proof, there = reply.headers.get("etag", ""), reply.headers.get("location", "")
        if reply.status == _ELSEWHERE and there.startswith(("https://", "http://")):
            in_bucket = Request("GET", there, headers=request.headers, bare=True)
            reply = yield from patiently(self.patience, in_bucket, Open)
        if failed(reply.status):
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply, proof.strip('"')


class _Got:
    """What has arrived of a file."""

    def __init__(self, sink: Any, tag: str) -> None:
        self.sink = sink
        self.size = 0
        self.tag = tag
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def pour(self) -> Generator[Ask, Any, None]:
        """Take what comes, up to the end."""
        while chunk := (yield Read()):
            yield Work(lambda data=chunk: self.sink.write(data))  # type: ignore[misc]
            self.size += len(chunk)
            self._digest.update(chunk)

    def rest(self) -> dict[str, str]:
        """Return how the rest is asked for; bytes without a name of their state are asked for anew."""
        if not self.size or not self.tag.startswith('"'):
            return _WHOLE
        return {**_WHOLE, "range": f"bytes={self.size}-", "if-range": self.tag}

    def goes_on(self, reply: Reply) -> bool:
        """Say whether an answer begins where this ends."""
        begins = reply.headers.get("content-range", "").startswith(f"bytes {self.size}-")
        return reply.status == _PART and begins and reply.headers.get("etag", self.tag) == self.tag


def _anew(got: _Got | None, make: Callable[[], Any], reply: Reply) -> Generator[Ask, Any, _Got]:
    """Forget what has arrived, if anything, and take what this answer brings."""
    if got is not None:
        got.sink.close()
    return _Got((yield Work(make)), reply.headers.get("etag", ""))


class _Memory(bytearray):
    """A sink in memory."""

    def write(self, data: bytes, /) -> None:
        self.extend(data)

    def close(self) -> None:
        """Keep the bytes: there is nothing to give back."""


def _prove(file: File | str, got: _Got, proof: str) -> None:
    """Refuse other bytes than the job's record says; without the record, than the server says."""
    if isinstance(file, str):
        wanted_size, wanted = got.size, proof
    else:
        wanted_size, wanted = file.bytes, file.sha256
    if (got.size, got.digest) != (wanted_size, wanted):
        name = file if isinstance(file, str) else file.id
        raise Damaged("damaged_file", f"The file {name} arrived with other bytes than it has: fetch it again.")


def _name(file: File | str) -> str:
    """Return a name that stays in its folder, and is none of those that programs read there by themselves."""
    return Path(file if isinstance(file, str) else file.name or file.id).name.lstrip(".") or "file"
