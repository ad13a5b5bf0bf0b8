"""Find the server of a command, and its API key.

Precedence: --url and --api-key; CALLSHEET_URL and CALLSHEET_API_KEY; the server.json of a running server in the data
folder. The keys of a data folder are sent to the server of that folder only, also if --url or CALLSHEET_URL names it.
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

from callsheet.cli.output import FAILED, UNAVAILABLE, USAGE_ERROR, AsJson, Failure, shell_command
from callsheet.cli.value_parsers import parse_directory
from callsheet.data_folder import ADMIN_KEY_FILE, DEFAULT_DATA_FOLDER, running

if TYPE_CHECKING:
    from callsheet.client import CallsheetError, Client

_VALIDATION_STATUSES = frozenset({400, 422})
_CONTENT_CODES = frozenset({"invalid_file", "invalid_graph", "invalid_input", "invalid_quote", "invalid_definition",
                       "invalid_workflow"})  # fmt: skip
"""Errors about the content of a file or input, not about how the command was called."""
Url = Annotated[str | None, typer.Option("--url", help="URL of the server, or CALLSHEET_URL.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", help="API key, or CALLSHEET_API_KEY.")]
Data = Annotated[
    Path,
    typer.Option("--data-dir", parser=parse_directory, metavar="DIR", help="Data folder of a server on this machine."),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Tenant to act for, with an operator key (or CALLSHEET_TENANT)."),
]


class ServerInfo(msgspec.Struct, frozen=True):
    """The server.json of a running server."""

    url: str
    admin_key_file: str | None = None


class Server(NamedTuple):
    """The server that a command calls, and whether the command prints JSON."""

    url: str | None
    key: str | None
    data: Path
    json: bool
    tenant: str | None = None

    @contextmanager
    def client(self, *, wait_for_server: bool = False) -> Iterator["Client"]:
        """Yield a client whose errors become a `Failure`. With `wait_for_server` it retries while a server restarts."""
        from callsheet.client import CallsheetError, Client, RetryPolicy  # noqa: PLC0415 - slow: imports httpx

        url, key, from_data_dir = self._resolve()
        retry_policy = RetryPolicy() if wait_for_server else RetryPolicy(retries_max=2)
        try:
            with Client(url, key, tenant=self.tenant, retry_policy=retry_policy) as client:
                yield client
        except CallsheetError as error:
            failure = failure_from(error, url)
            if from_data_dir and failure.exit_code == UNAVAILABLE:
                failure.args = (f"{failure} Start it with `{shell_command('up')}{self._data_option}`.",)
            raise failure from None
        except BrokenPipeError:  # the reader closed the pipe: `callsheet jobs | head`
            raise
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}." if error.filename else f"{error}") from None

    def _resolve(self) -> tuple[str, str | None, bool]:
        """Return the URL, the key, and whether they come from the data folder."""
        url, key = self.url or os.environ.get("CALLSHEET_URL"), self.key or os.environ.get("CALLSHEET_API_KEY")
        if url:
            validate_url(url)
        try:
            server_info = read_server_info(self.data, url)
            if key is None and server_info.admin_key_file:
                key = (self.data / server_info.admin_key_file).read_text().strip()
        except (OSError, msgspec.MsgspecError):
            if url:
                return url, key, False
            raise Failure(
                f"No server found in {self.data}. Start one with `{shell_command('up')}{self._data_option}`, or pass "
                "--url or --data-dir, or set CALLSHEET_URL.", UNAVAILABLE, code="no_server",
            ) from None  # fmt: skip
        return url or server_info.url, key, not url

    @property
    def _data_option(self) -> str:
        return "" if self.data == DEFAULT_DATA_FOLDER else f" --data-dir {self.data}"


def failure_from(error: "CallsheetError", url: str) -> Failure:
    """Turn a client error into a failure. A value that the server rejects is a usage error, as in the CLI."""
    from callsheet.client import APIConnectionError  # noqa: PLC0415 - slow: imports httpx

    if isinstance(error, APIConnectionError):
        return Failure(error.message, UNAVAILABLE, code=error.code)
    message = error.message
    if error.code == "missing_key":
        hint = f"The first admin key is in {ADMIN_KEY_FILE} of the server's data folder."
        message = f"{without_secrets(url)} requires an API key. Pass --api-key, or set CALLSHEET_API_KEY. {hint}"
    is_validation_error = error.status in _VALIDATION_STATUSES and error.code.startswith(("invalid_", "out_of_range"))
    is_usage_error = is_validation_error and error.code not in _CONTENT_CODES
    return Failure(message, USAGE_ERROR if is_usage_error else FAILED, code=error.code, request_id=error.request_id)


def read_server_info(data: Path, url: str | None = None) -> ServerInfo:
    """Return the server.json of the server that runs on a data folder, and at the URL if there is one.

    Raises OSError or MsgspecError if none runs. The file of a killed server is ignored: another program may use its
    port by now.
    """
    found = running(data)
    if found is None:
        raise FileNotFoundError(data)
    server_info = msgspec.convert(found, ServerInfo)
    if url and url.rstrip("/") != server_info.url.rstrip("/"):
        raise FileNotFoundError(data)
    return server_info


def validate_url(url: str) -> str:
    """Return a valid URL unchanged. An invalid one is a usage error, not an unreachable server."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise Failure(
            f"{without_secrets(url)!r} is not a server URL. Write http://HOST:PORT or https://HOST in --url or "
            "CALLSHEET_URL.", USAGE_ERROR, code="invalid_url",
        )  # fmt: skip
    return url


def without_secrets(url: str) -> str:
    """Return a URL without user name and password."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def command(
    group: typer.Typer, name: str | None = None, *, is_default: bool = False, **kwargs: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command that calls a server. Its first parameter is the `Server`, built from the options in `_OPTIONS`.

    With `is_default`, the command runs when the group is called without a subcommand.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(
            *args: Any, url: str | None, key: str | None, data: Path, json: bool, tenant: str | None, **arguments: Any
        ) -> None:
            try:
                function(Server(url, key, data, json, tenant), *args, **arguments)
            except Failure as failure:
                failure.json_output = json
                raise _name_missing_resource(failure, arguments) from None

        _, *command_parameters = inspect.signature(function).parameters.values()
        run.__signature__ = inspect.Signature([*command_parameters, *_OPTIONS])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*command_parameters, *_OPTIONS)}
        if is_default:
            group.callback(invoke_without_command=True)(_without_subcommand(run))
        else:
            group.command(name, **kwargs)(run)
        return function

    return add


def _name_missing_resource(failure: Failure, arguments: dict[str, Any]) -> Failure:
    """Put the id of the job, file or key that does not exist into the message."""
    resource, suffix, _ = failure.code.partition("_not_found")
    name = arguments.get(f"{resource}_id")
    if suffix and name:
        failure.args = (f"There is no {resource} {name}.",)
    return failure


def _without_subcommand(run: Callable[..., None]) -> Callable[..., None]:
    """Return a callback that runs the command unless a subcommand was called."""

    def run_without_subcommand(ctx: typer.Context, **arguments: Any) -> None:
        if ctx.invoked_subcommand is None:
            run(**arguments)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [context, *inspect.signature(run).parameters.values()]
    run_without_subcommand.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_without_subcommand.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run_without_subcommand.__doc__ = run.__doc__
    return run_without_subcommand


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


_OPTIONS = (
    _option("url", Url, None), _option("key", ApiKey, None), _option("data", Data, DEFAULT_DATA_FOLDER),
    _option("tenant", Tenant, None), _option("json", AsJson, default=False),
)  # fmt: skip
