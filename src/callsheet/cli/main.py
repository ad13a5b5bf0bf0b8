"""The command `callsheet`: every group of commands under one name.

Slow modules are imported when a command needs them, so that `--help` and shell completion are fast.
"""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from callsheet.cli.commands import (
    audit,
    events,
    files,
    import_graph,
    keys,
    offline,
    server,
    signing_secret_and_storage,
    status,
    tenants,
    wallet_and_quote,
    workflows,
)
from callsheet.cli.commands.fleet import autoscale, comfyui, worker, workers
from callsheet.cli.commands.jobs import jobs
from callsheet.cli.output import FAILED, CommandGroup, write_failure

_WRITE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
app = typer.Typer(
    name="callsheet",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _module in (
    server, worker, comfyui, jobs, events, files, wallet_and_quote, keys, workflows, workers, autoscale, import_graph,
    tenants, audit, status, offline, signing_secret_and_storage,
):  # fmt: skip
    _module.register(app)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # noqa: PLC0415 - only --version needs it

        typer.echo(f"callsheet {version('callsheet')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The durable job backend for AI-made media."""


def main() -> None:
    """Run the command line. If the output cannot be written, print one sentence and exit with code 1."""
    _replace_closed_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in {*_WRITE_ERRNOS, errno.EPIPE} or error.filename is not None:
            raise
        failure = write_failure(error)
        if error.errno in _WRITE_ERRNOS:  # else the reader closed the pipe
            sys.stderr.write(f"{failure.line()}\n")
        sys.exit(FAILED)


def _replace_closed_streams() -> None:
    """Send output to /dev/null if the caller closed the stream (`>&-`): Python then sets it to None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the process ends
