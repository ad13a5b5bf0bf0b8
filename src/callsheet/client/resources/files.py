"""`client.files`: upload, download and manage files."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from callsheet.api.files import DeleteSummary, File, NewFile
from callsheet.client.errors import CallsheetError
from callsheet.client.file_transfer.download import MemorySink, create_part_file, fetch, safe_name
from callsheet.client.file_transfer.save_path import Content, find_existing, save_unique
from callsheet.client.file_transfer.upload import inspect_file, report_progress, upload_content
from callsheet.client.method_binding import call, iterate
from callsheet.client.operation_effects import IterableOperation, Operation, Request, RunBlocking
from callsheet.client.requests_and_pages import get_request, json_request, paginate, path, send
from callsheet.client.resource import D, Resource

_CLIENT_ERROR = 4


class Files(Resource[D]):
    """Upload, download and manage files."""

    @call
    def upload(
        self, source: str | Path | bytes, *, user: str, name: str | None = None, media_type: str | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[File]:  # fmt: skip
        """Upload a file from a path, or bytes. Refer to it in a job's input as `file.reference`.

        A path is streamed from disk. The name defaults to the path's, and the media type is guessed from the name or
        from the first bytes. `progress` is called with the number of bytes sent so far.
        """
        info = yield RunBlocking(lambda: inspect_file(source, name, media_type))
        body = {
            "user": user, "name": info.name, "media_type": info.media_type, "bytes": info.size, "sha256": info.sha256,
        }  # fmt: skip
        created = yield from send(self, NewFile, json_request("POST", path("files"), body, idempotent=True))
        open_file = info.open if progress is None else report_progress(info.open, progress)
        try:
            yield from upload_content(self, created.upload, open_file)
            finish = json_request("POST", path("files", created.file.id, "finish"), idempotent=True)
            return (yield from send(self, File, finish))
        except CallsheetError as error:
            if error.status // 100 == _CLIENT_ERROR:  # permanent: delete the pending upload instead of leaving it
                with suppress(CallsheetError):
                    yield from send(self, DeleteSummary, _delete_request(created.file.id))
            raise

    @call
    def download(
        self, file: File | str, destination: str | Path, *, overwrite: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Operation[Path]:  # fmt: skip
        """Download a file to a path, or into a directory under its own name. Size and digest are verified.

        In a directory, a file with the same content is not downloaded again, and one with other content is kept: the
        new file gets a number (sketch-2.png), unless you pass `overwrite`. A path that names a file is replaced.
        `progress` is called with the number of bytes received so far.
        """
        target = Path(destination)
        is_directory = yield RunBlocking(target.is_dir)
        target = target / safe_name(file) if is_directory else target
        keep_existing = is_directory and not overwrite
        if keep_existing and isinstance(file, File) and file.status == "ready":  # the server explains any other status
            expected = Content(file.bytes, file.sha256)
            existing: Path | None = yield RunBlocking(lambda: find_existing(target, expected))
            if existing is not None:
                return existing
        part = target.with_name(f".callsheet-{uuid4().hex}.part")
        try:
            content = yield from fetch(self, file, lambda: create_part_file(part), progress)
            saved: Path = yield RunBlocking(
                lambda: save_unique(part, target, content) if keep_existing else part.replace(target)
            )
        except BaseException:  # also a canceled asyncio task, which can run no further effect
            part.unlink(missing_ok=True)
            raise
        return saved

    @call
    def read(self, file: File | str) -> Operation[bytes]:
        """Return a file's content, verified by size and digest."""
        sinks: list[MemorySink] = []

        def open_sink() -> MemorySink:
            sinks.append(MemorySink())
            return sinks[-1]

        yield from fetch(self, file, open_sink, None)
        return bytes(sinks[-1])

    @call
    def get(self, file_id: str) -> Operation[File]:
        """Return a file's metadata."""
        return send(self, File, get_request(path("files", file_id, "info")))

    @call
    def delete(self, file: File | str) -> Operation[DeleteSummary]:
        """Delete a file that no active job needs."""
        return send(self, DeleteSummary, _delete_request(file if isinstance(file, str) else file.id))

    @iterate
    def list(self, user: str, *, limit: int | None = None) -> IterableOperation[File]:
        """Iterate over a user's uploaded files, newest first."""
        return paginate(self, File, "files", path("files"), {"user": user}, limit=limit)


def _delete_request(file_id: str) -> Request:
    return json_request("DELETE", path("files", file_id), idempotent=False)
