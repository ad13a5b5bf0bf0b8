"""`callsheet installation`: show and replace what all servers of a database share. The commands need no server."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from callsheet.cli.commands.offline import Config, Data, DatabaseUrl, open_schema
from callsheet.cli.output import AsJson, Failure, as_json, create_group, format_time, print_result, table
from callsheet.core.model.plural import pluralize
from callsheet.data_folder import DEFAULT_DATA_FOLDER, SECRET_FILE

if TYPE_CHECKING:
    from callsheet.blobs.base import Blobs
    from callsheet.engine import Engine

installation = create_group("installation", help="Show and replace the signing secret and storage.")
SigningSecretFile = Annotated[
    Path | None,
    typer.Option(
        "--signing-secret-file",
        help="File with the signing secret (or set CALLSHEET_SIGNING_SECRET). Default: secret.key in the data folder.",
    ),
]
_NAMES = {"signing_secret": "signing secret", "file_storage": "file storage"}


def register(app: typer.Typer) -> None:
    """Add the commands about the installation."""
    app.add_typer(installation)


@installation.command()
def show(
    data: Data = None, database: DatabaseUrl = None, config: Config = None, json: AsJson = False,
    signing_secret_file: SigningSecretFile = None,
) -> None:  # fmt: skip
    """Show what is recorded, and whether these options match it."""
    from datetime import UTC, datetime  # noqa: PLC0415 - only this command needs it

    from callsheet.core.model.clock import SECOND  # noqa: PLC0415 - only this command needs it
    from callsheet.core.model.errors import Conflict  # noqa: PLC0415 - only this command needs it
    from callsheet.engine.signing_secret_and_storage import check_storage, fingerprint  # noqa: PLC0415 - slow: imports the engine

    secret = _find_secret(signing_secret_file, data)
    with _open(data, database, config) as (engine, blobs):
        rows = {row[0]: row for row in engine.reads.fetch("recorded_values", ids=["database_id", *_NAMES])}
        matches = {"signing_secret": False, "file_storage": "file_storage" in rows}
        if secret is not None and {"database_id", "signing_secret"} <= rows.keys():
            matches["signing_secret"] = fingerprint(secret, rows["database_id"][1]) == rows["signing_secret"][1]
        try:
            check_storage(engine.reads, blobs)
        except Conflict:
            matches["file_storage"] = False
    recorded_at = {name: datetime.fromtimestamp(rows[name][2] / SECOND, UTC) for name in _NAMES if name in rows}
    if json:
        as_json({name: {"recorded_at": recorded_at.get(name), "matches": matches[name]} for name in _NAMES})
        return
    table(
        ("SHARED", "RECORDED", "MATCHES"),
        [(text, format_time(recorded_at.get(name)), "yes" if matches[name] else "no") for name, text in _NAMES.items()],
        empty="",
    )


@installation.command()
def accept_secret(
    data: Data = None, database: DatabaseUrl = None, config: Config = None, json: AsJson = False,
    signing_secret_file: SigningSecretFile = None,
) -> None:  # fmt: skip
    """Replace the signing secret recorded in the database.

    User tokens, quotes, cursors and signed URLs of the earlier secret become invalid. Restart all servers with the new
    secret: until then they report that they are not ready.
    """
    from callsheet.data_folder import load_or_create_signing_secret  # noqa: PLC0415 - only this command needs it
    from callsheet.engine.signing_secret_and_storage import Installation  # noqa: PLC0415 - slow: imports the engine

    with _open(data, database, config) as (engine, _):
        secret = _find_secret(signing_secret_file, data) or load_or_create_signing_secret(_secret_file(data))
        changed = Installation(engine).accept_secret(secret)
    sentence = "The database now has this signing secret. Restart all servers with it."
    print_result(
        {"changed": changed}, sentence if changed else "The database has this signing secret already.", json=json
    )


@installation.command()
def accept_storage(
    data: Data = None, database: DatabaseUrl = None, config: Config = None, json: AsJson = False,
    allow_missing_files: Annotated[
        bool, typer.Option("--allow-missing-files", help="Accept a storage that lacks files of the database.")
    ] = False,
) -> None:  # fmt: skip
    """Replace the file storage recorded in the database.

    The storage must contain every file of the database. It then belongs to this database only. Restart all servers with
    it: until then they report that they are not ready.
    """
    from callsheet.engine.signing_secret_and_storage import Installation  # noqa: PLC0415 - slow: imports the engine
    from callsheet.engine.verify_stored_files import count_missing_files  # noqa: PLC0415 - slow: imports the engine

    with _open(data, database, config) as (engine, blobs):
        missing = 0 if allow_missing_files else count_missing_files(engine.reads, blobs)
        if missing:
            raise Failure(
                f"The storage lacks {pluralize(missing, 'file')} of the database. Copy them into it first. To lose "
                "them, pass --allow-missing-files."
            )
        changed = Installation(engine).accept_storage(blobs)
    sentence = "The database now has this file storage. Restart all servers with it."
    print_result(
        {"changed": changed}, sentence if changed else "The database has this file storage already.", json=json
    )


@contextmanager
def _open(data: Path | None, url: str | None, config: Path | None) -> Iterator[tuple["Engine", "Blobs"]]:
    """Open the database of the options with an engine, and the file storage of the settings."""
    from callsheet.blobs.base import BlobError  # noqa: PLC0415 - slow: imports httpx
    from callsheet.blobs.factory import open_blobs  # noqa: PLC0415 - slow: imports httpx
    from callsheet.cli.server_settings_file import load_settings  # noqa: PLC0415 - slow: imports the engine
    from callsheet.engine import Engine, Unavailable  # noqa: PLC0415 - slow: imports the engine

    settings, _ = load_settings(config)
    with Engine(open_schema(data, url, config), settings) as engine:
        engine.start()
        try:
            yield engine, open_blobs(settings.blobs, _folder(data).resolve(), None)
        except (BlobError, Unavailable) as error:
            raise Failure(str(error)) from None


def _find_secret(file: Path | None, data: Path | None) -> bytes | None:
    """Return the signing secret as a server with the same options finds it; None if there is none yet."""
    from callsheet.cli.server_process import load_signing_secret  # noqa: PLC0415 - slow: imports the whole server
    from callsheet.data_folder import load_or_create_signing_secret  # noqa: PLC0415 - only these commands need it

    secret = load_signing_secret(file, os.environ.get("CALLSHEET_SIGNING_SECRET"))
    if secret is None and _secret_file(data).exists():
        return load_or_create_signing_secret(_secret_file(data))
    return secret


def _secret_file(data: Path | None) -> Path:
    return _folder(data) / SECRET_FILE


def _folder(data: Path | None) -> Path:
    return data or DEFAULT_DATA_FOLDER
