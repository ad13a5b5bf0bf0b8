"""`callsheet files`: upload, list, download, delete and prune files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.commands.jobs.download import ProgressFactory, progress_bars
from callsheet.cli.commands.offline import Config, Data, DatabaseUrl, open_storage
from callsheet.cli.connection import Server, command
from callsheet.cli.output import AsJson, Failure, as_json, create_group, format_time, print_line, table
from callsheet.cli.value_parsers import parse_directory
from callsheet.core.model.plural import pluralize

if TYPE_CHECKING:
    from callsheet.client import Client, File
    from callsheet.engine.loops.orphan_files import StorageCounts

files = create_group("files", help="Upload, download, list and delete files.")
FileId = Annotated[str, typer.Argument(metavar="FILE", help="A file's id.")]


def register(app: typer.Typer) -> None:
    """Add the commands about files."""
    app.add_typer(files)


def upload(
    server: Server,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files on this machine.")],
    *,
    user: Annotated[str, typer.Option("--user", help="Owner of the files.")],
    media_type: Annotated[str | None, typer.Option("--media-type", help="Media type; guessed by default.")] = None,
) -> None:
    """Upload files; a job's input refers to one as {"$file": "ID"}."""
    uploaded = []
    with server.client(wait_for_server=True) as client, progress_bars(server) as progress_for:
        for path in paths:
            file = _upload_one(client, path, user, media_type, progress_for)
            uploaded.append(file)
            if not server.json:
                print_line(f"{file.id} is {file.name}, {file.media_type}, {pluralize(file.bytes, 'byte')}.")
    if server.json:
        as_json({"files": uploaded})


def _upload_one(
    client: "Client", path: Path, user: str, media_type: str | None, progress_for: ProgressFactory
) -> "File":
    """Upload a file. Errors name the file, because it may be one of many."""
    from callsheet.client import APIConnectionError, CallsheetError  # noqa: PLC0415 - slow: imports httpx

    try:
        return client.files.upload(
            path, user=user, media_type=media_type, progress=progress_for(path.name, path.stat().st_size)
        )
    except APIConnectionError:
        raise
    except CallsheetError as error:
        raise Failure(f"{path}: {error.message}", code=error.code, request_id=error.request_id) from None


def list_files(
    server: Server,
    *,
    user: Annotated[str, typer.Option("--user", help="Owner of the files.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 20,
) -> None:
    """List a user's uploaded files, newest first."""
    with server.client() as client:
        user_files = list(client.files.list(user, limit=limit))
    if server.json:
        as_json({"files": user_files})
        return
    table(
        ("FILE", "NAME", "TYPE", "BYTES", "STATUS", "UPLOADED"),
        ((f.id, f.name, f.media_type, f.bytes, f.status, format_time(f.created_at)) for f in user_files),
        empty="There are no such files.",
        droppable=("UPLOADED", "TYPE", "BYTES"),
        wrappable=("NAME",),
    )


def show(server: Server, file_id: FileId) -> None:
    """Show a file's name, type, size and digest."""
    with server.client() as client:
        file = client.files.get(file_id)
    if server.json:
        as_json(file)
        return
    origin = f"Created by job {file.job_id}" if file.job_id else "Uploaded"
    print_line(f"{file.id} is {file.name}, {file.media_type}, {pluralize(file.bytes, 'byte')}, {file.status}.")
    print_line(f"{origin} for {file.user}, {format_time(file.created_at)}; sha256 {file.sha256}")


def download(
    server: Server,
    file_id: FileId,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="PATH",
            help="Path of the file, or a folder: an existing one, or a path that ends with /.",
        ),
    ] = ".",
) -> None:
    """Download a file and verify its digest."""
    target = parse_directory(output) if output.endswith("/") else Path(output)
    with server.client() as client, progress_bars(server) as progress_for:
        file = client.files.get(file_id)
        if output.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        saved = client.files.download(file, target, progress=progress_for(file.name, file.bytes))
    if server.json:
        as_json({"path": str(saved)})
        return
    print_line(str(saved))


def delete(server: Server, file_id: FileId) -> None:
    """Delete a file that no active job needs."""
    with server.client() as client:
        deleted = client.files.delete(file_id)
    if server.json:
        as_json(deleted)
        return
    pending_note = " The storage does not respond; the bytes are deleted later." if deleted.pending else ""
    print_line(f"Deleted: {pluralize(deleted.bytes, 'byte', verb='is')} free.{pending_note}")


for _name, _function in (
    ("upload", upload), ("list", list_files), ("show", show), ("download", download), ("delete", delete),
):  # fmt: skip
    command(files, _name)(_function)


@files.command()
def prune(
    data: Data = None,
    database: DatabaseUrl = None,
    config: Config = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Delete stored objects that no job and no file needs.

    A server does this by itself. Run it on the server's machine, with the server's --data-dir and --config.
    """
    from callsheet.engine.loops.orphan_files import OrphanCollector, StorageCounts  # noqa: PLC0415 - slow: imports the engine

    counts, after = StorageCounts(), ""
    with open_storage(data, database, config) as (read, blobs, settings):
        orphans = OrphanCollector(read, blobs, settings.orphan_grace_seconds)
        now = read.now()
        while True:
            batch = orphans.scan_page(now, after)
            if batch.orphans and not dry_run:
                blobs.delete([orphan.key for orphan in batch.orphans])
            counts.add(batch.counts)
            if batch.after is None:
                break
            after = batch.after
    if json:
        as_json({"dry_run": dry_run, "summary": counts})
        return
    _print_summary(counts, settings.orphan_grace_seconds, dry_run=dry_run)


def _print_summary(counts: "StorageCounts", grace: int, *, dry_run: bool) -> None:
    verb = "would be" if dry_run else "were"
    size = pluralize(counts.bytes, "byte")
    if counts.orphans:
        print_line(
            f"{counts.orphans} of {pluralize(counts.objects, 'object')} ({size}) {verb} deleted: nothing needs them."
        )
    else:
        print_line(f"{pluralize(counts.objects, 'object', verb='is')} stored; none {verb} deleted.")
    print_line(
        f"{counts.needed} are needed; {counts.young} are not needed but newer than {pluralize(grace, 'second')}."
    )
    if counts.unknown:
        print_line(
            f"{counts.unknown} are older than this database and unknown to it, perhaps from another one. They are kept."
        )
    if counts.foreign:
        print_line(f"{counts.foreign} have names that Callsheet does not use. They are kept.")
