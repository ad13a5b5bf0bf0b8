"""The command `callsheet`: every group of commands under one name.

Modules are imported when a command needs them, so that `--help` and shell completion answer at once.
"""

import typer

from callsheet.cli import admin, autoscale, comfyui, files, fleet, house, importing, jobs, money, serve, work
from callsheet.cli.output import Commands

app = typer.Typer(
    name="callsheet",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="The durable job backend for AI-made media.",
)
for _module in (serve, work, comfyui, jobs, files, money, admin, fleet, autoscale, importing, house):
    _module.register(app)


def main() -> None:
    """Run the command line."""
    app()
