"""What went wrong, as an answer: for a request, and for one of the many things that a request may ask for."""

import errno

from callsheet.blobs.base import BlobError, StorageRefusedError
from callsheet.core.model.errors import Refusal
from callsheet.engine.lane import Unavailable
from callsheet.http.server.problems import Problem, problem_of, unavailable
from callsheet.http.server.storage_errors import problem_of_storage
from callsheet.http.state import AppState
from callsheet.store.connection import ConnectionLost, TransactionConflict, UniqueConflict

_SPENT = frozenset({errno.EMFILE, errno.ENFILE})
"""So many connections are open that no file can be: it passes."""


def problem_from(state: AppState, request_id: str, error: Exception) -> Problem:
    """Return what the client hears; what only the house can mend is written down for whoever runs it."""
    if isinstance(error, Refusal):
        return problem_of(error)
    if isinstance(error, Problem):
        return error
    if isinstance(error, Unavailable | ConnectionLost | TransactionConflict) and not isinstance(error, UniqueConflict):
        return unavailable()
    if isinstance(error, BlobError):
        if isinstance(error, StorageRefusedError):  # only the operator can mend it
            state.report_error(request_id, error)
        return problem_of_storage(error)
    state.report_error(request_id, error)
    if isinstance(error, OSError) and error.errno in _SPENT:
        return unavailable("This server has as many files open as it may")
    return Problem(500, "internal_error", "Something went wrong here; the request id finds it in our log.")
