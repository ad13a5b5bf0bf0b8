"""The addresses that a worker gets for files: how long they are good, made when, and for which try."""

from typing import Any

import pytest

from callsheet.core import commands
from callsheet.core.recipe import Recipe, StageSpec
from tests.http.test_uploads import bring
from tests.http.yard import PNG, Yard, made_of, said
from tests.support.served import Served
from tests.support.waiting import wait_until


@pytest.fixture
def yard(served: Served) -> Yard:
    return Yard(served)


def leased_for(yard: Yard, seconds: int) -> None:
    stages = [StageSpec(name="draw", kind=yard.kind)]
    yard.served.engine.execute(
        commands.PutWorkflow(recipe=Recipe(name=yard.kind, lease_seconds=seconds, stages=stages))
    )


@pytest.mark.parametrize(("lease", "good"), [(300, 300), (900, 900), (5, 60)])
def test_an_address_is_good_for_as_long_as_the_lease_and_never_too_short_to_use(
    yard: Yard, lease: int, good: int
) -> None:
    """R233, C14: to read and to put, with the task, on request and with a heartbeat."""
    leased_for(yard, lease)
    brought = bring(yard.served)
    yard.submit(input={"picture": {"$file": brought["id"]}})
    machine = yard.machine()
    (task,) = machine.claim()
    wanted: dict[str, Any] = {"gets": [brought["id"]], "puts": [made_of(PNG)]}
    asked = said(machine.say("files", task, **wanted, preview=True))
    beaten = machine.beat(task, **wanted)["beats"][0]["grants"]
    grants = [task["files"][0]["get"], asked["preview"]]
    grants += [given["get"] for told in (asked, beaten) for given in told["gets"]]
    grants += [granted["put"] for told in (asked, beaten) for granted in told["puts"]]
    assert [grant["seconds"] for grant in grants] == [good] * 6


def test_an_address_is_made_when_it_is_given_and_kept_nowhere(yard: Yard) -> None:
    """R238: it is no part of the job, and a moment later another is given for the same file."""
    brought = bring(yard.served)
    job = yard.submit(input={"picture": {"$file": brought["id"]}})
    machine = yard.machine()
    (task,) = machine.claim()
    first = task["files"][0]["get"]["url"]

    def fresh() -> str:
        (given,) = said(machine.say("files", task, gets=[brought["id"]]))["gets"]
        return str(given["get"]["url"])

    wait_until(lambda: fresh() != first)
    said(machine.say("requeue", task, reason="spot"))
    (again,) = machine.claim()
    signed = [url.rpartition("/")[2] for url in (first, again["files"][0]["get"]["url"])]
    assert len({*signed}) == 2
    client = yard.served.client("client")
    for path in ("", "/input", "/events", "/tasks", f"/tasks/{task['lease']['task_id']}/attempts"):
        assert not any(address in client.get(f"/v1/jobs/{job['id']}{path}").text for address in signed)


def test_what_a_stale_worker_puts_does_not_touch_the_result_of_the_next_try(yard: Yard) -> None:
    """R236: its address is of its own try, even before the other one has put anything."""
    job = yard.submit()
    machine = yard.machine()
    (stale,) = machine.claim()
    late = PNG + b"and too late"
    granted = said(machine.say("files", stale, puts=[made_of(late)]))["puts"][0]["put"]
    said(machine.say("requeue", stale, reason="spot"))
    (fresh,) = machine.claim()
    machine.http.request(granted["method"], granted["url"], content=late, headers=granted["headers"])
    made = machine.put(fresh, PNG)
    machine.http.request(granted["method"], granted["url"], content=late, headers=granted["headers"])
    said(machine.say("complete", fresh, files=[made]))
    client = yard.served.client("client")
    (output,) = said(client.get(f"/v1/jobs/{job['id']}/outputs"))["outputs"]
    (file,) = output["files"]
    assert client.get(file["url"]).content == PNG
