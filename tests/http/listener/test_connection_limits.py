"""The rules of connection limits: per address, in all, and which connection is closed first."""

import pytest

from callsheet.http.listener.connection_limits import Admission, ConnectionLimits, client_network, parse_network


class FakeConnection:
    """Records that the limits closed it."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def add(limits: ConnectionLimits, address: str) -> tuple[FakeConnection, Admission]:
    connection = FakeConnection()
    return connection, limits.add(connection, address)


def add_busy(limits: ConnectionLimits, address: str) -> FakeConnection:
    connection, _ = add(limits, address)
    limits.mark_busy(connection)
    return connection


@pytest.mark.parametrize(("one", "other", "same"), [
    ("192.0.2.1", "192.0.2.1", True),
    ("192.0.2.1", "192.0.2.2", False),
    ("2001:db8::1", "2001:db8::ffff:2", True),
    ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
    ("::ffff:192.0.2.1", "192.0.2.1", True),
    ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
    ("", "", True),
])  # fmt: skip
def test_addresses_of_one_client_count_together(one: str, other: str, same: bool) -> None:
    assert (client_network(one) == client_network(other)) is same


def test_one_address_gets_at_most_half_of_all_connections() -> None:
    limits = ConnectionLimits(10, 1_000, ())
    assert [add(limits, "192.0.2.1")[1] for _ in range(6)] == [Admission.SERVE] * 5 + [Admission.REFUSE_ADDRESS]
    assert add(limits, "192.0.2.2")[1] is Admission.SERVE


@pytest.mark.parametrize(("proxy", "address"), [
    ("192.0.2.0/24", "192.0.2.1"), ("192.0.2.1", "::ffff:192.0.2.1"), ("2001:db8::/32", "2001:db8::1"),
])  # fmt: skip
def test_the_limit_per_address_does_not_apply_to_proxies(proxy: str, address: str) -> None:
    limits = ConnectionLimits(10, 2, (proxy,))
    assert {add(limits, address)[1] for _ in range(10)} == {Admission.SERVE}


def test_the_connection_that_waited_longest_without_a_request_is_closed_first() -> None:
    limits = ConnectionLimits(4, 4, ("192.0.2.1",))
    kept_alive, busy = add_busy(limits, "192.0.2.1"), add_busy(limits, "192.0.2.1")
    limits.mark_idle(kept_alive)
    new = [add(limits, "192.0.2.1")[0] for _ in range(3)]
    assert [one.aborted for one in (kept_alive, busy, *new)] == [False, False, True, False, False]
    for one in new[1:]:
        limits.mark_busy(one)
    add(limits, "192.0.2.1")
    assert (kept_alive.aborted, busy.aborted) == (True, False)


def test_connections_beyond_the_limit_are_bounded() -> None:
    limits = ConnectionLimits(2, 2, ("192.0.2.1",))
    admissions = []
    for _ in range(100):
        connection, admission = add(limits, "192.0.2.1")
        limits.mark_busy(connection)
        admissions.append(admission)
    assert not limits.make_space()
    assert admissions.count(Admission.SERVE) == 2 + 32
    assert admissions[-1] is Admission.ABORT


def test_refused_connections_are_bounded_and_do_not_count() -> None:
    limits = ConnectionLimits(4, 1, ())
    add(limits, "192.0.2.1")
    refused = [add(limits, "192.0.2.1")[0] for _ in range(40)]
    assert [one.aborted for one in refused] == [True] * 8 + [False] * 32
    for one in refused:
        limits.remove(one)
    assert add(limits, "192.0.2.2")[1] is Admission.SERVE


def test_a_closed_connection_frees_its_place_once() -> None:
    limits = ConnectionLimits(4, 2, ())
    first = add_busy(limits, "192.0.2.1")
    add(limits, "192.0.2.1")
    limits.remove(first)
    limits.remove(first)
    limits.mark_idle(first)
    assert add(limits, "192.0.2.1")[1] is Admission.SERVE
    assert add(limits, "192.0.2.1")[1] is Admission.REFUSE_ADDRESS


def test_a_wrong_proxy_address_is_named() -> None:
    with pytest.raises(ValueError, match=r"proxy_addresses: 'proxy\.internal' is not an IP address or a network"):
        parse_network("proxy.internal")
