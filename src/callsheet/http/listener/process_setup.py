"""The process of a server: its limit of open files, and its garbage collector."""

import gc
import resource
from contextlib import suppress

_OPEN_FILES_MAX = 65_536
"""Upper bound for the limit of open files. One process cannot serve more connections."""
_COLLECTOR_THRESHOLDS = (10_000, 20, 100)
"""How many new objects start a collection, and how many collections start one of older objects."""


def raise_file_limit() -> int:
    """Raise the limit of open files towards the hard limit, and return it. Each connection needs one file.

    The usual default of 1,024 is too low for many streams.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # the system may refuse its own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def make_full_collections_rare() -> None:
    """Make the garbage collector look at long-lived objects less often. Call it when the server has started.

    A full collection stops all threads. Two thousand open streams have a quarter of a million objects, so with the
    defaults of Python it stops them for 0.1 seconds, every few seconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
