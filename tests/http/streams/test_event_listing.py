"""Events as JSON: pages of the events of a tenant or a job that say whether there are more."""

from typing import Any

from callsheet.core.model import commands
from tests.support.processes.live_server import OTHER_TENANT, TENANT, LiveServer
from tests.support.wait import wait_until

MANY = 600
"""So many submits create more events than one page has."""


def feed(live_server: LiveServer, role: str, **query: Any) -> dict[str, Any]:
    page: dict[str, Any] = live_server.client(role).get("/v1/events", params=query).raise_for_status().json()
    return page


def submits(live_server: LiveServer, count: int, tenant: str = TENANT) -> list[str]:
    many = [commands.Submit(tenant=tenant, user="ann", workflow="sketch", input={}) for _ in range(count)]
    return [done.job_id for done in live_server.engine.execute_many(many)]


def all_pages(live_server: LiveServer, **query: Any) -> tuple[list[tuple[str, int]], list[bool]]:
    found, mores = list[tuple[str, int]](), list[bool]()
    while True:
        page = feed(live_server, "client", **query)
        found += [(event["job_id"], event["seq"]) for event in page["events"]]
        mores.append(page["more"])
        if not page["more"]:
            return found, mores
        query["cursor"] = page["next"]


def test_events_of_other_tenants_take_no_place_on_a_page(live_server: LiveServer) -> None:
    live_server.engine.execute(commands.TopUp(tenant=TENANT, user="ann", amount=10_000, idempotency_key="pages"))
    (first,) = submits(live_server, 1, OTHER_TENANT)
    submits(live_server, MANY)
    (last,) = submits(live_server, 1, OTHER_TENANT)
    wait_until(lambda: feed(live_server, "other client")["events"][-1:])
    wait_until(lambda: feed(live_server, "other client")["events"][-1]["job_id"] == last)
    page = feed(live_server, "other client")
    assert [event["job_id"] for event in page["events"] if event["type"] == "job.created"] == [first, last]
    assert page["more"] is False


def test_a_page_says_whether_there_are_more_events_and_pages_have_no_gaps(live_server: LiveServer) -> None:
    start = feed(live_server, "client", cursor="now")["next"]
    jobs = submits(live_server, 4)
    total = sum(live_server.engine.reads.job(TENANT, job).seq for job in jobs)
    wait_until(lambda: len(feed(live_server, "client", cursor=start)["events"]) == total)
    whole, (more,) = all_pages(live_server, cursor=start)
    assert (len(whole), len(set(whole)), more) == (total, total, False)
    for limit in (1, 3, total - 1, total):
        pages = -(-total // limit)
        assert all_pages(live_server, cursor=start, limit=limit) == (whole, [True] * (pages - 1) + [False])


def test_events_that_the_filter_excludes_do_not_count_as_more(live_server: LiveServer) -> None:
    start = feed(live_server, "client", cursor="now")["next"]
    (job,) = submits(live_server, 1)
    wait_until(lambda: feed(live_server, "client", cursor=start)["events"])
    page = feed(live_server, "client", cursor=start, type="job.created", limit=1)
    assert ([event["job_id"] for event in page["events"]], page["more"]) == ([job], False)
    assert feed(live_server, "client", cursor=page["next"], type="job.")["events"] == []


def test_a_page_of_a_job_says_whether_there_are_more_events(live_server: LiveServer) -> None:
    client = live_server.client("client")
    job = client.post(f"/v1/jobs/{live_server.submit()['id']}/cancel", json={}).raise_for_status().json()
    path = f"/v1/jobs/{job['id']}/events"
    assert job["last_event_seq"] > 1
    for limit, more in ((job["last_event_seq"] - 1, True), (job["last_event_seq"], False)):
        page = client.get(path, params={"limit": limit}).json()
        assert ([event["seq"] for event in page["events"]], page["more"]) == (list(range(1, limit + 1)), more)
