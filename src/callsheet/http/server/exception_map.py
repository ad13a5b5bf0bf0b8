"""Maps exceptions to the errors that clients get."""

import errno

from callsheet.blobs.base import BlobError, StorageRefusedError
from callsheet.core.model.errors import Refusal
from callsheet.engine.lane import Unavailable
from callsheet.http.server.problems import Problem, problem_of, unavailable
from callsheet.http.server.storage_errors import problem_of_storage
from callsheet.http.state import AppState
from callsheet.store.connection import ConnectionLost, TransactionConflict, UniqueConflict

_SPENT = frozenset({errno.EMFILE, errno.ENFILE})
"""The process has no file descriptors left; temporary."""


def problem_from(state: AppState, request_id: str, error: Exception) -> Problem:
    """Return the error for an exception; errors that only the operator can fix are also reported."""
    if isinstance(error, Refusal):
        return problem_of(error)
    if isinstance(error, Problem):
        return error
    if isinstance(error, Unavailable | ConnectionLost | TransactionConflict) and not isinstance(error, UniqueConflict):
        return unavailable()
    if isinstance(error, BlobError):
        if isinstance(error, StorageRefusedError):  # only the operator can fix it
            state.report_error(request_id, error)
        return problem_of_storage(error)
    state.report_error(request_id, error)
    if isinstance(error, OSError) and error.errno in _SPENT:
        return unavailable("This server has as many files open as it may")
    return Problem(500, "internal_error", "Something went wrong here; the request id finds it in our log.")
