"""Commands that need no running server: `verify` and `migrate` a database, print the OpenAPI document."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.connection import without_secrets
from callsheet.cli.output import FAILED, UNAVAILABLE, AsJson, Failure, as_json, print_line
from callsheet.cli.value_parsers import parse_directory, parse_postgresql_url
from callsheet.core.model.clock import SECOND
from callsheet.core.model.errors import Refusal
from callsheet.core.model.plural import pluralize
from callsheet.core.model.terminal_text import escape_json
from callsheet.data_folder import DATABASE_FILE, DEFAULT_DATA_FOLDER

if TYPE_CHECKING:
    from callsheet.blobs.base import Blobs
    from callsheet.engine.reads.synchronous import BlockingReader
    from callsheet.settings import BlobSettings
    from callsheet.store.connection import Database
    from callsheet.store.verify import Progress, Rule

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
    newest: Annotated[int, typer.Option("--newest", min=0, help="With --files: only this many, newest first.")] = 0,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="NAME", help="Only this rule (repeatable), such as L7.")
    ] = None,
) -> None:  # fmt: skip
    """Verify that jobs, credits and the audit log are consistent.

    With --files, also verify every file. Exit code 1 on a violation, 3 if the database or the storage cannot be read.
    """
    if newest and not files:
        raise typer.BadParameter("--newest needs --files. Add --files, or remove --newest.")
    from callsheet.store import verify as consistency  # noqa: PLC0415 - slow: imports the database drivers
    from callsheet.store.migrate import require_schema  # noqa: PLC0415 - slow: imports the database drivers

    try:
        selected = consistency.select_rules("postgresql" if database else "sqlite", rule or ())
    except LookupError as error:
        raise typer.BadParameter(str(error)) from None
    connection = resolve_database(None if files and database else data, database, config, reading=True).connect(
        reading=True
    )
    try:
        require_schema(connection)
        before = connection.now() - consistency.SWEPT_WITHIN_SECONDS * SECOND
        with _progress_line(len(selected), enabled=not json and sys.stdout.isatty()) as progress:
            results = consistency.check_rules(connection, selected, before, progress)
        [(jobs,)] = connection.run("SELECT count(*) FROM job")
    finally:
        connection.close()
    violations = [violation for result in results if (violation := result.violation)]
    if files:
        from callsheet.engine.verify_stored_files import verify_files  # noqa: PLC0415 - slow: imports the engine

        with open_storage(data, database, config) as (read, blobs, _):
            violations += verify_files(read, blobs, newest)
    print_line(escape_json(consistency.as_json(violations, results)) if json else consistency.report(violations))
    if not json:
        rules = len(selected) + files
        location = without_secrets(database) if database else (data or DEFAULT_DATA_FOLDER) / DATABASE_FILE
        print_line(f"{location}: {pluralize(jobs, 'job')}, {pluralize(rules, 'rule')}.")
    if violations:
        raise typer.Exit(FAILED)


def migrate(data: Data = None, database: DatabaseUrl = None, json: AsJson = False, config: Config = None) -> None:
    """Migrate a database to the newest schema.

    Servers can keep running meanwhile.
    """
    from callsheet.store import migrate as schema  # noqa: PLC0415 - slow: imports the database drivers

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
    from callsheet.http.openapi.native_document import document  # noqa: PLC0415 - slow: imports all routes

    as_json(document())


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (verify, migrate, openapi):
        app.command()(command)


@contextmanager
def open_storage(
    data: Path | None, url: str | None, config: Path | None
) -> Iterator[tuple["BlockingReader", "Blobs", "BlobSettings"]]:
    """Open a server's database for reading, and its file storage: the one of the settings, else in the data folder.

    A storage that is not the one of the database is refused.
    """
    from callsheet.blobs.base import BlobError  # noqa: PLC0415 - slow: imports httpx
    from callsheet.blobs.factory import open_blobs  # noqa: PLC0415 - slow: imports httpx
    from callsheet.cli.server_settings_file import load_settings  # noqa: PLC0415 - slow: imports the engine
    from callsheet.engine.reads.synchronous import BlockingReader  # noqa: PLC0415 - slow: imports the engine
    from callsheet.engine.signing_secret_and_storage import check_storage  # noqa: PLC0415 - slow: imports the engine

    settings, _ = load_settings(config)
    read = BlockingReader(open_schema(data, url, config), 1)
    try:
        blobs = open_blobs(settings.blobs, (data or DEFAULT_DATA_FOLDER).resolve(), None)
        check_storage(read, blobs)
        yield read, blobs, settings.blobs
    except (BlobError, Refusal) as error:
        raise Failure(str(error), UNAVAILABLE) from None
    finally:
        read.close()


def open_schema(data: Path | None, url: str | None, config: Path | None) -> "Database":
    """Return a database that exists and has the newest schema. With a URL, the data folder is not its place."""
    from callsheet.store.migrate import require_schema  # noqa: PLC0415 - slow: imports the database drivers

    database = resolve_database(None if url else data, url, config, reading=True)
    with closing(database.connect(reading=True)) as connection:
        require_schema(connection)
    return database


@contextmanager
def _progress_line(rules: int, *, enabled: bool) -> "Iterator[Progress]":
    """Show which rule is checked and how many of its slices are done, because a large database takes minutes."""
    from rich.progress import Progress as ProgressDisplay  # noqa: PLC0415 - only needed for display

    with ProgressDisplay(transient=True, disable=not enabled) as display:
        line = display.add_task("Verifying")
        checked: dict[str, None] = {}

        def update(rule: "Rule", done: int, total: int) -> None:
            checked[rule.name] = None
            description = f"{rule.name} ({len(checked)} of {rules}): {pluralize(done, 'slice')} of {total}"
            display.update(line, description=description, completed=done, total=total)

        yield update


def resolve_database(data: Path | None, url: str | None, config: Path | None, *, reading: bool) -> "Database":
    """Return the database that the options select, with the server's settings and a long statement timeout."""
    if data is not None and url is not None:
        raise typer.BadParameter("Pass only one of --data-dir FOLDER and --database URL.")
    folder = data or DEFAULT_DATA_FOLDER
    if url is None and not folder.is_dir():
        raise typer.BadParameter(f"There is no folder {folder}. Pass --data-dir FOLDER or --database URL.")
    if url is None and reading and not (folder / DATABASE_FILE).exists():
        raise typer.BadParameter(f"There is no {DATABASE_FILE} in {folder}. Pass the --data-dir of a server.")
    from msgspec.structs import replace  # noqa: PLC0415 - slow: imports the engine

    from callsheet.cli.server_settings_file import load_settings  # noqa: PLC0415 - slow: imports the engine
    from callsheet.engine.engine import MAINTENANCE_STATEMENT_SECONDS, database_for  # noqa: PLC0415 - slow

    settings, _ = load_settings(config)
    return database_for(
        url or folder / DATABASE_FILE, replace(settings, statement_timeout_seconds=MAINTENANCE_STATEMENT_SECONDS)
    )
