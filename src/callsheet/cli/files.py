"""Commands about files: bring, list, fetch and delete them; sweep what nobody needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.fetching import Watched, bars
from callsheet.cli.given import folder_of
from callsheet.cli.house import Config, Data, Url, storage
from callsheet.cli.output import AsJson, Failure, as_json, group, moment, say, table
from callsheet.cli.server import Server, command
from callsheet.core.counting import counted

if TYPE_CHECKING:
    from callsheet.client import Client, File
    from callsheet.engine.filekeeping import Tally

files = group("files", help="Bring files, look after them, sweep the storage.")
FileId = Annotated[str, typer.Argument(metavar="FILE", help="A file's id.")]


def register(app: typer.Typer) -> None:
    """Add the commands about files."""
    app.add_typer(files)


def upload(
    server: Server,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files of this machine.")],
    *,
    user: Annotated[str, typer.Option("--user", help="Whose they are.")],
    media_type: Annotated[str | None, typer.Option("--type", help="Media type, in place of a guess.")] = None,
) -> None:
    """Bring files; a job's input refers to one as {"$file": "ID"}."""
    done = []
    with server.client(patient=True) as client, bars(server) as watched:
        for path in paths:
            file = _brought(client, path, user, media_type, watched)
            done.append(file)
            if not server.json:
                say(f"{file.id} is {file.name}, {file.media_type}, {counted(file.bytes, 'byte')}.")
    if server.json:
        as_json({"files": done})


def _brought(client: "Client", path: Path, user: str, media_type: str | None, watched: Watched) -> "File":
    """Bring a file; what is refused is named, for it may be one of many."""
    from callsheet.client import CallsheetError, NotReachable  # noqa: PLC0415 - brings httpx

    try:
        return client.upload(path, user=user, media_type=media_type, progress=watched(path.name, path.stat().st_size))
    except NotReachable:
        raise
    except CallsheetError as error:
        raise Failure(f"{path}: {error.message}", code=error.code, request_id=error.request_id) from None


def list_files(
    server: Server,
    *,
    user: Annotated[str, typer.Option("--user", help="Whose files.")],
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 20,
) -> None:
    """List the files that a user brought, newest first."""
    with server.client() as client:
        found = list(client.files(user, limit=limit))
    if server.json:
        as_json({"files": found})
        return
    table(
        ("FILE", "NAME", "TYPE", "BYTES", "STATUS", "BROUGHT"),
        ((f.id, f.name, f.media_type, f.bytes, f.status, moment(f.created_at)) for f in found),
        empty="There are no such files.",
        least=("BROUGHT", "TYPE", "BYTES"),
        text=("NAME",),
    )


def show(server: Server, file_id: FileId) -> None:
    """Show what is known of a file."""
    with server.client() as client:
        file = client.file(file_id)
    if server.json:
        as_json(file)
        return
    origin = f"made by job {file.job_id}" if file.job_id else "brought"
    say(f"{file.id} is {file.name}, {file.media_type}, {counted(file.bytes, 'byte')}, {file.status}.")
    say(f"{origin} for {file.user}, {moment(file.created_at)}; sha256 {file.sha256}")


def download(
    server: Server,
    file_id: FileId,
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="A path, or a folder: one that is there, or ends with a /.")
    ] = ".",
) -> None:
    """Fetch a file, proved by its digest."""
    place = folder_of(to) if to.endswith("/") else Path(to)
    with server.client() as client, bars(server) as watched:
        file = client.file(file_id)
        if to.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        saved = client.download(file, place, progress=watched(file.name, file.bytes))
    if server.json:
        as_json({"file": str(saved)})
        return
    say(str(saved))


def delete(server: Server, file_id: FileId) -> None:
    """Delete a file that no open job needs."""
    with server.client() as client:
        freed = client.delete_file(file_id)
    if server.json:
        as_json(freed)
        return
    later = " The storage does not answer: its bytes go later." if freed.pending else ""
    say(f"Deleted: {counted(freed.bytes, 'byte', verb='is')} free.{later}")


for _name, _function in (
    ("upload", upload), ("list", list_files), ("show", show), ("download", download), ("delete", delete),
):  # fmt: skip
    command(files, _name)(_function)


@files.command()
def sweep(
    data: Data = None,
    database: Url = None,
    config: Config = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    json: AsJson = False,
) -> None:
    """Remove stored objects that no job and no file needs.

    A server does that by itself; this is for the house's own machine. Files lie below --data, or where --config says.
    """
    from callsheet.engine.filekeeping import Orphans, Tally  # noqa: PLC0415 - brings the engine with it

    tally, after = Tally(), ""
    with storage(data, database, config) as (read, blobs, settings):
        orphans = Orphans(read, blobs, settings.orphan_grace_seconds)
        now = read.now()
        while True:
            looked = orphans.look(now, after)
            if looked.orphans and not dry_run:
                blobs.delete([one.key for one in looked.orphans])
            tally.add(looked.tally)
            if looked.after is None:
                break
            after = looked.after
    if json:
        as_json({"dry_run": dry_run, "found": tally})
        return
    _report(tally, settings.orphan_grace_seconds, dry_run=dry_run)


def _report(tally: "Tally", grace: int, *, dry_run: bool) -> None:
    would = "would be" if dry_run else "were"
    size = counted(tally.bytes, "byte")
    if tally.orphans:
        say(f"{tally.orphans} of {counted(tally.objects, 'object')} ({size}) {would} removed: nothing needs them.")
    else:
        say(f"{counted(tally.objects, 'object', verb='is')} there, and none of them {would} removed.")
    say(f"{tally.needed} are needed; {tally.young} are not, and younger than {counted(grace, 'second')}.")
    if tally.unknown:
        say(f"{tally.unknown} are older than this database and unknown to it: of another? They are left alone.")
    if tally.foreign:
        say(f"{tally.foreign} have names that Callsheet does not give. They are left alone.")
