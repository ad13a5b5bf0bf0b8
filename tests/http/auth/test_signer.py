"""What we signed comes back as it was, letter by letter, or it is not ours."""

from string import ascii_letters, digits

import pytest

from callsheet.http.auth.authenticator import Signer
from tests.http.worker_sandbox import PNG, expect_json, output_file_of
from tests.support.processes.live_server import LiveServer

SIGNED = Signer(b"a secret")
LETTERS = f"{ascii_letters}{digits}-_+/=!. \n"


@pytest.mark.parametrize("length", range(6))
def test_no_other_text_is_read_as_what_was_signed(length: int) -> None:
    """Whatever the length: the last letter may carry bits that are not part of the bytes."""
    fact = ["default", "x" * length]
    text = SIGNED.sign("cursor", fact)
    assert SIGNED.read("cursor", text, list[str]) == fact
    changed = {f"{text[:at]}{new}{text[at + 1 :]}" for at in range(len(text)) for new in LETTERS}
    inserted = {f"{text[:at]}{new}{text[at:]}" for at in range(len(text) + 1) for new in LETTERS}
    shorter = {text[:at] for at in range(len(text))}
    others = (changed | inserted | shorter | {f"{text}==AAAA", f"{text}=", f"{text}=="}) - {text}
    assert [other for other in others if SIGNED.read("cursor", other, list[str]) is not None] == []
    assert SIGNED.read("quote", text, list[str]) is None


def test_an_address_is_good_as_it_was_given_only(live_server: LiveServer) -> None:
    body = output_file_of(PNG) | {"user": "ann"}
    del body["no"]
    client = live_server.client("client")
    upload = expect_json(client.post("/v1/files", json=body), 201)["upload"]
    path, _, signed = upload["url"].rpartition("/")
    others = {signed[:-1] + letter for letter in ascii_letters + digits} - {signed} | {f"{signed}=", f"{signed}%3d%3d"}
    got = {client.put(f"{path}/{other}", content=PNG, headers=upload["headers"]).status_code for other in others}
    assert got == {403}
    assert client.put(upload["url"], content=PNG, headers=upload["headers"]).status_code == 204


def test_a_users_token_is_good_as_it_was_given_only(live_server: LiveServer) -> None:
    token = live_server.keys["user"]
    others = [token[:-1] + letter for letter in ascii_letters + digits if letter != token[-1]]
    got = [live_server.client(None, {"authorization": f"Bearer {other}"}).get("/v1/me").status_code for other in others]
    assert set(got) == {401}
    assert live_server.client("user").get("/v1/me").status_code == 200
