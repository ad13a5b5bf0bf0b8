"""The command line: `callsheet`. Exit code 0 is well, 1 a failure, 2 a wrong call, 3 no server, 130 Ctrl-C."""

from callsheet.cli.main import main

__all__ = ["main"]
