"""What a person sees when a server begins to answer."""

import shlex
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from callsheet.cli.output import typed
from callsheet.cli.standing import Plan, Standing
from callsheet.folder import ADMIN_KEY_FILE, DATA, LOG_FILE


def banner(standing: Standing, plan: Plan, *, demo_here: bool, idle: bool, then_demo: bool) -> None:
    """Say where everything is, the new key once, and what to try next; a demonstration that follows says that later."""
    console = Console(highlight=False)
    console.print(f"\n[bold]Callsheet[/] answers at [bold cyan]{standing.url}[/]\n")
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_row("  API page", f"{standing.url}/docs")
    facts.add_row("  data", escape(_short(plan.data)))
    if plan.database:
        facts.add_row("  database", "PostgreSQL")
    if standing.key_file is not None:
        facts.add_row("  admin key", escape(_short(standing.key_file)))
    facts.add_row("  log", escape(_short(plan.data / LOG_FILE)) if console.is_terminal else "standard error")
    console.print(facts)
    if standing.key_new and standing.key_file is not None:
        console.print(f"\n  The admin key was made just now and is shown this once:\n  [bold]{_secret(standing)}[/]")
    if idle:
        console.print(
            "\n  No worker runs in this process, for it has the demonstration's handlers only:\n"
            f"  [cyan]{escape(typed('work'))}[/] runs yours.",
            soft_wrap=True,
        )
    console.print()
    if not then_demo:
        _try_next(console, standing, plan, demo_here=demo_here)


def _try_next(console: Console, standing: Standing, plan: Plan, *, demo_here: bool) -> None:
    lines = [
        f'curl -H "Authorization: Bearer $(cat {_short(standing.key_file or Path(ADMIN_KEY_FILE))})" \\',
        f"     {standing.url}/v1/jobs",
    ]
    if demo_here:
        lines.insert(0, typed(f"demo{in_folder(plan.data)}"))
    console.print("  Try next:")
    for line in lines:
        console.print(f"  {line}", style="cyan", markup=False, soft_wrap=True)
    console.print()


def in_folder(data: Path) -> str:
    """Return the words that lead a command to the server of a folder, if it does not look there by itself."""
    return "" if _short(data) == str(DATA) else f" --data {shlex.quote(_short(data))}"


def _secret(standing: Standing) -> str:
    return standing.key_file.read_text().strip() if standing.key_file else ""


def _short(path: Path) -> str:
    """Return a path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
