"""What went wrong, as an answer: for a request, and for one of the many things that a request may ask for."""

import errno

from callsheet.blobs.base import BlobError, StorageRefused
from callsheet.core.errors import Refusal
from callsheet.engine.lane import Unavailable
from callsheet.http.house import House
from callsheet.http.problem import Problem, problem_of, unavailable
from callsheet.http.storage import problem_of_storage
from callsheet.store.connection import Clash, ConnectionLost, Contended

_SPENT = frozenset({errno.EMFILE, errno.ENFILE})
"""So many connections are open that no file can be: it passes."""


def problem_from(house: House, request_id: str, error: Exception) -> Problem:
    """Return what the client hears; what only the house can mend is written down for whoever runs it."""
    if isinstance(error, Refusal):
        return problem_of(error)
    if isinstance(error, Problem):
        return error
    if isinstance(error, Unavailable | ConnectionLost | Contended) and not isinstance(error, Clash):
        return unavailable()
    if isinstance(error, BlobError):
        if isinstance(error, StorageRefused):  # only the operator can mend it
            house.fault(request_id, error)
        return problem_of_storage(error)
    house.fault(request_id, error)
    if isinstance(error, OSError) and error.errno in _SPENT:
        return unavailable("This server has as many files open as it may")
    return Problem(500, "internal_error", "Something went wrong here; the request id finds it in our log.")
