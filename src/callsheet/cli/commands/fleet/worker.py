"""`callsheet worker`: run the handlers of a module on any machine that reaches the server over HTTP."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import MsgspecError, Struct

from callsheet.cli.connection import Data, read_server_info, without_secrets
from callsheet.cli.output import Failure, json_line, print_line
from callsheet.cli.value_parsers import parse_directory, parse_fields
from callsheet.data_folder import DEFAULT_DATA_FOLDER, FLEET_KEY_FILE

if TYPE_CHECKING:
    from callsheet.cli.shutdown import ShutdownSignal
    from callsheet.worker import Interruption, InterruptionSource, Worker, WorkerOptions, WorkerRun
    from callsheet.worker.runtime.worker_events import EventListener, WorkerEvent

_GIB = 1024**3
Module = Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="The worker to run, as package.module:worker.")]
ServerUrl = Annotated[str | None, typer.Option("--url", help="URL of the server (or CALLSHEET_URL).")]
FleetSecretFile = Annotated[
    Path | None,
    typer.Option("--fleet-secret-file", help="File with the fleet secret (or set CALLSHEET_FLEET_SECRET)."),
]
Name = Annotated[
    str | None, typer.Option("--name", help="Worker name. Default: the machine's name, stored in the cache folder.")
]
Kinds = Annotated[
    str | None, typer.Option("--kinds", help="Kinds to run, comma-separated. Default: every kind with a handler.")
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Number of tasks to run at once.")]
CacheDirectory = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        parser=parse_directory,
        metavar="DIR",
        help="Folder for cached files, task folders and the worker's name.",
    ),
]
CacheBytes = Annotated[
    int, typer.Option("--cache-bytes-max", min=0, help="Maximum size of the file cache; 0 disables it.")
]
InterruptionSources = Annotated[
    list[str] | None,
    typer.Option(
        "--interruption-source",
        help="Where spot interruption notices come from: aws, aws:interruption (no rebalancing), file:PATH, url:URL.",
    ),
]
ProtectCommand = Annotated[
    str | None,
    typer.Option(
        "--protect-command",
        help="Scale-in protection: command to run with `on` when a task starts, with `off` when none runs.",
    ),
]
Grace = Annotated[
    float, typer.Option("--grace", min=0, help="Seconds that running tasks have to finish before they are requeued.")
]
Label = Annotated[
    list[str] | None, typer.Option("--label", help="Label for operators, as NAME=VALUE. May be repeated.")
]
Capability = Annotated[
    list[str] | None,
    typer.Option("--capability", help="Capability of this machine, as NAME=TEXT or NAME:=JSON: gpu=H100, vram_gb:=80."),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print each event as one line of JSON.")]


class CommandOptions(Struct, frozen=True, kw_only=True):
    """The options of the command."""

    url: str | None = None
    data: Path = DEFAULT_DATA_FOLDER
    fleet_secret_file: Path | None = None
    name: str | None = None
    kinds: str | None = None
    concurrency: int = 1
    cache: Path | None = None
    cache_bytes: int = 20 * _GIB
    spot: list[str] | None = None
    protect: str | None = None
    grace: float = 0
    label: list[str] | None = None
    capability: list[str] | None = None
    json: bool = False


def work(  # noqa: PLR0913, PLR0917 - one per option of the command
    module: Module, url: ServerUrl = None, fleet_secret_file: FleetSecretFile = None, name: Name = None,
    kinds: Kinds = None,
    concurrency: Concurrency = 1, cache: CacheDirectory = None, cache_bytes: CacheBytes = 20 * _GIB,
    spot: InterruptionSources = None,
    protect: ProtectCommand = None, grace: Grace = 0, label: Label = None, capability: Capability = None,
    data: Data = DEFAULT_DATA_FOLDER, json: JsonLines = False,
) -> None:  # fmt: skip
    """Run the handlers of a module on this machine.

    The worker reaches the server over HTTP. On SIGTERM, Ctrl-C or a spot interruption it requeues its running tasks,
    deregisters and exits with code 0.
    """
    options = CommandOptions(
        url=url, fleet_secret_file=fleet_secret_file, name=name, kinds=kinds, concurrency=concurrency, cache=cache,
        cache_bytes=cache_bytes, spot=spot, protect=protect, grace=grace, label=label, capability=capability,
        data=data, json=json,
    )  # fmt: skip
    run_worker(lambda: _import_worker(module), options)


def run_worker(create_worker: Callable[[], "Worker"], options: CommandOptions) -> None:
    """Run a worker until it is stopped or drained. A signal interrupts its creation, which may import slow modules."""
    from callsheet.cli.shutdown import ShutdownSignal  # noqa: PLC0415 - not needed for --help

    with ShutdownSignal() as shutdown:
        with shutdown.interrupting():
            worker = create_worker()
        _run_until_stopped(worker, options, shutdown)


def _run_until_stopped(worker: "Worker", options: CommandOptions, shutdown: "ShutdownSignal") -> None:
    from callsheet.worker import HttpLink, InterruptionWatcher  # noqa: PLC0415 - not needed for --help
    from callsheet.worker.runtime.worker_name_reservation import NameTakenError, hold_worker_name  # noqa: PLC0415 - not needed for --help

    stop_reasons: list[str] = []
    folder, on_event = _cache_directory(options.cache), _event_printer(stop_reasons, json=options.json)
    url, secret = _find_server(options)
    kinds = None if options.kinds is None else [kind.strip() for kind in options.kinds.split(",")]
    labels = dict(_parse_label(text) for text in options.label or ())
    capabilities = parse_fields(options.capability or [], "--capability takes NAME=TEXT or NAME:=JSON.")
    try:
        sources, worker_options = (
            [_parse_interruption_source(text) for text in options.spot or ()],
            _worker_options(options, folder, on_event),
        )
        with hold_worker_name(folder / "names", options.name) as name:
            link = HttpLink(url, secret, name, labels=labels, capabilities=capabilities)
            worker_run = worker.start(link, options.concurrency, kinds=kinds, worker_options=worker_options)
            watcher = InterruptionWatcher(
                sources, lambda interruption: _on_interruption(worker_run, interruption), on_event
            )
            watcher.start()
            _wait_until_stopped(worker_run, shutdown, options.grace)
            watcher.stop()
    except NameTakenError as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if worker_run.failure is not None:
        raise Failure(worker_run.failure)
    for reason in stop_reasons:
        print_line(f"Stopped: {reason.rstrip('.')}.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("worker")(work)


# -- steps


def _worker_options(options: CommandOptions, folder: Path, on_event: "EventListener") -> "WorkerOptions":
    from callsheet.worker import Cache, CommandProtection, Scratch, WorkerOptions  # noqa: PLC0415 - not needed for --help

    return WorkerOptions(
        scratch=Scratch(folder / "tasks"),  # on the file system of the cache, so that a task can hard-link cached files
        cache=Cache(folder / "files", options.cache_bytes) if options.cache_bytes else None,
        protection=CommandProtection(options.protect) if options.protect is not None else None,
        on_event=on_event,
    )


def _wait_until_stopped(worker_run: "WorkerRun", shutdown: "ShutdownSignal", grace: float) -> None:
    """Wait until the worker has stopped, and begin its shutdown when a signal requests it."""
    from callsheet.cli.shutdown import POLL_SECONDS  # noqa: PLC0415 - not needed for --help
    from callsheet.worker import Shutdown  # noqa: PLC0415 - not needed for --help

    while not worker_run.wait(POLL_SECONDS):
        if shutdown.requested:
            worker_run.begin_shutdown(Shutdown("shutdown", "the worker is stopped", grace))


def _on_interruption(worker_run: "WorkerRun", interruption: "Interruption") -> None:
    """Act on a notice: drain the worker, or requeue its tasks at once."""
    from callsheet.worker import Shutdown  # noqa: PLC0415 - not needed for --help

    if interruption.drain:
        worker_run.drain()
    else:
        worker_run.begin_shutdown(Shutdown("spot", interruption.reason))


def _parse_interruption_source(text: str) -> "InterruptionSource":
    from callsheet.worker import AwsSpotSource, FileSource, UrlSource  # noqa: PLC0415 - not needed for --help

    source, _, location = text.partition(":")
    if text in {"aws", "aws:interruption"}:
        base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        return AwsSpotSource(*([base] if base else []), rebalance=text == "aws")
    if source == "file" and location:
        return FileSource(Path(location))
    if source == "url" and location.startswith(("http://", "https://")):
        return UrlSource(location)
    raise ValueError(
        f"--interruption-source {text} is not valid. Choose aws, aws:interruption, file:PATH or url:http://…."
    )


def _find_server(options: CommandOptions) -> tuple[str, Callable[[], str]]:
    """Return the server's URL and a reader of the fleet secret, from the options or a local server's data folder.

    The secret of a data folder is sent to that folder's server only.
    """
    file, url = options.fleet_secret_file, options.url or os.environ.get("CALLSHEET_URL")
    try:
        url = read_server_info(options.data, url).url
        if file is None and not os.environ.get("CALLSHEET_FLEET_SECRET"):
            file = options.data / FLEET_KEY_FILE
    except (OSError, MsgspecError):
        if not url:
            raise typer.BadParameter(
                f"No server found in {options.data}. Start one with `callsheet up`, or pass --url or set CALLSHEET_URL."
            ) from None
    return url, _secret_reader(file, url, options.data)


def _secret_reader(file: Path | None, url: str, data: Path) -> Callable[[], str]:
    """Return a reader of the fleet secret. A file is read again at every registration, because it may have changed."""
    secret = os.environ.get("CALLSHEET_FLEET_SECRET", "").strip()
    if file is None and not secret:
        raise typer.BadParameter(
            f"No fleet secret for {without_secrets(url)}, which is not the server of {data}. Pass --fleet-secret-file, "
            "or set CALLSHEET_FLEET_SECRET."
        )

    def read() -> str:
        from callsheet.worker import RegistrationError  # noqa: PLC0415 - not needed for --help

        if file is None:
            return secret
        try:
            return file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise RegistrationError(f"Cannot read the fleet secret from {file}.") from None

    return read


def _cache_directory(configured: Path | None) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = configured or Path(base) / "callsheet"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Failure(
            f"Cannot create the folder {folder}: {error.strerror}. Choose another with --cache-dir."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Failure(f"The folder {folder} is not writable. Choose another with --cache-dir.")
    return folder.resolve()


def _parse_label(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"--label {text} is not valid. Write NAME=VALUE.")
    return name, value


def _import_worker(module: str) -> "Worker":
    from callsheet.worker import Worker  # noqa: PLC0415 - not needed for --help

    path, _, name = module.partition(":")
    if not path:
        raise typer.BadParameter("The module is missing. Write package.module:worker.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        worker = getattr(importlib.import_module(path), name or "worker", None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything when it is imported
        raise typer.BadParameter(f"{path} cannot be imported: {_describe_import_error(error).rstrip('.')}.") from None
    if worker is None:
        raise typer.BadParameter(f"{path} has no {name or 'worker'}. Pass a worker that exists, as {path}:NAME.")
    if not isinstance(worker, Worker):
        raise typer.BadParameter(f"{module} is of type {type(worker).__name__}. It must be a callsheet.worker.Worker.")
    if not worker.handlers:
        raise typer.BadParameter(
            f"{module} has no handlers. Add one with @{name or 'worker'}.task(KIND) above a function."
        )
    return worker


def _describe_import_error(error: BaseException) -> str:
    """Describe why a module could not be imported, with the file and line."""
    frames = [
        frame for frame in extract_tb(error.__traceback__) if frame.filename not in {__file__, importlib.__file__}
    ]
    locations = [
        f"{Path(frame.filename).name}:{frame.lineno}: " for frame in frames if not frame.filename.startswith("<")
    ]
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"{''.join(locations[-1:])}{kind}{error}"


# -- output


def _event_printer(stop_reasons: list[str], *, json: bool) -> "EventListener":
    """Return a listener that prints events and collects stop reasons, which the caller may report as a failure."""
    from callsheet.worker.runtime.worker_events import WorkerStopped, log_to_stderr  # noqa: PLC0415 - not needed for --help

    def on_event(event: "WorkerEvent") -> None:
        log_to_stderr(event)
        if isinstance(event, WorkerStopped) and not json:
            stop_reasons.append(event.reason)
        line = _event_json(event) if json else _event_text(event)
        if line:
            print_line(json_line(line) if json else str(line))
            sys.stdout.flush()

    return on_event


def _event_json(event: "WorkerEvent") -> dict[str, Any]:
    from callsheet.worker.runtime import worker_events  # noqa: PLC0415 - not needed for --help

    match event:
        case worker_events.WorkerRegistered(worker, kinds, approved):
            registration = {"worker": worker, "kinds": kinds, "approved": approved, "pid": os.getpid()}
            return {"event": "worker.registered", **registration}
        case worker_events.WorkerWaiting(reason):
            return {"event": "worker.waiting", "reason": reason}
        case worker_events.WorkerReady():
            return {"event": "worker.ready"}
        case worker_events.TaskStarted(work):
            return {"event": "task.started", **_task_fields(work)}
        case worker_events.TaskEnded(work, outcome, seconds):
            return {"event": "task.ended", **_task_fields(work), "outcome": outcome, "seconds": round(seconds, 3)}
        case worker_events.WorkerError(message, error):
            return {"event": "worker.error", "message": message, "error": f"{type(error).__name__}: {error}"}
        case worker_events.WorkerStopped(reason):
            return {"event": "worker.stopped", "reason": reason}


def _task_fields(work: Any) -> dict[str, Any]:
    lease = work.lease
    return {"kind": work.kind, "job_id": lease.job_id, "task_id": lease.task_id, "attempt": lease.attempt}


def _event_text(event: "WorkerEvent") -> str | None:
    from callsheet.worker.runtime import worker_events  # noqa: PLC0415 - not needed for --help

    match event:
        case worker_events.WorkerRegistered(worker, kinds, approved):
            next_step = "Ctrl-C requeues its running tasks." if approved else "An operator must approve it first."
            return f"{worker} runs {', '.join(kinds) or 'nothing: no kind is assigned to it'}. {next_step}"
        case worker_events.WorkerReady():
            return "The worker is ready and claims tasks."
        case worker_events.TaskStarted(work):
            return (
                f"{work.kind} {work.lease.task_id[-8:]} started (job {work.lease.job_id}, attempt {work.lease.attempt})"
            )
        case worker_events.TaskEnded(work, outcome, seconds):
            return f"{work.kind} {work.lease.task_id[-8:]} {outcome} after {seconds:.1f} s"
        case _:
            return None
