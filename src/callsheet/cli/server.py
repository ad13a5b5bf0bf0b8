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
from callsheet.cli.output import NO_SERVER, WRONG_CALL, AsJson, Failure
from callsheet.folder import DATA, SERVER_FILE

if TYPE_CHECKING:
    from callsheet.client import Client

_NOWHERE = "No server is known: start one with `callsheet up`, or name it with --url or CALLSHEET_URL."
Url = Annotated[str | None, typer.Option("--url", help="Address of the server; or CALLSHEET_URL.")]
ApiKey = Annotated[str | None, typer.Option("--key", help="API key; or CALLSHEET_KEY, which no process list shows.")]
Data = Annotated[
    Path, typer.Option("--data", parser=folder_of, metavar="DIR", help="Data folder of a server on this machine.")
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

    @contextmanager
    def client(self, *, patient: bool = False) -> Iterator["Client"]:
        """Give a client; what goes wrong with it is one sentence. A patient one waits for a server that restarts."""
        from callsheet.client import CallsheetError, Client, NotReachable, Patience  # noqa: PLC0415 - brings httpx

        url, key = self._found()
        patience = Patience() if patient else Patience(retries_max=2)
        try:
            with Client(url, key, patience=patience) as client:
                yield client
        except NotReachable as error:
            raise Failure(f"{_public(url)}: {error.message}", NO_SERVER, code=error.code) from None
        except CallsheetError as error:
            raise Failure(error.message, code=error.code, request_id=error.request_id) from None
        except BrokenPipeError:  # whoever read the output has gone: `callsheet jobs | head`
            raise
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}." if error.filename else f"{error}") from None

    def _found(self) -> tuple[str, str | None]:
        url, key = self.url or os.environ.get("CALLSHEET_URL"), self.key or os.environ.get("CALLSHEET_KEY")
        if url:
            return address_of(url), key
        try:
            note = note_in(self.data)
            if key is None and note.admin_key_file:
                key = (self.data / note.admin_key_file).read_text().strip()
        except (OSError, msgspec.MsgspecError):
            raise Failure(_NOWHERE, NO_SERVER, code="no_server") from None
        return note.url, key


def note_in(data: Path) -> Note:
    """Read what the server of a folder says of itself; OSError or MsgspecError if none does."""
    return msgspec.json.decode((data / SERVER_FILE).read_bytes(), type=Note)


def address_of(url: str) -> str:
    """Return an address if it is one; what is wrong with it is a wrong call, not a server that does not answer."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise Failure(
            f"{_public(url)!r} is no address of a server: write http://HOST:PORT or https://HOST, in --url or "
            "CALLSHEET_URL.", WRONG_CALL, code="no_url",
        )  # fmt: skip
    return url


def _public(url: str) -> str:
    """Return an address without the name and password that it may hold."""
    scheme, mark, rest = url.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def command(
    group: typer.Typer, name: str | None = None, *, bare: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command that speaks to a server: its first parameter is the Server, made from four options.

    A bare one is what the group does when none of its commands is named.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, url: str | None, key: str | None, data: Path, json: bool, **more: Any) -> None:
            try:
                function(Server(url, key, data, json), *args, **more)
            except Failure as failure:
                failure.for_programs = json
                raise _named(failure, more) from None

        _, *own = inspect.signature(function).parameters.values()
        run.__signature__ = inspect.Signature([*own, *_OPTIONS])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *_OPTIONS)}
        if bare:
            group.callback(invoke_without_command=True)(_alone(run))
        else:
            group.command(name)(run)
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
    _option("json", AsJson, default=False),
)  # fmt: skip
