"""The exceptions of the client.

CallsheetError             the server returned an error; `code` is stable, `message` is for people
  APIConnectionError       no response after all retries
  CorruptFileError         a downloaded file does not match its size or digest
TimeoutError               `jobs.wait` reached its timeout before the job ended
"""

from typing import Any

import msgspec
from msgspec import Struct

_ERROR_STATUS_MIN = 400
_CLIENT_MESSAGES = {"missing_key": "No API key. Pass it as Client(url, api_key), or set CALLSHEET_API_KEY."}
"""Messages that replace the server's, because they name the client's arguments."""


class Problem(Struct, frozen=True):
    """The error response of the server."""

    code: str
    message: str
    status: int
    request_id: str = ""


class CallsheetError(Exception):
    """The server returned an error."""

    def __init__(
        self, code: str, message: str, status: int = 0, request_id: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(code, message, status, request_id, details)  # the arguments that pickle and copy use
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.details = details or {}
        """Further fields of the error, such as `required` and `balance`."""

    def __str__(self) -> str:
        detail = f"{self.code}, request {self.request_id}" if self.request_id else self.code
        return f"{self.message} ({detail})"


class APIConnectionError(CallsheetError):
    """The server could not be reached, or did not respond."""


class CorruptFileError(CallsheetError):
    """A downloaded file does not match its size or digest."""


def parse_error(status: int, body: bytes, request_id: str) -> CallsheetError:
    """Decode an error response. A response that is not Callsheet's, such as a proxy's, becomes a generic error."""
    try:
        detail = msgspec.json.decode(body, type=dict[str, Any])
        problem = msgspec.convert(detail, Problem)
    except msgspec.MsgspecError:
        return CallsheetError(
            f"http_{status}", f"The server responded with {status} and no error details.", status, request_id
        )
    details = {name: value for name, value in detail.items() if name not in Problem.__struct_fields__}
    message = _CLIENT_MESSAGES.get(problem.code, problem.message)
    return CallsheetError(problem.code, message, status, problem.request_id or request_id, details)


def is_error(status: int) -> bool:
    """Return whether a status is an error. Redirects are errors: they would send the API key to another host."""
    return status >= _ERROR_STATUS_MIN or status // 100 == 3  # noqa: PLR2004 - 3xx
