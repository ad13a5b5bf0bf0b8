"""Commands that run a server: `up` (everything in one process), `serve` (without a worker), `demo`."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callsheet.cli.commands.workflows import load_definitions
from callsheet.cli.connection import failure_from, validate_url
from callsheet.cli.output import FAILED, Failure, failures_as_json, json_line, print_line, shell_command
from callsheet.cli.shutdown import ShutdownSignal, exit_despite_hanging_threads
from callsheet.cli.value_parsers import parse_directory, parse_postgresql_url
from callsheet.data_folder import ADMIN_KEY_FILE, DEFAULT_DATA_FOLDER, running

if TYPE_CHECKING:
    from callsheet.cli.server_process import LocalServer, ServerOptions
    from callsheet.core.model.workflow_definition import WorkflowDefinition

Data = Annotated[
    Path,
    typer.Option(
        "--data-dir",
        parser=parse_directory,
        metavar="DIR",
        help="Folder for the database, files and admin key.",
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        parser=parse_postgresql_url,
        metavar="URL",
        help="postgresql:// URL. Default: SQLite in the data folder.",
    ),
]
Host = Annotated[str, typer.Option("--host", help="Host to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0 picks a free one.")]
HealthPort = Annotated[
    int | None,
    typer.Option(
        "--health-port", min=0, max=65_535, help="Port that only serves health checks and metrics; 0 picks a free one."
    ),
]
Public = Annotated[bool, typer.Option("--public", help="Allow a host that other machines can reach.")]
JsonWhenReady = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one line of JSON (url, admin_key_file, pid, dialects) when the server is ready."
    ),
]
SigningSecretFile = Annotated[
    Path | None,
    typer.Option(
        "--signing-secret-file",
        help="File with the signing secret that several servers share (or set CALLSHEET_SIGNING_SECRET).",
    ),
]
ExitWhenDone = Annotated[bool, typer.Option("--once", help="Exit when done, even if the command started a server.")]
ServerUrl = Annotated[
    str | None, typer.Option("--url", help="URL of the server (or CALLSHEET_URL). Set CALLSHEET_API_KEY to its key.")
]
JsonWhenDone = Annotated[
    bool,
    typer.Option("--json", help="Print one line of JSON (completed, jobs, files) when done, and exit."),
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Number of tasks to run at once.")]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings, see docs/reference/settings.md.")
]
WorkflowsDirectory = Annotated[
    Path | None, typer.Option("--workflows", help="Folder of workflow files to apply before the server starts.")
]
_DEMO_NOT_INSTALLED = "The demo is not installed. Install the extra `demo`: in a checkout, run pip install '.[demo]'."


def up(  # noqa: PLR0913, PLR0917 - one per option of the command
    data: Data = DEFAULT_DATA_FOLDER, host: Host = "127.0.0.1", port: Port = 8787,
    health_port: HealthPort = None, database: Database = None,
    concurrency: Concurrency = 2, signing_secret_file: SigningSecretFile = None,
    public: Public = False, json: JsonWhenReady = False, config: Config = None, workflows: WorkflowsDirectory = None,
    run_demo: Annotated[bool, typer.Option("--demo", help="Run the demo, then keep running.")] = False,
    no_demo: Annotated[bool, typer.Option("--no-demo-workflows", help="Do not add the demo workflows.")] = False,
) -> None:  # fmt: skip
    """Start everything in one process.

    This runs the API, a worker and the background loops. On a terminal, logs go to callsheet.log in the data folder.
    With --json, or if standard error is not a terminal, they go to standard error.
    """
    if run_demo and no_demo:
        raise typer.BadParameter("--demo needs the demo workflows. Remove --demo or --no-demo-workflows.")
    with ShutdownSignal() as shutdown, failures_as_json(json=json):
        with shutdown.interrupting():
            demo_installed = not no_demo and _demo_is_installed()
            if run_demo and not demo_installed:
                raise Failure(_DEMO_NOT_INSTALLED)
            options = _load_options(
                config, signing_secret_file, data=data, host=host, port=port, health_port=health_port,
                database=database, public=public,
            )  # fmt: skip
            definitions = load_definitions([workflows]) if workflows is not None else []
        worker_concurrency = concurrency if demo_installed else 0
        with _running_server(
            options, shutdown, json=json, concurrency=worker_concurrency, definitions=definitions
        ) as server:
            _announce(
                server,
                options,
                json=json,
                demo_installed=demo_installed,
                no_worker=not worker_concurrency,
                demo_follows=run_demo,
            )
            if run_demo:
                shutdown.run_interruptible(
                    lambda: _run_demo(server.url, _read_key(server.key_file), options.data, shutdown, to_stderr=json)
                )
            if run_demo and not json:
                _announce_staying_up(server.url, options.data, shutdown)
            shutdown.wait()
            if not json:
                print_line("Stopping. Running tasks are requeued.")
    exit_despite_hanging_threads()


def serve(  # noqa: PLR0913, PLR0917 - one per option of the command
    data: Data = DEFAULT_DATA_FOLDER, host: Host = "127.0.0.1", port: Port = 8787,
    health_port: HealthPort = None, database: Database = None,
    signing_secret_file: SigningSecretFile = None, public: Public = False, json: JsonWhenReady = False,
    config: Config = None,
) -> None:  # fmt: skip
    """Start a server without a worker.

    Several servers may share a database, a files folder and a secret. Logs go to the same place as with `up`.
    """
    with ShutdownSignal() as shutdown, failures_as_json(json=json):
        with shutdown.interrupting():
            options = _load_options(
                config, signing_secret_file, data=data, host=host, port=port, health_port=health_port,
                database=database, public=public,
                create_admin_key=database is None,
            )  # fmt: skip
        with _running_server(options, shutdown, json=json) as server:
            _announce(server, options, json=json)
            shutdown.wait()
    exit_despite_hanging_threads()


def demo(
    once: ExitWhenDone = False, url: ServerUrl = None, data: Data = DEFAULT_DATA_FOLDER, json: JsonWhenDone = False
) -> None:
    """Make a picture, a tone, a clip and a short video.

    The demo shows the progress of its jobs. It uses the server of --data-dir, or starts one.
    """
    with failures_as_json(json=json):
        _run_demo_command(url, data, once=once, json=json)


def register(app: typer.Typer) -> None:
    """Add the commands that run a server."""
    for command in (up, serve, demo):
        app.command()(command)


# -- helpers


def _run_demo_command(url: str | None, data: Path, *, once: bool, json: bool) -> None:
    from callsheet.cli import server_process as base  # noqa: PLC0415 - slow: imports the whole server

    if not base.demo_is_installed():
        raise Failure(_DEMO_NOT_INSTALLED)
    server_url = url or os.environ.get("CALLSHEET_URL")
    url = server_url and validate_url(server_url)
    directory = base.create_data_folder(data)
    server_info = running(directory)
    if server_info and url and url.rstrip("/") != str(server_info["url"]).rstrip("/"):
        server_info = None
    outcomes: list[bool] = []
    if url or server_info:
        # The admin key of a data folder is sent to the server of that folder only.
        target_url, key = (
            (
                str(server_info["url"]),
                (url and os.environ.get("CALLSHEET_API_KEY")) or _read_key(directory / ADMIN_KEY_FILE),
            )
            if server_info
            else (str(url), os.environ.get("CALLSHEET_API_KEY", ""))
        )
        with ShutdownSignal() as shutdown:
            shutdown.run_interruptible(
                lambda: outcomes.append(
                    _run_demo(target_url, key, directory, shutdown, to_stderr=json, print_result=json)
                )
            )
        if shutdown.requested:
            raise KeyboardInterrupt
        if outcomes != [True]:
            raise typer.Exit(FAILED)
        if server_info and not json:
            _print_next_steps(target_url, directory)
        return
    with (
        ShutdownSignal() as shutdown,
        _running_server(base.ServerOptions(data=directory, port=0), shutdown, json=json, concurrency=2) as server,
    ):
        key = _read_key(server.key_file)
        shutdown.run_interruptible(
            lambda: outcomes.append(_run_demo(server.url, key, directory, shutdown, to_stderr=json, print_result=json))
        )
        if not once and not json:
            _announce_staying_up(server.url, directory, shutdown)
            shutdown.wait()
    if shutdown.requested and not outcomes:
        raise KeyboardInterrupt
    if outcomes != [True]:
        raise typer.Exit(FAILED)


def _demo_is_installed() -> bool:
    from callsheet.cli.server_process import demo_is_installed  # noqa: PLC0415 - slow: imports the whole server

    return demo_is_installed()


def _load_options(config: Path | None, signing_secret_file: Path | None, **fields: Any) -> "ServerOptions":
    """Return the options of a server with its settings and its secret, and create its data folder."""
    from callsheet.cli import server_process as base  # noqa: PLC0415 - slow: imports the whole server
    from callsheet.cli.server_settings_file import load_settings  # noqa: PLC0415 - slow

    settings, http_settings = load_settings(config)
    secret = base.load_signing_secret(signing_secret_file, os.environ.get("CALLSHEET_SIGNING_SECRET"))
    return base.prepare_directory(base.ServerOptions(settings=settings, http=http_settings, secret=secret, **fields))


@contextmanager
def _running_server(
    options: "ServerOptions", shutdown: ShutdownSignal, *, json: bool, concurrency: int = 0,
    definitions: Sequence["WorkflowDefinition"] = (),
) -> Iterator["LocalServer"]:  # fmt: skip
    """Run a server in a `with` block. If `concurrency` is not 0, add the demo workflows and start the demo worker.

    A signal interrupts the start. Once the server runs, `shutdown` says that it should stop.
    """
    from callsheet.cli import server_process as base  # noqa: PLC0415 - slow: imports the whole server
    from callsheet.http.listener.process_setup import make_full_collections_rare  # noqa: PLC0415 - slow

    def announce_wait(message: str) -> None:
        waiting = Failure(message, code="waiting_for_database")
        waiting.json_output = json
        sys.stderr.write(f"{waiting.line()}\n")
        sys.stderr.flush()

    with shutdown.interrupting():
        log = base.open_log(options, quiet=not json and sys.stderr.isatty())
        server = base.LocalServer(options, log, announce_wait)
        with server.closing_on_failure():
            if concurrency:
                from callsheet.demo.setup import seed_demo  # noqa: PLC0415 - an optional dependency

                seed_demo(server.callsheet.engine)
            server.put_workflows(definitions)
    with server:
        if concurrency:
            from callsheet.demo.worker import worker  # noqa: PLC0415 - an optional dependency

            server.start_worker(worker, concurrency)
        make_full_collections_rare()
        yield server


def _announce(
    server: "LocalServer", options: "ServerOptions", *, json: bool, demo_installed: bool = False,
    no_worker: bool = False,
    demo_follows: bool = False,
) -> None:  # fmt: skip
    """Print the URL of the server: as one line of JSON for programs, or as a banner with next steps."""
    if json:
        key_file = str(server.key_file) if server.key_file else None
        line: dict[str, Any] = {"url": server.url, "admin_key_file": key_file, "pid": os.getpid(), "dialects": []}
        if server.health_url is not None:
            line["health_url"] = server.health_url
        sys.stdout.write(dumps(line) + "\n")
        sys.stdout.flush()
        return
    from callsheet.cli.banner import banner  # noqa: PLC0415 - slow: imports rich

    banner(server, options, demo_installed=demo_installed, no_worker=no_worker, demo_follows=demo_follows)


def _announce_staying_up(url: str, data: Path, shutdown: ShutdownSignal) -> None:
    if not shutdown.requested:
        _print_next_steps(url, data)
        print_line(f"\nCallsheet keeps running at {url}. Press Ctrl-C to stop it.")


def _print_next_steps(url: str, data: Path) -> None:
    """Print commands to try after the demo."""
    from callsheet.cli.banner import data_option  # noqa: PLC0415 - slow: imports rich
    from callsheet.demo.setup import USER  # noqa: PLC0415 - an optional dependency

    print_line("\nTry next:")
    print_line(f"  open {url}/docs")
    print_line(f"  {shell_command('submit sketch')} --user {USER} --input prompt=dunes --wait{data_option(data)}")


def _run_demo(
    url: str, key: str, data: Path, shutdown: ShutdownSignal, *, to_stderr: bool = False, print_result: bool = False
) -> bool:
    """Run the demo. `to_stderr` keeps its display off standard output; `print_result` prints the result as JSON."""
    from rich.console import Console  # noqa: PLC0415 - only needed for display

    from callsheet.client import CallsheetError, Client, RetryPolicy  # noqa: PLC0415 - slow: imports httpx
    from callsheet.demo.runner import show  # noqa: PLC0415 - an optional dependency

    try:
        with Client(url, key, retry_policy=RetryPolicy(retries_max=2)) as client:
            client.identity.get()  # fail fast: the demo itself retries while a server restarts
        result = show(url, key, data / "demo", Console(highlight=False, stderr=to_stderr), lambda: shutdown.requested)
    except CallsheetError as error:
        raise failure_from(error, url) from None
    if print_result:
        jobs = [{"id": job.id, "workflow": job.workflow, "status": job.status} for job in result.jobs]
        print_line(
            json_line({"completed": result.completed, "jobs": jobs, "files": [str(file.path) for file in result.files]})
        )
        sys.stdout.flush()
    return result.completed


def _read_key(file: Path | None) -> str:
    try:
        return file.read_text().strip() if file else ""
    except OSError:
        raise Failure(f"Cannot read the API key in {file}. Pass --url and set CALLSHEET_API_KEY.") from None
