"""The number of bytes that this process has read from files, as the kernel counts them."""

from pathlib import Path


def bytes_read() -> int:
    """Return the count since the process started; bytes from sockets are not included."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])
