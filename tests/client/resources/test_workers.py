"""Workers, by both clients, on both databases."""

from typing import Any

from tests.support.processes.live_server import LiveServer


def test_an_operator_drains_revokes_and_approves_a_worker_and_rotates_its_token(
    live_server: LiveServer, operator: Any
) -> None:
    live_server.register("managed", "draw")
    assert operator.workers.get("managed").kinds == ["draw"]
    assert operator.workers.update("managed", draining=True).draining
    rotated = operator.workers.rotate_token("managed")
    assert rotated.token != live_server.keys["managed"]
    assert repr(rotated) == "WorkerToken(worker='managed', token='…')"
    assert operator.workers.revoke("managed").status == "revoked"
    assert operator.workers.update("managed", approved=True).status == "offline"
    assert "managed" not in {worker.worker for worker in operator.workers.list()}
    assert "managed" in {worker.worker for worker in operator.workers.list(include_deregistered=True)}
