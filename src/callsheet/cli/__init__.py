"""The command line `callsheet`. Exit codes: 0 success, 1 failure, 2 usage error, 3 no server, 130 Ctrl-C."""

from callsheet.cli.main import main

__all__ = ["main"]
