"""What is raised can be read in a log, sent to another process, and copied."""

import copy
import pickle
from collections.abc import Callable

import pytest

from callsheet.client import APIConnectionError, CallsheetError, CorruptFileError
from tests.client.both_clients import ClientFactory
from tests.client.stub_server import StubServer, problem

SENTENCE = "The user has 0 credits and this costs 3."
MADE = [
    CallsheetError("insufficient_credits", SENTENCE, 402, "r1", {"required": 3}),
    CallsheetError("invalid_url", "Name the server."),
    APIConnectionError("connection_failed", "The server does not answer."),
    CorruptFileError("corrupt_file", "Other bytes."),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: error.code)
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_is_the_same_in_another_process(
    error: CallsheetError, again: Callable[[CallsheetError], CallsheetError]
) -> None:
    made = again(error)
    assert (type(made), vars(made), made.args, str(made)) == (type(error), vars(error), error.args, str(error))
    assert vars(made).keys() == {"code", "message", "status", "request_id", "details"}


def test_an_error_says_its_sentence_its_code_and_the_request_if_there_was_one() -> None:
    assert [str(error) for error in MADE] == [
        f"{SENTENCE} (insufficient_credits, request r1)", "Name the server. (invalid_url)",
        "The server does not answer. (connection_failed)", "Other bytes. (corrupt_file)",
    ]  # fmt: skip
    assert MADE[0].message == SENTENCE


def test_a_caller_without_a_key_learns_where_to_send_it(stub: StubServer, client_of: ClientFactory) -> None:
    stub.responses = [problem(401, "missing_key")]
    with pytest.raises(
        CallsheetError, match=r"^No API key. Pass it as Client\(url, api_key\), or set CALLSHEET_API_KEY\."
    ):
        client_of(stub.url).identity.get()
