"""Which server a command speaks to, and with which key.

In this order: --url and --key; CALLSHEET_URL and CALLSHEET_KEY; the server.json that `callsheet up` leaves in its
data folder. The key of that folder goes to that server only.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import typer

from callsheet.cli.given import folder_of
from callsheet.cli.output import FAILED, NO_SERVER, WRONG_CALL, AsJson, Failure, typed
from callsheet.folder import ADMIN_KEY_FILE, DATA, running

if TYPE_CHECKING:
    from callsheet.client import CallsheetError, Client

_UNFIT = frozenset({400, 422})
_CONTENTS = frozenset({"invalid_file", "invalid_graph", "invalid_input", "invalid_quote", "invalid_recipe",
                       "invalid_workflow"})  # fmt: skip
"""Refusals of what was sent, not of how the command was called."""
Url = Annotated[str | None, typer.Option("--url", help="Address of the server; or CALLSHEET_URL.")]
ApiKey = Annotated[str | None, typer.Option("--key", help="API key; or CALLSHEET_KEY, which no process list shows.")]
Data = Annotated[
    Path, typer.Option("--data", parser=folder_of, metavar="DIR", help="Data folder of a server on this machine.")
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Whom an operator acts for, whose key is of no tenant; or CALLSHEET_TENANT."),
]


class Note(msgspec.Struct, frozen=True):
    """What a running server says of itself in its data folder."""

    url: str
    admin_key_file: str | None = None


class Server(NamedTuple):
    """The server that a command speaks to, and whether it prints JSON."""

    url: str | None
    key: str | None
    data: Path
    json: bool
    tenant: str | None = None

    @contextmanager
    def client(self, *, patient: bool = False) -> Iterator["Client"]:
        """Give a client; what goes wrong with it is one sentence. A patient one waits for a server that restarts."""
        from callsheet.client import CallsheetError, Client, Patience  # noqa: PLC0415 - brings httpx

        url, key, noted = self._found()
        patience = Patience() if patient else Patience(retries_max=2)
        try:
            with Client(url, key, tenant=self.tenant, patience=patience) as client:
                yield client
        except CallsheetError as error:
            failure = failure_of(error, url)
            if noted and failure.exit_code == NO_SERVER:
                failure.args = (f"{failure} Start it with `{typed('up')}{self._folder}`.",)
            raise failure from None
        except BrokenPipeError:  # whoever read the output has gone: `callsheet jobs | head`
            raise
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}." if error.filename else f"{error}") from None

    def _found(self) -> tuple[str, str | None, bool]:
        """Return the address, the key, and whether they are those that a server noted in its folder."""
        url, key = self.url or os.environ.get("CALLSHEET_URL"), self.key or os.environ.get("CALLSHEET_KEY")
        if url:
            return address_of(url), key, False
        try:
            note = note_in(self.data)
            if key is None and note.admin_key_file:
                key = (self.data / note.admin_key_file).read_text().strip()
        except (OSError, msgspec.MsgspecError):
            raise Failure(
                f"No server is known: none runs on {self.data}. Start one with `{typed('up')}{self._folder}`, or name "
                "it with --url, CALLSHEET_URL or --data.", NO_SERVER, code="no_server",
            ) from None  # fmt: skip
        return note.url, key, True

    @property
    def _folder(self) -> str:
        return "" if self.data == DATA else f" --data {self.data}"


def failure_of(error: "CallsheetError", url: str) -> Failure:
    """Say what went wrong with a server; a value that it does not take is a wrong call, as one that we do not take."""
    from callsheet.client import NotReachable  # noqa: PLC0415 - brings httpx

    if isinstance(error, NotReachable):
        return Failure(error.message, NO_SERVER, code=error.code)
    said = error.message
    if error.code == "missing_key":
        first = f"The first one is in {ADMIN_KEY_FILE} of the server's data folder."
        said = f"{without_secrets(url)} wants a key: --key, or CALLSHEET_KEY. {first}"
    unfit = error.status in _UNFIT and error.code.startswith(("invalid_", "out_of_range"))
    wrong = unfit and error.code not in _CONTENTS
    return Failure(said, WRONG_CALL if wrong else FAILED, code=error.code, request_id=error.request_id)


def note_in(data: Path) -> Note:
    """Return what the server that runs on a folder says of itself; OSError or MsgspecError if none does.

    What one that was killed has left says nothing: its address may be another program's by now.
    """
    note = running(data)
    if note is None:
        raise FileNotFoundError(data)
    return msgspec.convert(note, Note)


def address_of(url: str) -> str:
    """Return an address if it is one; what is wrong with it is a wrong call, not a server that does not answer."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise Failure(
            f"{without_secrets(url)!r} is no address of a server: write http://HOST:PORT or https://HOST, in --url or "
            "CALLSHEET_URL.", WRONG_CALL, code="no_url",
        )  # fmt: skip
    return url


def without_secrets(url: str) -> str:
    """Return an address without the name and password that it may hold."""
    scheme, mark, rest = url.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def command(
    group: typer.Typer, name: str | None = None, *, bare: bool = False, **more: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command that speaks to a server: its first parameter is the Server, made from five options.

    A bare one is what the group does when none of its commands is named.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(
            *args: Any, url: str | None, key: str | None, data: Path, json: bool, tenant: str | None, **given: Any
        ) -> None:
            try:
                function(Server(url, key, data, json, tenant), *args, **given)
            except Failure as failure:
                failure.for_programs = json
                raise _named(failure, given) from None

        _, *own = inspect.signature(function).parameters.values()
        run.__signature__ = inspect.Signature([*own, *_OPTIONS])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *_OPTIONS)}
        if bare:
            group.callback(invoke_without_command=True)(_alone(run))
        else:
            group.command(name, **more)(run)
        return function

    return add


def _named(failure: Failure, given: dict[str, Any]) -> Failure:
    """Say which job, file or key is not there: the one that was asked for."""
    what, mark, _ = failure.code.partition("_not_found")
    name = given.get(f"{what}_id")
    if mark and name:
        failure.args = (f"There is no {what} {name}.",)
    return failure


def _alone(run: Callable[..., None]) -> Callable[..., None]:
    """Run unless a command of the group was named."""

    def alone(ctx: typer.Context, **given: Any) -> None:
        if ctx.invoked_subcommand is None:
            run(**given)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *inspect.signature(run).parameters.values()]
    alone.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    alone.__doc__ = run.__doc__
    return alone


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


_OPTIONS = (
    _option("url", Url, None), _option("key", ApiKey, None), _option("data", Data, DATA),
    _option("tenant", Tenant, None), _option("json", AsJson, default=False),
)  # fmt: skip
