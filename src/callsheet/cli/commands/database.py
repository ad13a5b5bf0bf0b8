"""Commands without a server: `verify` and `migrate` a database, print the OpenAPI document."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.arguments import parse_directory, parse_postgresql_url
from callsheet.cli.connection import without_secrets
from callsheet.cli.output import FAILED, AsJson, Failure, as_json, print_line
from callsheet.core.model.plural import pluralize
from callsheet.data_folder import DATABASE_FILE, DEFAULT_DATA_FOLDER
from callsheet.store.connection import StoreError

if TYPE_CHECKING:
    from callsheet.blobs.base import Blobs
    from callsheet.config import BlobSettings
    from callsheet.engine.reads.synchronous import BlockingReader
    from callsheet.store.connection import Connection, Database
    from callsheet.store.verify import Rule

Data = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        parser=parse_directory,
        metavar="DIR",
        help="Folder with callsheet.db, for SQLite; by default ./callsheet-data.",
    ),
]
DatabaseUrl = Annotated[
    str | None, typer.Option("--database", parser=parse_postgresql_url, metavar="URL", help="postgresql:// URL.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The server's TOML file, for its database and file storage settings."),
]


def verify(
    data: Data = None, database: DatabaseUrl = None, json: AsJson = False, config: Config = None,
    files: Annotated[
        bool, typer.Option("--files", help="Also verify the content of every file.")
    ] = False,
    newest: Annotated[int, typer.Option("--newest", min=0, help="With --files: check only the newest ones.")] = 0,
) -> None:  # fmt: skip
    """Verify that jobs, leases and credits are consistent.

    With --files, also verify every file. Exit code 1 on a violation.
    """
    if newest and not files:
        raise typer.BadParameter("--newest needs --files.")
    from callsheet.store import verify as proof  # noqa: PLC0415 - brings the databases with it

    connection = resolve_database(None if files and database else data, database, config, reading=True).connect(
        reading=True
    )
    try:
        _require_callsheet_database(connection)
        violations = proof.check(
            connection, connection.now(), iterate=_with_progress_bar if not json and sys.stdout.isatty() else iter
        )
        [(jobs,)] = connection.run("SELECT count(*) FROM job")
    finally:
        connection.close()
    if files:
        from callsheet.engine.stored_files_check import verify_files  # noqa: PLC0415 - brings the engine with it

        with open_storage(data, database, config) as (read, blobs, _):
            violations += verify_files(read, blobs, newest)
    print_line(proof.as_json(violations) if json else proof.report(violations))
    if not json:
        rules = len(proof.rules("postgresql" if database else "sqlite")) + files
        where = without_secrets(database) if database else (data or DEFAULT_DATA_FOLDER) / DATABASE_FILE
        print_line(f"{where}: {pluralize(jobs, 'job')}, {pluralize(rules, 'rule')}.")
    if violations:
        raise typer.Exit(FAILED)


def migrate(data: Data = None, database: DatabaseUrl = None, json: AsJson = False, config: Config = None) -> None:
    """Migrate a database to the newest schema; safe while servers run."""
    from callsheet.store import migrate as schema  # noqa: PLC0415 - brings the databases with it

    connection = resolve_database(data, database, config, reading=False).connect()
    try:
        steps = schema.migrate(connection, schema.dialect_of("postgresql" if database else "sqlite"))
    finally:
        connection.close()
    if json:
        as_json({"applied": [{"version": step.version, "name": step.name} for step in steps]})
        return
    for step in steps:
        print_line(f"applied {step.version:04d} {step.name}")
    print_line("The schema is up to date.")


def openapi(json: AsJson = False) -> None:
    """Print the OpenAPI document of the HTTP API.

    The format is OpenAPI 3.1 in JSON, with and without --json.
    """
    _ = json
    from callsheet.http.openapi.document import document  # noqa: PLC0415 - brings every route with it

    as_json(document())


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (verify, migrate, openapi):
        app.command()(command)


@contextmanager
def open_storage(
    data: Path | None, url: str | None, config: Path | None
) -> Iterator[tuple["BlockingReader", "Blobs", "BlobSettings"]]:
    """Open a server's database for reading, and its file storage: below --data-dir, or where the settings say."""
    from callsheet.blobs.base import BlobError  # noqa: PLC0415 - brings httpx with it
    from callsheet.blobs.factory import open_blobs  # noqa: PLC0415 - the same
    from callsheet.cli.server_settings_file import load_settings  # noqa: PLC0415 - the same
    from callsheet.engine.reads.synchronous import BlockingReader  # noqa: PLC0415 - the same

    settings, _ = load_settings(config)
    read = BlockingReader(resolve_database(None if url else data, url, config, reading=True), 1)
    try:
        yield read, open_blobs(settings.blobs, (data or DEFAULT_DATA_FOLDER).resolve(), None), settings.blobs
    except BlobError as error:
        raise Failure(str(error)) from None
    finally:
        read.close()


def _with_progress_bar(rules: "Sequence[Rule]") -> "Iterable[Rule]":
    """Iterate over rules with a progress bar: each takes a while on a large database."""
    from rich.progress import track  # noqa: PLC0415 - only what draws needs it

    return track(rules, description="Verifying", transient=True)


def _require_callsheet_database(connection: "Connection") -> None:
    """Fail on a database that is not Callsheet's, before a missing table does."""
    try:
        connection.run("SELECT version FROM migration")
    except StoreError:
        raise StoreError("This is not a Callsheet database. Create one with `callsheet migrate`.") from None


def resolve_database(data: Path | None, url: str | None, config: Path | None, *, reading: bool) -> "Database":
    """Return the database that the options name, with the server's settings and a long statement timeout."""
    if data is not None and url is not None:
        raise typer.BadParameter("Pass only one of --data-dir FOLDER and --database URL.")
    folder = data or DEFAULT_DATA_FOLDER
    if url is None and not folder.is_dir():
        raise typer.BadParameter(f"There is no folder {folder}. Pass --data-dir FOLDER or --database URL.")
    if url is None and reading and not (folder / DATABASE_FILE).exists():
        raise typer.BadParameter(f"There is no {DATABASE_FILE} in {folder}.")
    from msgspec.structs import replace  # noqa: PLC0415 - what a database needs, only when there is one

    from callsheet.cli.server_settings_file import load_settings  # noqa: PLC0415 - the same
    from callsheet.engine.engine import MAINTENANCE_STATEMENT_SECONDS, database_for  # noqa: PLC0415 - the same

    settings, _ = load_settings(config)
    return database_for(
        url or folder / DATABASE_FILE, replace(settings, statement_timeout_seconds=MAINTENANCE_STATEMENT_SECONDS)
    )
