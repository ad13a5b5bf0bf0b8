"""The house from inside, without a server: prove a database, bring it up to date, print the API's description."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.given import folder_of, postgresql_of
from callsheet.cli.output import FAILED, AsJson, Failure, as_json, say
from callsheet.cli.server import without_secrets
from callsheet.core.counting import counted
from callsheet.folder import DATA, DATABASE_FILE
from callsheet.store.connection import StoreError

if TYPE_CHECKING:
    from callsheet.blobs.base import Blobs
    from callsheet.config import BlobSettings
    from callsheet.engine.reading import Reading
    from callsheet.store.connection import Connection, Database
    from callsheet.store.verify import Rule

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        parser=folder_of,
        metavar="DIR",
        help="Folder with callsheet.db, for SQLite; by default ./callsheet-data.",
    ),
]
Url = Annotated[str | None, typer.Option("--database", parser=postgresql_of, metavar="URL", help="postgresql:// URL.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The server's TOML file: how its database is spoken to, and where its files lie."),
]


def verify(
    data: Data = None, database: Url = None, json: AsJson = False, config: Config = None,
    files: Annotated[
        bool, typer.Option("--files", help="Also look at the bytes of every file: in --data, or where --config says.")
    ] = False,
    newest: Annotated[int, typer.Option("--newest", min=0, help="With --files: only so many of the newest.")] = 0,
) -> None:  # fmt: skip
    """Prove that every job, lease and credit is in its place.

    With --files, every file as well. Exit code 1 if one is not.
    """
    if newest and not files:
        raise typer.BadParameter("--newest is about files: it goes with --files.")
    from callsheet.store import verify as proof  # noqa: PLC0415 - brings the databases with it

    connection = database_at(None if files and database else data, database, config, reading=True).connect(reading=True)
    try:
        _known(connection)
        broken = proof.check(connection, connection.now(), each=_shown if not json and sys.stdout.isatty() else iter)
        [(jobs,)] = connection.run("SELECT count(*) FROM job")
    finally:
        connection.close()
    if files:
        from callsheet.engine.filekeeping import check_files  # noqa: PLC0415 - brings the engine with it

        with storage(data, database, config) as (read, blobs, _):
            broken += check_files(read, blobs, newest)
    say(proof.as_json(broken) if json else proof.report(broken))
    if not json:
        rules = len(proof.rules("postgresql" if database else "sqlite")) + files
        where = without_secrets(database) if database else (data or DATA) / DATABASE_FILE
        say(f"{where}: {counted(jobs, 'job')}, {counted(rules, 'rule')}.")
    if broken:
        raise typer.Exit(FAILED)


def migrate(data: Data = None, database: Url = None, json: AsJson = False, config: Config = None) -> None:
    """Bring a database to the newest schema; safe while servers run."""
    from callsheet.store import migrate as schema  # noqa: PLC0415 - brings the databases with it

    connection = database_at(data, database, config, reading=False).connect()
    try:
        steps = schema.migrate(connection, schema.dialect_of("postgresql" if database else "sqlite"))
    finally:
        connection.close()
    if json:
        as_json({"applied": [{"version": step.version, "name": step.name} for step in steps]})
        return
    for step in steps:
        say(f"applied {step.version:04d} {step.name}")
    say("The schema is up to date.")


def openapi(json: AsJson = False) -> None:
    """Print the description of the HTTP API.

    It is OpenAPI 3.1, in JSON with and without --json.
    """
    _ = json
    from callsheet.http.openapi import document  # noqa: PLC0415 - brings every route with it

    as_json(document())


def register(app: typer.Typer) -> None:
    """Add the commands of the house."""
    for command in (verify, migrate, openapi):
        app.command()(command)


@contextmanager
def storage(
    data: Path | None, url: str | None, config: Path | None
) -> Iterator[tuple["Reading", "Blobs", "BlobSettings"]]:
    """Open a house's database to read, and where its files lie: below --data, or where its settings say."""
    from callsheet.blobs.base import BlobError  # noqa: PLC0415 - brings httpx with it
    from callsheet.blobs.opening import blobs_of  # noqa: PLC0415 - the same
    from callsheet.cli.settings import settings_of  # noqa: PLC0415 - the same
    from callsheet.engine.reading import Reading  # noqa: PLC0415 - the same

    settings, _ = settings_of(config)
    read = Reading(database_at(None if url else data, url, config, reading=True), 1)
    try:
        yield read, blobs_of(settings.blobs, (data or DATA).resolve(), None), settings.blobs
    except BlobError as error:
        raise Failure(str(error)) from None
    finally:
        read.close()


def _shown(rules: "Sequence[Rule]") -> "Iterable[Rule]":
    """Go through rules with a bar: over a large database each of them takes a while."""
    from rich.progress import track  # noqa: PLC0415 - only what draws needs it

    return track(rules, description="Proving", transient=True)


def _known(connection: "Connection") -> None:
    """Refuse a database that is not ours, before its missing tables speak for themselves."""
    try:
        connection.run("SELECT version FROM migration")
    except StoreError:
        raise StoreError("This is not a Callsheet database: `callsheet migrate` makes one.") from None


def database_at(data: Path | None, url: str | None, config: Path | None, *, reading: bool) -> "Database":
    """Return the database that the options name, to be spoken to as a server's settings say, and without haste."""
    if data is not None and url is not None:
        raise typer.BadParameter("Name one database: --data FOLDER or --database URL.")
    folder = data or DATA
    if url is None and not folder.is_dir():
        raise typer.BadParameter(f"There is no folder {folder}: name one database, --data FOLDER or --database URL.")
    if url is None and reading and not (folder / DATABASE_FILE).exists():
        raise typer.BadParameter(f"There is no {DATABASE_FILE} in {folder}.")
    from msgspec.structs import replace  # noqa: PLC0415 - what a database needs, only when there is one

    from callsheet.cli.settings import settings_of  # noqa: PLC0415 - the same
    from callsheet.engine.engine import UNHURRIED_SECONDS, database_of  # noqa: PLC0415 - the same

    settings, _ = settings_of(config)
    return database_of(url or folder / DATABASE_FILE, replace(settings, statement_seconds=UNHURRIED_SECONDS))
