"""Running a server: `up` (everything in one process), `serve` (no worker), `demo`."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callsheet.cli.admin import recipes_of
from callsheet.cli.ending import Ending, leave_behind
from callsheet.cli.given import folder_of, postgresql_of
from callsheet.cli.output import FAILED, Failure, one_line, say, typed
from callsheet.cli.server import address_of, failure_of
from callsheet.folder import ADMIN_KEY_FILE, DATA, running

if TYPE_CHECKING:
    from callsheet.cli.standing import Plan, Standing
    from callsheet.core.recipe import Recipe

Data = Annotated[
    Path,
    typer.Option(
        "--data", parser=folder_of, metavar="DIR", help="Folder for the database, the files and the admin key."
    ),
]
Database = Annotated[
    str | None,
    typer.Option("--database", parser=postgresql_of, metavar="URL", help="postgresql:// URL, in place of SQLite."),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen at.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port to listen at; 0 takes a free one.")]
Public = Annotated[bool, typer.Option("--public", help="Allow an address that other machines can reach.")]
First = Annotated[
    bool,
    typer.Option("--json", help="Print one line of JSON (url, admin_key_file, pid, dialects) as soon as it answers."),
]
Secret = Annotated[
    Path | None,
    typer.Option("--secret-file", help="Signing secret that several servers share (or CALLSHEET_SECRET)."),
]
Once = Annotated[bool, typer.Option("--once", help="Exit when it is done, also if a server was started for it.")]
ServerUrl = Annotated[
    str | None, typer.Option("--url", help="A server to run it on (or CALLSHEET_URL); its key is in CALLSHEET_KEY.")
]
Last = Annotated[
    bool,
    typer.Option("--json", help="Print one line of JSON (completed, jobs, files) when it has been shown, and exit."),
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="How many tasks to work on at once.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings: docs/settings.md has all.")]
Recipes = Annotated[
    Path | None, typer.Option("--workflows", help="Folder whose workflow files are put before the server answers.")
]
_NO_DEMO = "The demonstration is not installed: pip install 'callsheet[demo]'."


def up(  # noqa: PLR0913, PLR0917 - one per option of the command
    data: Data = DATA, host: Host = "127.0.0.1", port: Port = 8787, database: Database = None, workers: Workers = 2,
    public: Public = False, json: First = False, config: Config = None, workflows: Recipes = None,
    with_demo: Annotated[bool, typer.Option("--demo", help="Run the demonstration, then stay up.")] = False,
    no_demo: Annotated[bool, typer.Option("--no-demo", help="Leave the demonstration's workflows out.")] = False,
) -> None:  # fmt: skip
    """Start everything in one process.

    That is the API, a worker, the sweeper, the relay and the collector. On a terminal the log goes to callsheet.log in
    the data folder; with --json, or where standard error is no terminal, to standard error.
    """
    if with_demo and no_demo:
        raise typer.BadParameter("--demo and --no-demo exclude each other.")
    from callsheet.cli import standing as base  # noqa: PLC0415 - brings the whole house with it
    from callsheet.cli.settings import settings_of  # noqa: PLC0415 - the same

    demo_here = not no_demo and base.demo_is_installed()
    if with_demo and not demo_here:
        raise Failure(_NO_DEMO)
    settings, edge = settings_of(config)
    recipes = recipes_of([workflows]) if workflows is not None else []
    plan = base.placed(base.Plan(
        data=data, host=host, port=port, database=database, public=public, settings=settings, http=edge
    ))  # fmt: skip
    hands = workers if demo_here else 0
    with Ending() as ending, _stood(plan, json=json, workers=hands, recipes=recipes) as standing:
        _announce(standing, plan, json=json, demo_here=demo_here, idle=not hands, then_demo=with_demo)
        if with_demo:
            ending.during(lambda: _show(standing.url, _key(standing.key_file), plan.data, ending, aside=json))
        if with_demo and not json:
            _stay(standing.url, plan.data, ending)
        ending.wait()
        if not json:
            say("Stopping: what is in hand is given back.")
    leave_behind()


def serve(  # noqa: PLR0913, PLR0917 - one per option of the command
    data: Data = DATA, host: Host = "127.0.0.1", port: Port = 8787, database: Database = None,
    secret_file: Secret = None, public: Public = False, json: First = False, config: Config = None,
) -> None:  # fmt: skip
    """Start a server without a worker.

    Any number of them may share a database, a files folder and a secret. The log goes where that of `up` goes.
    """
    from callsheet.cli import standing as base  # noqa: PLC0415 - brings the whole house with it
    from callsheet.cli.settings import settings_of  # noqa: PLC0415 - the same

    settings, edge = settings_of(config)
    secret = base.secret_of(secret_file, os.environ.get("CALLSHEET_SECRET"))
    plan = base.placed(base.Plan(
        data=data, host=host, port=port, database=database, public=public, secret=secret, own_key=database is None,
        settings=settings, http=edge,
    ))  # fmt: skip
    with Ending() as ending, _stood(plan, json=json, workers=0) as standing:
        _announce(standing, plan, json=json)
        ending.wait()
    leave_behind()


def demo(once: Once = False, url: ServerUrl = None, data: Data = DATA, json: Last = False) -> None:
    """Make a picture, a tone, a clip and a short video.

    You see it happen, on the server of --data or a new one.
    """
    try:
        _demonstrate(url, data, once=once, json=json)
    except Failure as failure:
        failure.for_programs = json
        raise


def register(app: typer.Typer) -> None:
    """Add the commands that run a server."""
    for command in (up, serve, demo):
        app.command()(command)


# -- steps


def _demonstrate(url: str | None, data: Path, *, once: bool, json: bool) -> None:
    from callsheet.cli import standing as base  # noqa: PLC0415 - brings the whole house with it

    if not base.demo_is_installed():
        raise Failure(_NO_DEMO)
    named = url or os.environ.get("CALLSHEET_URL")
    url = named and address_of(named)
    here = base.folder(data)
    note = None if url else running(here)
    well: list[bool] = []
    if url or note:
        # The folder's key goes to the folder's server only.
        at, key = (
            (str(note["url"]), _key(here / ADMIN_KEY_FILE)) if note else (str(url), os.environ.get("CALLSHEET_KEY", ""))
        )
        with Ending() as ending:
            ending.during(lambda: well.append(_show(at, key, here, ending, aside=json, told=json)))
        if ending.asked:
            raise KeyboardInterrupt
        if well != [True]:
            raise typer.Exit(FAILED)
        if note and not json:
            _try_next(at, here)
        return
    with Ending() as ending, _stood(base.Plan(data=here, port=0), json=json, workers=2) as standing:
        key = _key(standing.key_file)
        ending.during(lambda: well.append(_show(standing.url, key, here, ending, aside=json, told=json)))
        if not once and not json:
            _stay(standing.url, here, ending)
            ending.wait()
    if ending.asked and not well:
        raise KeyboardInterrupt
    if well != [True]:
        raise typer.Exit(FAILED)


@contextmanager
def _stood(plan: "Plan", *, json: bool, workers: int, recipes: Sequence["Recipe"] = ()) -> Iterator["Standing"]:
    """Stand a server up, with the demonstration and so many hands for it, and take it down."""
    from callsheet.cli import standing as base  # noqa: PLC0415 - brings the whole house with it

    log = base.log_of(plan, quiet=not json and sys.stderr.isatty())
    standing = base.Standing(plan, log)
    if workers:
        from callsheet.demo.furnish import furnish  # noqa: PLC0415 - an extra

        furnish(standing.callsheet.engine)
    standing.put(recipes)
    with standing:
        if workers:
            from callsheet.demo.crew import worker  # noqa: PLC0415 - an extra

            standing.work(worker, workers)
        yield standing


def _announce(
    standing: "Standing", plan: "Plan", *, json: bool, demo_here: bool = False, idle: bool = False,
    then_demo: bool = False,
) -> None:  # fmt: skip
    """Say where the server is: one line for programs, or what a person may do next."""
    if json:
        key_file = str(standing.key_file) if standing.key_file else None
        line: dict[str, Any] = {"url": standing.url, "admin_key_file": key_file, "pid": os.getpid(), "dialects": []}
        sys.stdout.write(dumps(line) + "\n")
        sys.stdout.flush()
        return
    from callsheet.cli.banner import banner  # noqa: PLC0415 - draws with rich

    banner(standing, plan, demo_here=demo_here, idle=idle, then_demo=then_demo)


def _stay(url: str, data: Path, ending: Ending) -> None:
    if not ending.asked:
        _try_next(url, data)
        say(f"\nCallsheet stays up at {url}. Ctrl-C ends it.")


def _try_next(url: str, data: Path) -> None:
    """Say what there is to do once the demonstration has been seen."""
    from callsheet.cli.banner import in_folder  # noqa: PLC0415 - draws with rich
    from callsheet.demo.furnish import USER  # noqa: PLC0415 - an extra

    say("\nTry next:")
    say(f"  open {url}/docs")
    say(f"  {typed('submit sketch')} --user {USER} --input prompt=dunes --wait{in_folder(data)}")


def _show(url: str, key: str, data: Path, ending: Ending, *, aside: bool = False, told: bool = False) -> bool:
    """Run the demonstration; `aside` leaves standard output to programs, and `told` says to them how it ended."""
    from rich.console import Console  # noqa: PLC0415 - only what draws needs it

    from callsheet.client import CallsheetError, Client, Patience  # noqa: PLC0415 - the same
    from callsheet.demo.show import show  # noqa: PLC0415 - an extra

    try:
        with Client(url, key, patience=Patience(retries_max=2)) as client:
            client.me()  # once it was there, a server is waited for that restarts
        shown = show(url, key, data / "demo", Console(highlight=False, stderr=aside), lambda: ending.asked)
    except CallsheetError as error:
        raise failure_of(error, url) from None
    if told:
        jobs = [{"id": job.id, "workflow": job.workflow, "status": job.status} for job in shown.jobs]
        say(one_line({"completed": shown.completed, "jobs": jobs, "files": [str(one.path) for one in shown.made]}))
        sys.stdout.flush()
    return shown.completed


def _key(file: Path | None) -> str:
    try:
        return file.read_text().strip() if file else ""
    except OSError:
        raise Failure(
            f"The key in {file} cannot be read: name the server with --url, its key in CALLSHEET_KEY."
        ) from None
