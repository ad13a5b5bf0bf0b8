"""API keys and user tokens, by both clients, on both databases."""

from typing import Any

import pytest
from rich.pretty import pretty_repr

from callsheet.client import CallsheetError
from tests.client.both_clients import ClientFactory
from tests.support.processes.live_server import LiveServer


def test_keys_are_created_listed_and_revoked_and_a_token_acts_for_one_user(
    live_server: LiveServer, operator: Any, client_of: ClientFactory
) -> None:
    created = operator.keys.create("for the studio", "client", tenant="default")
    studio = client_of(live_server.url, created.secret)
    assert (studio.identity.get().role, studio.identity.get().tenant) == ("client", "default")
    token = studio.tokens.create("ann", 60)
    assert client_of(live_server.url, token.token).identity.get().user == "ann"
    assert operator.keys.revoke(created.key.id).revoked_at is not None
    listed = list(operator.keys.list())
    assert created.key.id in {key.id for key in listed}
    with pytest.raises(CallsheetError) as refused:
        studio.identity.get()
    assert refused.value.status == 401
    assert created.secret not in repr(studio) + str(refused.value)
    assert (created.secret in f"{created} {pretty_repr(created)}", token.token in f"{token} {pretty_repr(token)}") == (
        False, False,
    )  # fmt: skip
    assert repr(token) == "Token(token='…', user='ann', expires_in_seconds=60)"
