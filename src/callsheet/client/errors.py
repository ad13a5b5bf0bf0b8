"""What a call may raise.

CallsheetError             the server understood and did not do it; `code` is stable, the message is for a person
  APIConnectionError             no server answered, however often it was tried
  CorruptFileError                  a file arrived with other bytes than the server has
TimeoutError               `wait` was given a time, and the job has not ended
"""

from typing import Any

import msgspec
from msgspec import Struct

_ERROR_STATUS_MIN = 400
_CLIENT_MESSAGES = {"missing_key": "Give a key: Client(url, key), or CALLSHEET_API_KEY in the environment."}
"""What is said better by who knows where it is typed."""


class Problem(Struct, frozen=True):
    """What the server says when it does not do what was asked."""

    code: str
    message: str
    status: int
    request_id: str = ""


class CallsheetError(Exception):
    """An answer that is not what was asked for."""

    def __init__(
        self, code: str, message: str, status: int = 0, request_id: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(code, message, status, request_id, details)  # by these it is pickled and copied
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.details = details or {}
        """Numbers and names that belong to the code: what is required and what is there."""

    def __str__(self) -> str:
        detail = f"{self.code}, request {self.request_id}" if self.request_id else self.code
        return f"{self.message} ({detail})"


class APIConnectionError(CallsheetError):
    """No server answered."""


class CorruptFileError(CallsheetError):
    """A file arrived with other bytes than the server has."""


def parse_error(status: int, body: bytes, request_id: str) -> CallsheetError:
    """Read a problem; what a proxy says in its own words becomes one too."""
    try:
        detail = msgspec.json.decode(body, type=dict[str, Any])
        problem = msgspec.convert(detail, Problem)
    except msgspec.MsgspecError:
        return CallsheetError(f"http_{status}", f"The server answered {status} without a reason.", status, request_id)
    details = {name: value for name, value in detail.items() if name not in Problem.__struct_fields__}
    message = _CLIENT_MESSAGES.get(problem.code, problem.message)
    return CallsheetError(problem.code, message, status, problem.request_id or request_id, details)


def is_error(status: int) -> bool:
    """Say whether an answer is a refusal; a redirect is one, for a key is sent to nobody else."""
    return status >= _ERROR_STATUS_MIN or status // 100 == 3  # noqa: PLR2004 - 3xx
