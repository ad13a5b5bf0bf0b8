"""`callsheet jobs download`: save the files of a job, with progress bars."""

import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from callsheet.cli.commands.jobs.input_events_and_changes import JobId
from callsheet.cli.connection import Server
from callsheet.cli.output import as_json, print_line
from callsheet.core.model.terminal_text import sanitize

if TYPE_CHECKING:
    from callsheet.client import Client

_BAR_BYTES_MIN = 4 * 1024 * 1024
"""Smaller files need no progress bar."""
ProgressFactory = Callable[[str, int], Callable[[int], object] | None]
"""Returns the progress callback for a file of this name and size, or None."""


def download(
    server: Server,
    job_id: JobId,
    directory: Annotated[
        Path, typer.Option("--output", help="Folder for the files; created if it does not exist.")
    ] = Path(),
) -> None:
    """Download the files of a job.

    Digests are verified. Existing files are never overwritten.
    """
    with server.client() as client, progress_bars(server) as progress_for:
        saved = _download_all(client, job_id, directory, progress_for)
    if server.json:
        as_json({"paths": [str(path) for path in saved]})
        return
    for path in saved:
        print_line(str(path))
    if not saved:
        print_line("The job has no files.")


def _download_all(client: "Client", job_id: str, directory: Path, progress_for: ProgressFactory) -> list[Path]:
    """Save every file under a unique name that begins with the numbers of its stage and task."""
    saved: dict[str, Path] = {}
    for output in client.jobs.outputs(job_id):
        for file in output.files:
            directory.mkdir(parents=True, exist_ok=True)
            name = _unique_name(saved, f"{output.stage_no}-{output.task_no}-{Path(file.name).name or file.id}")
            saved[name.casefold()] = client.files.download(
                replace(file, name=name), directory, progress=progress_for(file.name, file.bytes)
            )
    return list(saved.values())


def _unique_name(saved: Container[str], name: str) -> str:
    """Return an unused name, also on case-insensitive file systems: a.png, then a-2.png."""
    path = Path(name)
    numbered = (f"{path.stem}-{number}{path.suffix}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate.casefold() not in saved)


@contextmanager
def progress_bars(server: Server) -> Iterator[ProgressFactory]:
    """Show a progress bar for each large file on a terminal."""
    if server.json or not sys.stdout.isatty():
        yield lambda _name, _size: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:

        def progress_for(name: str, size: int) -> Callable[[int], object] | None:
            if size < _BAR_BYTES_MIN:
                return None
            bar = progress.add_task(sanitize(name), total=size)
            return lambda done: progress.update(bar, completed=done, visible=done < size)

        yield progress_for
