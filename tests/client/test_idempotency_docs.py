"""Client methods that take an idempotency key document its scope: one user of one tenant."""

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from callsheet.api.jobs import NewJob
from callsheet.client import Client, docs_page
from callsheet.client.submit_results import BulkResult

SCOPE = "An idempotency key belongs to one user of one tenant"


def takes_key(method: Callable[..., Any]) -> bool:
    """Return whether a method has a parameter for a key, or for jobs, which have one."""
    parameters = inspect.signature(method).parameters.values()
    return any(one.name == "idempotency_key" or NewJob.__name__ in str(one.annotation) for one in parameters)


def methods_with_key() -> dict[str, Callable[..., Any]]:
    with Client("http://localhost") as client:
        methods = {name: attrgetter(name)(client) for name in docs_page.signatures()}
    return {name: method for name, method in methods.items() if takes_key(method)}


def test_submits_retries_and_changes_of_credits_take_an_idempotency_key() -> None:
    assert {"jobs.submit", "jobs.submit_many", "jobs.retry", "wallets.top_up", "wallets.adjust"} == {
        *methods_with_key()
    }
    assert "idempotency_key" in NewJob.__struct_fields__
    assert "idempotency_key" in BulkResult.__struct_fields__


@pytest.mark.parametrize("name", sorted(methods_with_key()))
def test_a_method_with_an_idempotency_key_documents_the_scope_of_the_key(name: str) -> None:
    doc = inspect.getdoc(methods_with_key()[name]) or ""
    assert SCOPE in " ".join(doc.split()), f"{name} does not say: {SCOPE}."
