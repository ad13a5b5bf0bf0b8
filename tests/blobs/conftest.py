"""The blob stores, each started once per session, and a new tenant for every test."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.doubles import blob_stores
from tests.support.doubles.blob_stores import Store

_tenants = count(1)


@pytest.fixture(scope="session", params=["local", "s3 double", "rclone"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    match request.param:
        case "local":
            opened = blob_stores.local(tmp_path_factory.mktemp("local"))
        case "s3 double":
            opened = blob_stores.double()
        case _:
            opened = blob_stores.rclone(tmp_path_factory.mktemp("rclone"))
    with opened as made:
        yield made


@pytest.fixture
def tenant() -> str:
    return f"tenant-{next(_tenants)}"


@pytest.fixture
def key(store: Store, tenant: str) -> str:
    """The key of an upload that waits for its bytes."""
    key = f"{tenant}/uploads/file-of-{tenant}"
    store.expect_upload(key)
    return key
