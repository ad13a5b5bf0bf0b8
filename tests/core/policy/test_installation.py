"""What servers of one database share: which secret and which storage is refused, and with which words."""

import pytest

from callsheet.core.model.errors import Conflict
from callsheet.core.policy.signing_secret_and_storage import (
    FILE_STORAGE,
    SIGNING_SECRET,
    marker_name,
    replaced_value,
    require_secret,
    require_storage,
    storage_id_in,
)


@pytest.mark.parametrize(
    ("recorded", "own", "refused"),
    [(None, None, False), (None, "a", False), ("a", "a", False), ("a", "b", True), ("a", None, True)],
)
def test_a_secret_that_is_not_the_recorded_one_is_refused(recorded: str | None, own: str | None, refused: bool) -> None:
    if not refused:
        require_secret(recorded, own)
        return
    with pytest.raises(Conflict, match="accept-secret") as raised:
        require_secret(recorded, own)
    assert raised.value.code == "signing_secret_differs"


def test_a_storage_without_the_marker_is_refused() -> None:
    require_storage(has_marker=True)
    with pytest.raises(Conflict, match="accept-storage") as raised:
        require_storage(has_marker=False)
    assert raised.value.code == "file_storage_differs"


@pytest.mark.parametrize(
    ("markers", "expected"),
    [([], None), (["d.2"], "2"), (["d.3", "d.2"], "2"), (["e.1"], Conflict), (["d.2", "e.1"], Conflict)],
)
def test_a_new_storage_has_no_marker_of_another_database(
    markers: list[str], expected: str | type[Conflict] | None
) -> None:
    if expected is not Conflict:
        assert storage_id_in(markers, "d") == expected
        assert all(marker_name("d", marker.partition(".")[2]) == marker for marker in markers)
        return
    with pytest.raises(Conflict) as raised:
        storage_id_in(markers, "d")
    assert raised.value.code == "file_storage_taken"


def test_a_server_says_which_value_was_replaced_while_it_runs() -> None:
    own = {SIGNING_SECRET: "a", FILE_STORAGE: "b"}
    assert replaced_value(own, own) is None
    assert "signing secret" in str(replaced_value({**own, SIGNING_SECRET: "c"}, own))
    assert "file storage" in str(replaced_value({SIGNING_SECRET: "a"}, own))
