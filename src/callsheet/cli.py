"""The command line. Exit code 0 is well, 1 is a finding or a failure, 2 is a wrong call."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from callsheet.config import Settings
from callsheet.core.errors import Refusal
from callsheet.engine.engine import database_of
from callsheet.store.connection import Connection, StoreError
from callsheet.store.migrate import dialect_of
from callsheet.store.migrate import migrate as bring_up
from callsheet.store.verify import as_json, check, report

app = typer.Typer(
    name="callsheet",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The durable job backend for AI-made media.",
)
Data = Annotated[Path | None, typer.Option("--data", help="Folder with callsheet.db, for SQLite.")]
Url = Annotated[str | None, typer.Option("--database", help="postgresql:// URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
_FILE = "callsheet.db"


@app.command()
def demo(data: Data = None) -> None:
    """Make real pictures in front of you: submit, pay, lease, lose a worker, finish, settle."""
    folder = data or Path("callsheet-data")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"The folder {folder} cannot be made: {error.strerror}.") from None
    from callsheet.demo.show import show  # noqa: PLC0415 - what it draws with is an extra

    if not show(folder, Console()):
        raise typer.Exit(1)


@app.command()
def verify(data: Data = None, database: Url = None, *, json: AsJson = False) -> None:
    """Prove that every job, lease and credit is in its place; exit code 1 if not."""
    connection = _connect(data, database, reading=True)
    try:
        _known(connection)
        broken = check(connection, connection.now())
    finally:
        connection.close()
    sys.stdout.write((as_json(broken) if json else report(broken)) + "\n")
    if broken:
        raise typer.Exit(1)


@app.command()
def migrate(data: Data = None, database: Url = None) -> None:
    """Bring a database to the newest schema; safe while servers run."""
    connection = _connect(data, database, reading=False)
    try:
        steps = bring_up(connection, dialect_of("sqlite" if data else "postgresql"))
    finally:
        connection.close()
    for step in steps:
        sys.stdout.write(f"applied {step.version:04d} {step.name}\n")
    sys.stdout.write("The schema is up to date.\n")


def _known(connection: Connection) -> None:
    """Refuse a database that is not ours, before its missing tables speak for themselves."""
    try:
        connection.run("SELECT version FROM migration")
    except StoreError:
        raise StoreError("This is not a Callsheet database: `callsheet migrate` makes one.") from None


def _connect(data: Path | None, url: str | None, *, reading: bool) -> Connection:
    if (data is None) == (url is None):
        raise typer.BadParameter("Name one database: --data FOLDER or --database URL.")
    if url is not None and not url.startswith(("postgresql://", "postgres://")):
        raise typer.BadParameter("--database takes a postgresql:// URL; a SQLite folder goes to --data.")
    if data is not None and not data.is_dir():
        raise typer.BadParameter(f"There is no folder {data}.")
    if data is not None and reading and not (data / _FILE).exists():
        raise typer.BadParameter(f"There is no {_FILE} in {data}.")
    place = data / _FILE if data is not None else str(url)
    return database_of(place, Settings()).connect(reading=reading)


def main() -> None:
    """Run the command line; what a person can act on is said in one line."""
    try:
        app()
    except (StoreError, Refusal) as error:
        sys.stderr.write(f"callsheet: {error}\n")
        sys.exit(1)
