"""Errors: the body of an error response, and why a job, run, task or attempt failed."""

from typing import Annotated

from msgspec import Struct

from callsheet.api.shared_fields import doc


class Error(Struct, frozen=True):
    """Why a job, run, task or attempt did not complete."""

    code: Annotated[str, doc("Stable error code. Workers may use their own.", "task_failed")]
    message: Annotated[str, doc("Explanation for a person.", "The picture could not be drawn.")]


class Problem(Struct, frozen=True):
    """Body of an error response, sent as `application/problem+json`. Some codes add fields: see the error codes."""

    code: Annotated[str, doc("Stable error code. Branch on this, not on the message.", "job_not_found")]
    message: Annotated[str, doc("What is wrong and what to do about it.", "There is no such job.")]
    status: Annotated[int, doc("HTTP status of the response.", 404)]
    request_id: Annotated[str, doc("Id of the request in the server's log.", "f5e31b5f0b9b2c77")] = ""
