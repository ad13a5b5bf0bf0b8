"""`callsheet work`: the handlers of a module, on any machine that reaches the house over HTTP."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import MsgspecError, Struct

from callsheet.cli.given import fields_of, folder_of
from callsheet.cli.output import Failure, one_line, say
from callsheet.cli.server import Data, note_in
from callsheet.folder import DATA, FLEET_KEY_FILE

if TYPE_CHECKING:
    from callsheet.cli.ending import Ending
    from callsheet.worker import Kit, Notice, Noticed, Shift, Worker
    from callsheet.worker.facts import Fact, Tell

_GIB = 1024**3
Module = Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="Where the worker is: package.module:worker.")]
House = Annotated[str | None, typer.Option("--url", help="The house to work for (or CALLSHEET_URL).")]
FleetSecret = Annotated[
    Path | None,
    typer.Option("--fleet-secret-file", help="File with the fleet's secret (or CALLSHEET_FLEET_SECRET itself)."),
]
Name = Annotated[
    str | None, typer.Option("--name", help="The worker's name; by default this machine's, kept in the cache folder.")
]
Kinds = Annotated[
    str | None, typer.Option("--kinds", help="Kinds to take, with commas; by default all that it has handlers for.")
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="How many tasks to work on at once.")]
CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        parser=folder_of,
        metavar="DIR",
        help="Folder for files kept between tasks, tasks' folders and the name.",
    ),
]
CacheBytes = Annotated[
    int, typer.Option("--cache-bytes", min=0, help="How much to keep between tasks; 0 keeps nothing.")
]
Spot = Annotated[
    list[str] | None,
    typer.Option(
        "--spot",
        help="Where word of the machine's end comes from: aws, aws:interruption (no rebalancing), file:PATH, url:URL.",
    ),
]
Protect = Annotated[
    str | None,
    typer.Option("--protect", help="Command that is run with `on` while there is work, with `off` after it."),
]
Grace = Annotated[float, typer.Option("--grace", min=0, help="Seconds to finish in before work is given back.")]
Label = Annotated[list[str] | None, typer.Option("--label", help="What operators shall see of it, as NAME=VALUE.")]
Capability = Annotated[
    list[str] | None,
    typer.Option("--capability", help="What this machine has, as NAME=TEXT or NAME:=JSON: gpu=H100, vram_gb:=80."),
]
Lines = Annotated[bool, typer.Option("--json", help="Print a line of JSON for everything that happens.")]


class Terms(Struct, frozen=True, kw_only=True):
    """On which terms a worker works on this machine: the options of the command."""

    url: str | None = None
    data: Path = DATA
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
    module: Module, url: House = None, fleet_secret_file: FleetSecret = None, name: Name = None, kinds: Kinds = None,
    concurrency: Concurrency = 1, cache: CacheFolder = None, cache_bytes: CacheBytes = 20 * _GIB, spot: Spot = None,
    protect: Protect = None, grace: Grace = 0, label: Label = None, capability: Capability = None,
    data: Data = DATA, json: Lines = False,
) -> None:  # fmt: skip
    """Run the handlers of a module on this machine.

    The house is reached over HTTP. A worker that is told to stop (SIGTERM, Ctrl-C) or whose machine is taken away gives
    back what it has in hand, says goodbye and exits with 0.
    """
    terms = Terms(
        url=url, fleet_secret_file=fleet_secret_file, name=name, kinds=kinds, concurrency=concurrency, cache=cache,
        cache_bytes=cache_bytes, spot=spot, protect=protect, grace=grace, label=label, capability=capability,
        data=data, json=json,
    )  # fmt: skip
    run(_worker(module), terms)


def run(worker: "Worker", terms: Terms) -> None:
    """Let a worker work on these terms until it is told to stop, or has nothing to stay for."""
    from callsheet.cli.ending import Ending  # noqa: PLC0415 - `--help` goes without it
    from callsheet.worker import HttpLink, Lookout  # noqa: PLC0415 - the same
    from callsheet.worker.name import NameTaken, own_name  # noqa: PLC0415 - the same

    gone: list[str] = []
    folder, tell = _folder(terms.cache), _teller(gone, json=terms.json)
    url, secret = _house(terms)
    kinds = None if terms.kinds is None else [kind.strip() for kind in terms.kinds.split(",")]
    labels = dict(_label(text) for text in terms.label or ())
    capabilities = fields_of(terms.capability or [], "--capability takes NAME=TEXT or NAME:=JSON.")
    try:
        notices, kit = [_notice(text) for text in terms.spot or ()], _kit(terms, folder, tell)
        with own_name(folder / "names", terms.name) as name, Ending() as ending:
            link = HttpLink(url, secret, name, labels=labels, capabilities=capabilities)
            shift = worker.start(link, terms.concurrency, kinds=kinds, kit=kit)
            lookout = Lookout(notices, lambda noticed: _gone(shift, noticed), tell)
            lookout.start()
            _stay(shift, ending, terms.grace)
            lookout.stop()
    except NameTaken as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if shift.failure is not None:
        raise Failure(shift.failure)
    for why in gone:
        say(f"Gone: {why.rstrip('.')}.")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(work)


# -- steps


def _kit(terms: Terms, folder: Path, tell: "Tell") -> "Kit":
    from callsheet.worker import Cache, CommandProtection, Kit, Scratch  # noqa: PLC0415 - `--help` goes without it

    return Kit(
        scratch=Scratch(folder / "tasks"),  # beside the kept files: a link reaches them there
        cache=Cache(folder / "files", terms.cache_bytes) if terms.cache_bytes else None,
        protection=CommandProtection(terms.protect) if terms.protect is not None else None,
        tell=tell,
    )


def _stay(shift: "Shift", ending: "Ending", grace: float) -> None:
    """Wait for the end of the shift, and bring it about when the end of the command is asked for."""
    from callsheet.cli.ending import LOOK_SECONDS  # noqa: PLC0415 - `--help` goes without it
    from callsheet.worker import Going  # noqa: PLC0415 - the same

    while not shift.wait(LOOK_SECONDS):
        if ending.asked:
            shift.leave(Going("shutdown", "the worker is stopped", grace))


def _gone(shift: "Shift", noticed: "Noticed") -> None:
    """Do what a notice asks for: end what is in hand, or give it back at once."""
    from callsheet.worker import Going  # noqa: PLC0415 - `--help` goes without it

    if noticed.drain:
        shift.drain()
    else:
        shift.leave(Going("spot", noticed.reason))


def _notice(text: str) -> "Notice":
    from callsheet.worker import FileNotice, SpotNotice, UrlNotice  # noqa: PLC0415 - `--help` goes without it

    how, _, where = text.partition(":")
    if text in {"aws", "aws:interruption"}:
        base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        return SpotNotice(*([base] if base else []), rebalance=text == "aws")
    if how == "file" and where:
        return FileNotice(Path(where))
    if how == "url" and where.startswith(("http://", "https://")):
        return UrlNotice(where)
    raise ValueError(f"--spot {text}: choose aws, aws:interruption, file:PATH or url:http://….")


def _house(terms: Terms) -> tuple[str, Callable[[], str]]:
    """Return the house and what reads its secret: as named, or as found in the data folder of a server here.

    A folder's secret goes to that folder's server only.
    """
    file, url = terms.fleet_secret_file, terms.url or os.environ.get("CALLSHEET_URL")
    if not url:
        try:
            url = note_in(terms.data).url
        except (OSError, MsgspecError):
            raise typer.BadParameter(
                f"Name the house with --url, or CALLSHEET_URL: there is no server in {terms.data}."
            ) from None
        if file is None and not os.environ.get("CALLSHEET_FLEET_SECRET"):
            file = terms.data / FLEET_KEY_FILE
    return url, _secret(file)


def _secret(file: Path | None) -> Callable[[], str]:
    """Return what reads the fleet's secret: a file is read at every registration, for it may have changed."""
    given = os.environ.get("CALLSHEET_FLEET_SECRET", "").strip()
    if file is None and not given:
        raise typer.BadParameter("Name the fleet's secret with --fleet-secret-file, or CALLSHEET_FLEET_SECRET.")

    def read() -> str:
        from callsheet.worker import Barred  # noqa: PLC0415 - `--help` goes without it

        if file is None:
            return given
        try:
            return file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise Barred(f"The fleet's secret cannot be read from {file}.") from None

    return read


def _folder(given: Path | None) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = given or Path(base) / "callsheet"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Failure(f"The folder {folder} cannot be made: {error.strerror}. Choose another with --cache.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Failure(f"The folder {folder} cannot be written to: choose another with --cache.")
    return folder.resolve()


def _label(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not name or not mark:
        raise typer.BadParameter(f"--label {text}: a label is NAME=VALUE.")
    return name, value


def _worker(module: str) -> "Worker":
    from callsheet.worker import Worker  # noqa: PLC0415 - `--help` goes without it

    path, _, name = module.partition(":")
    if not path:
        raise typer.BadParameter("Name a module and the worker in it: package.module:worker.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(path), name or "worker", None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a module does while it is read
        raise typer.BadParameter(f"{path} cannot be imported: {_what(error).rstrip('.')}.") from None
    if found is None:
        raise typer.BadParameter(f"There is no {name or 'worker'} in {path}: name what is, {path}:NAME.")
    if not isinstance(found, Worker):
        raise typer.BadParameter(f"{module} is not a callsheet.worker.Worker but of type {type(found).__name__}.")
    if not found.handlers:
        raise typer.BadParameter(
            f"{module} has no handlers: @{name or 'worker'}.task(KIND) above a function makes one."
        )
    return found


def _what(error: BaseException) -> str:
    """Say what went wrong in a module that was read, and where in it."""
    frames = [
        frame for frame in extract_tb(error.__traceback__) if frame.filename not in {__file__, importlib.__file__}
    ]
    own = [f"{Path(frame.filename).name}:{frame.lineno}: " for frame in frames if not frame.filename.startswith("<")]
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"{''.join(own[-1:])}{kind}{error}"


# -- what it prints


def _teller(gone: list[str], *, json: bool) -> "Tell":
    """Return what prints all that happens; why the worker has gone is left in a list: that may be a failure to tell."""
    from callsheet.worker.facts import Left, to_stderr  # noqa: PLC0415 - `--help` goes without it

    def tell(fact: "Fact") -> None:
        to_stderr(fact)
        if isinstance(fact, Left) and not json:
            gone.append(fact.why)
        line = _for_programs(fact) if json else _for_people(fact)
        if line:
            say(one_line(line) if json else str(line))
            sys.stdout.flush()

    return tell


def _for_programs(fact: "Fact") -> dict[str, Any]:
    from callsheet.worker import facts  # noqa: PLC0415 - `--help` goes without it

    event = type(fact).__name__.lower()
    match fact:
        case facts.Arrived(worker, kinds, approved):
            return {"event": event, "worker": worker, "kinds": kinds, "approved": approved, "pid": os.getpid()}
        case facts.Began(work):
            return {"event": event, **_task(work)}
        case facts.Ended(work, how, seconds):
            return {"event": event, **_task(work), "how": how, "seconds": round(seconds, 3)}
        case facts.Trouble(what, error):
            return {"event": event, "what": what, "error": f"{type(error).__name__}: {error}"}
        case facts.Waiting(why) | facts.Left(why):
            return {"event": event, "why": why}
        case facts.Ready():
            return {"event": event}


def _task(work: Any) -> dict[str, Any]:
    lease = work.lease
    return {"kind": work.kind, "job_id": lease.job_id, "task_id": lease.task_id, "attempt": lease.attempt}


def _for_people(fact: "Fact") -> str | None:
    from callsheet.worker import facts  # noqa: PLC0415 - `--help` goes without it

    match fact:
        case facts.Arrived(worker, kinds, approved):
            then = "Ctrl-C gives back what is in hand." if approved else "An operator has to approve it first."
            return f"{worker} works on {', '.join(kinds) or 'nothing: no kind is assigned to it'}. {then}"
        case facts.Ready():
            return "What it waited for is there: it takes work."
        case facts.Began(work):
            return f"{work.kind} {work.lease.task_id[-8:]} begins (job {work.lease.job_id}, try {work.lease.attempt})"
        case facts.Ended(work, how, seconds):
            return f"{work.kind} {work.lease.task_id[-8:]} {how} after {seconds:.1f} s"
        case _:
            return None
