"""How many bytes this process has read from files, as the system counts them."""

from pathlib import Path


def bytes_read() -> int:
    """Return the count since the start; what comes by sockets is not in it."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])
