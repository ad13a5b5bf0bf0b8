"""Calls about files: their bytes, proved by digest and size before anybody gets them."""

import hashlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from callsheet.client.binding import call
from callsheet.client.errors import Damaged, error_of, failed
from callsheet.client.keeping import Content, put_beside, there_already
from callsheet.client.patience import patiently, unreachable
from callsheet.client.speaking import Speaking, get, path
from callsheet.client.stored import File
from callsheet.client.talk import Ask, Broken, Nap, Open, Read, Reply, Request, Talk, Work

_Progress = Callable[[int], object] | None
_PART, _ELSEWHERE = 206, 307
_WHOLE = {"accept-encoding": "identity"}
"""Bytes as they are kept, so that they can be counted."""


class Files(Speaking):
    """Fetch what jobs made."""

    @call
    def download(
        self, file: File | str, to: str | Path, *, over: bool = False, progress: Callable[[int], object] | None = None
    ) -> Talk[Path]:
        """Write a file's bytes to a path, or into a folder under its own name. It is whole when it has its name.

        What a folder has is kept: the same bytes are not fetched again, others get a number (sketch-2.png). A path that
        you name yourself is replaced; with `over` so is what a folder has. `progress` is told how many bytes are here.
        """
        target = Path(to)
        inside = yield Work(target.is_dir)
        target = target / _name(file) if inside else target
        beside = inside and not over
        if beside and isinstance(file, File) and file.status == "ready":  # else the server says what became of it
            known = Content(file.bytes, file.sha256)
            there: Path | None = yield Work(lambda: there_already(target, known))
            if there is not None:
                return there
        part = target.with_name(f".callsheet-{uuid4().hex}.part")
        try:
            content = yield from self._fetched(file, lambda: _emptied(part), progress)
            saved: Path = yield Work(lambda: put_beside(part, target, content) if beside else part.replace(target))
        except BaseException:  # also who is told to stop, and can ask for no more work
            part.unlink(missing_ok=True)
            raise
        return saved

    @call
    def read(self, file: File | str) -> Talk[bytes]:
        """Return a file's bytes."""
        sinks: list[_Memory] = []

        def memory() -> _Memory:
            sinks.append(_Memory())
            return sinks[-1]

        yield from self._fetched(file, memory, None)
        return bytes(sinks[-1])

    @call
    def preview(self, job_id: str, task_id: str) -> Talk[bytes]:
        """Return the newest preview picture (PNG) of a running task."""
        reply = yield from patiently(self, get(path("jobs", job_id, "tasks", task_id, "preview")))
        if failed(reply.status):
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return reply.body

    def _fetched(self, file: File | str, make: Callable[[], Any], progress: _Progress) -> Talk[Content]:
        """Stream a file into a new sink; what breaks on the way goes on where it broke, if the file is the same."""
        request = get(path("files", file if isinstance(file, str) else file.id))
        failures = furthest = 0
        got: _Got | None = None
        try:
            while True:
                headers = _WHOLE if got is None else got.rest()
                asked, reply, proof = yield from self._opened(request._replace(headers=headers))
                if got is None or not got.goes_on(reply):
                    got = yield from _anew(got, make, reply)
                try:
                    yield from got.pour(progress)
                    yield Work(got.sink.close)
                    break
                except Broken as error:
                    failures = 1 if got.size > furthest else failures + 1
                    furthest = max(furthest, got.size)
                    if failures > self.patience.retries_max:
                        raise unreachable(error, self.url, asked) from None
                yield Nap(self.patience.seconds(failures))
        finally:
            if got is not None:
                got.sink.close()
        _prove(file, got, proof)
        return Content(got.size, got.digest)

    def _opened(self, request: Request) -> Talk[tuple[Request, Reply, str]]:
        """Open a file, in its bucket if the server shows the way; return who sends it, and what it is to be."""
        reply = yield from patiently(self, request, Open)
        proof, there = reply.headers.get("etag", ""), reply.headers.get("location", "")
        if reply.status == _ELSEWHERE and there.startswith(("https://", "http://")):
            request = Request("GET", there, headers=request.headers, bare=True)
            reply = yield from patiently(self, request, Open)
        if failed(reply.status):
            raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
        return request, reply, proof.strip('"')


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

    def pour(self, progress: _Progress) -> Generator[Ask, Any, None]:
        """Take what comes, up to the end."""
        while chunk := (yield Read()):
            yield Work(lambda data=chunk: self.sink.write(data))  # type: ignore[misc]
            self.size += len(chunk)
            self._digest.update(chunk)
            if progress is not None:
                progress(self.size)

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
        yield Work(got.sink.close)
    return _Got((yield Work(make)), reply.headers.get("etag", ""))


def _emptied(part: Path) -> IO[bytes]:
    """Open a part of a file that nobody else writes; what an earlier try of this download left there goes."""
    part.unlink(missing_ok=True)
    return part.open("xb")


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
