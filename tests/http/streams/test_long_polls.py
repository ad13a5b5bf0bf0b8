"""Long polls return as soon as the job ends or changes."""

from concurrent.futures import ThreadPoolExecutor

from callsheet.core.model import commands
from tests.support.engine.concurrency import ANSWER_SECONDS
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until


def test_a_long_poll_returns_when_the_job_ends(fast_stream_server: LiveServer) -> None:
    job = fast_stream_server.submit()["id"]
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(fast_stream_server.client("client").get, f"/v1/jobs/{job}?wait_seconds=60")
        wait_until(lambda: fast_stream_server.callsheet.state.broadcaster.count)
        fast_stream_server.work()
        answer = polling.result(ANSWER_SECONDS)
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert fast_stream_server.client("client").get(f"/v1/jobs/{job}?wait_seconds=60").json() == answer.json()


def test_a_long_poll_with_an_etag_returns_at_any_change(fast_stream_server: LiveServer) -> None:
    client = fast_stream_server.client("client")
    job = fast_stream_server.submit()["id"]
    current = client.get(f"/v1/jobs/{job}")
    with ThreadPoolExecutor(1) as threads:
        headers = {"if-none-match": current.headers["etag"]}
        polling = threads.submit(
            fast_stream_server.client("client").get, f"/v1/jobs/{job}?wait_seconds=60", headers=headers
        )
        wait_until(lambda: fast_stream_server.callsheet.state.broadcaster.count)
        fast_stream_server.engine.execute(commands.Claim(worker_id="w1", kinds=("draw",)))
        answer = polling.result(ANSWER_SECONDS)
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    again = client.get(f"/v1/jobs/{job}?wait_seconds=60", headers=headers)
    assert (again.status_code, again.headers["etag"]) == (200, answer.headers["etag"])
    client.post(f"/v1/jobs/{job}/cancel", json={"grace_seconds": 0}).raise_for_status()


def test_a_long_poll_without_a_change_returns_after_its_wait(fast_stream_server: LiveServer) -> None:
    client = fast_stream_server.client("client")
    current = client.get(f"/v1/jobs/{fast_stream_server.submit()['id']}")
    path = f"/v1/jobs/{current.json()['id']}?wait_seconds=0.05"
    assert client.get(path).json() == current.json()
    assert client.get(path, headers={"if-none-match": current.headers["etag"]}).status_code == 304
    fast_stream_server.work()
