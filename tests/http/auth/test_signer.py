"""A signed text is accepted only if it is unchanged, character by character."""

from string import ascii_letters, digits

import pytest

from callsheet.http.auth.authenticator import Signer
from tests.http.worker_sandbox import PNG, expect_json, output_file_of
from tests.support.processes.live_server import LiveServer

SIGNER = Signer(b"a secret")
CHARACTERS = f"{ascii_letters}{digits}-_+/=!. \n"


@pytest.mark.parametrize("length", range(6))
def test_no_changed_text_is_accepted(length: int) -> None:
    """Base64 has unused bits in its last character, depending on the length."""
    fact = ["default", "x" * length]
    text = SIGNER.sign("cursor", fact)
    assert SIGNER.read("cursor", text, list[str]) == fact
    changed = {f"{text[:at]}{new}{text[at + 1 :]}" for at in range(len(text)) for new in CHARACTERS}
    inserted = {f"{text[:at]}{new}{text[at:]}" for at in range(len(text) + 1) for new in CHARACTERS}
    shorter = {text[:at] for at in range(len(text))}
    others = (changed | inserted | shorter | {f"{text}==AAAA", f"{text}=", f"{text}=="}) - {text}
    assert [other for other in others if SIGNER.read("cursor", other, list[str]) is not None] == []
    assert SIGNER.read("quote", text, list[str]) is None


def test_a_signed_url_with_a_changed_character_is_refused(live_server: LiveServer) -> None:
    body = output_file_of(PNG) | {"user": "ann"}
    del body["no"]
    client = live_server.client("client")
    upload = expect_json(client.post("/v1/files", json=body), 201)["upload"]
    path, _, signed = upload["url"].rpartition("/")
    others = {signed[:-1] + letter for letter in ascii_letters + digits} - {signed} | {f"{signed}=", f"{signed}%3d%3d"}
    got = {client.put(f"{path}/{other}", content=PNG, headers=upload["headers"]).status_code for other in others}
    assert got == {403}
    assert client.put(upload["url"], content=PNG, headers=upload["headers"]).status_code == 204


def test_a_user_token_with_a_changed_character_is_refused(live_server: LiveServer) -> None:
    token = live_server.keys["user"]
    others = [token[:-1] + letter for letter in ascii_letters + digits if letter != token[-1]]
    got = [live_server.client(None, {"authorization": f"Bearer {other}"}).get("/v1/me").status_code for other in others]
    assert set(got) == {401}
    assert live_server.client("user").get("/v1/me").status_code == 200
