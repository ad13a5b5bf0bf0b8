"""Errors have a readable message, and can be pickled and copied."""

import copy
import pickle
from collections.abc import Callable

import pytest

from callsheet.client import APIConnectionError, CallsheetError, CorruptFileError
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import StubServer, problem

MESSAGE = "The user has 0 credits and this costs 3."
ERRORS = [
    CallsheetError("insufficient_credits", MESSAGE, 402, "r1", {"required": 3}),
    CallsheetError("invalid_url", "Name the server."),
    APIConnectionError("connection_failed", "The server does not answer."),
    CorruptFileError("corrupt_file", "Other bytes."),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
@pytest.mark.parametrize("make_copy", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_a_pickled_or_copied_error_is_equal(
    error: CallsheetError, make_copy: Callable[[CallsheetError], CallsheetError]
) -> None:
    copied = make_copy(error)
    assert (type(copied), vars(copied), copied.args, str(copied)) == (type(error), vars(error), error.args, str(error))
    assert vars(copied).keys() == {"code", "message", "status", "request_id", "details"}


def test_the_text_of_an_error_has_its_message_its_code_and_its_request_id() -> None:
    assert [str(error) for error in ERRORS] == [
        f"{MESSAGE} (insufficient_credits, request r1)", "Name the server. (invalid_url)",
        "The server does not answer. (connection_failed)", "Other bytes. (corrupt_file)",
    ]  # fmt: skip
    assert ERRORS[0].message == MESSAGE


def test_the_error_about_a_missing_api_key_explains_how_to_pass_one(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(401, "missing_key")]
    with pytest.raises(
        CallsheetError, match=r"^No API key. Pass it as Client\(url, api_key\), or set CALLSHEET_API_KEY\."
    ):
        client_of(stub.url).identity.get()
