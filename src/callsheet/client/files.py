"""Calls about files: their bytes, proved by digest and size before anybody gets them."""

import hashlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Protocol

from callsheet.client.binding import call
from callsheet.client.errors import Damaged, error_of, failed
from callsheet.client.models import File
from callsheet.client.patience import patiently, unreachable
from callsheet.client.speaking import Speaking, get, path
from callsheet.client.talk import Ask, Broken, Nap, Open, Read, Reply, Talk, Work


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: bytes, /) -> Any: ...


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
        """Stream a file into a new sink; one that breaks on the way is begun again."""
        request = get(path("files", file if isinstance(file, str) else file.id))
        failures = 0
        while True:
            reply = yield from patiently(self.patience, request, Open)
            if failed(reply.status):
                raise error_of(reply.status, reply.body, reply.headers.get("x-request-id", ""))
            sink = yield Work(make)
            try:
                size, digest = yield from _poured(sink)
            except Broken as error:
                failures += 1
                if failures > self.patience.retries_max:
                    raise unreachable(error) from None
                yield Nap(self.patience.seconds(failures))
                continue
            finally:
                sink.close()
            _prove(file, reply, size, digest)
            return


class _Memory(bytearray):
    """A sink in memory."""

    def write(self, data: bytes, /) -> None:
        self.extend(data)

    def close(self) -> None:
        """Keep the bytes: there is nothing to give back."""


def _poured(sink: Sink) -> Generator[Ask, Any, tuple[int, str]]:
    size, digest = 0, hashlib.sha256()
    while chunk := (yield Read()):
        size += len(chunk)
        digest.update(chunk)
        yield Work(lambda data=chunk: sink.write(data))  # type: ignore[misc]
    return size, digest.hexdigest()


def _prove(file: File | str, reply: Reply, size: int, digest: str) -> None:
    """Refuse other bytes than the job's record says; without the record, than the server says."""
    if isinstance(file, str):
        wanted_size, wanted = size, reply.headers.get("etag", "").strip('"')
    else:
        wanted_size, wanted = file.bytes, file.sha256
    if (size, digest) != (wanted_size, wanted):
        name = file if isinstance(file, str) else file.id
        raise Damaged("damaged_file", f"The file {name} arrived with other bytes than it has: fetch it again.")


def _name(file: File | str) -> str:
    """Return a name that stays in its folder."""
    return Path(file if isinstance(file, str) else file.name or file.id).name or "file"
