"""The text that `up` and `serve` print when the server is ready."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from callsheet.cli.output import shell_command
from callsheet.cli.server_process import LocalServer, ServerOptions
from callsheet.core.model.terminal_text import sanitize
from callsheet.data_folder import ADMIN_KEY_FILE, DEFAULT_DATA_FOLDER, LOG_FILE


def banner(
    server: LocalServer, options: ServerOptions, *, demo_installed: bool, no_worker: bool, demo_follows: bool
) -> None:
    """Print the URL, the data folder, a new admin key, and commands to try next unless the demo prints them."""
    console = Console(highlight=False)
    console.print(f"\n[bold]Callsheet[/] is running at [bold cyan]{server.url}[/]\n")
    details = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    details.add_row("  API page", f"{server.url}/docs")
    if server.health_url is not None:
        details.add_row("  health", f"{server.health_url}/readyz")
    details.add_row("  data", escape(_relative_path(options.data)))
    if options.database:
        details.add_row("  database", "PostgreSQL")
    if server.key_file is not None:
        details.add_row("  admin key", escape(_relative_path(server.key_file)))
    details.add_row(
        "  log", escape(_relative_path(options.data / LOG_FILE)) if console.is_terminal else "standard error"
    )
    console.print(details)
    if server.key_is_new and server.key_file is not None:
        console.print(f"\n  New admin key, stored in the file above:\n  [bold]{_read_admin_key(server)}[/]")
    if no_worker:
        console.print(
            "\n  No worker runs in this process. Run your handlers with\n"
            f"  [cyan]{escape(shell_command('worker MODULE:WORKER'))}[/]",
            soft_wrap=True,
        )
    console.print()
    if not demo_follows:
        _print_next_steps(console, server, options, demo_installed=demo_installed)


def _print_next_steps(console: Console, server: LocalServer, options: ServerOptions, *, demo_installed: bool) -> None:
    lines = [
        f'curl -H "Authorization: Bearer $(cat {_relative_path(server.key_file or Path(ADMIN_KEY_FILE))})" \\',
        f"     {server.url}/v1/jobs",
    ]
    if demo_installed:
        lines.insert(0, shell_command(f"demo{data_option(options.data)}"))
    console.print("  Try next:")
    for line in lines:
        console.print(f"  {line}", style="cyan", markup=False, soft_wrap=True)
    console.print()


def data_option(data: Path) -> str:
    """Return the --data-dir option for a data folder; empty for the default folder."""
    return (
        "" if _relative_path(data) == str(DEFAULT_DATA_FOLDER) else f" --data-dir {shlex.quote(_relative_path(data))}"
    )


def _read_admin_key(server: LocalServer) -> str:
    return server.key_file.read_text().strip() if server.key_file else ""


def _relative_path(path: Path) -> str:
    """Return a path for display, relative to the current folder if it is below it."""
    current = Path.cwd()
    return sanitize(str(path.relative_to(current) if path.is_relative_to(current) else path))
