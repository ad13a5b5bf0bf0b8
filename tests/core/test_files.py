"""Files: announced and finished, referred to by inputs, dropped when nobody needs them; and what is an orphan."""

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core import commands as c
from callsheet.core.clock import SECOND
from callsheet.core.comfy import ComfySpec, Target
from callsheet.core.errors import Refusal
from callsheet.core.files import Dropped, named, references
from callsheet.core.limits import Limits
from callsheet.core.orphans import Age, Try, fate_of_output, fate_of_upload
from callsheet.core.recipe import Recipe, StageSpec
from callsheet.core.rows import Audit, File, Use, WorkflowUse
from tests.core.world import DRAW, World

ANNOUNCED = c.AskUpload(
    tenant="acme", user="ann", name="a.png", media_type="image/png", bytes=10, sha256="a" * 64, by="key"
)
MADE = c.Made(1, "b.png", "image/png", 7, "b" * 64)
KEPT = Limits(upload_keep_seconds=60)


def brought(world: World, **more: Any) -> str:
    """Announce a file and finish it."""
    file: File = world.do(replace(ANNOUNCED, **more))
    world.do(c.FinishUpload(tenant=file.tenant, file_id=file.id))
    return file.id


def using(*keys: str) -> dict[str, Any]:
    return {"pictures": [{"$file": key} for key in keys]}


# -- references


def test_references_are_found_anywhere_in_the_tree_and_nothing_else_is_one() -> None:
    tree = {
        "a": {"$file": "1"}, "b": [[{"c": {"$file": "2"}}], {"$file": 3}, {"$file": None}, "$file", {"x": "$file"}],
        "$file": {"$file": "4"}, "text": '{"$file": "5"}',
    }  # fmt: skip
    assert sorted(references(tree)) == ["1", "2", "4"]
    assert list(references(msgspec.json.decode(msgspec.json.encode(tree)))) == list(references(tree))


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_planted_reference_is_found_wherever_it_is(tree: Any) -> None:
    assert "here" in references([tree, {"deep": {"$file": "here"}}])


def test_an_input_without_an_end_is_looked_at_for_a_while_only() -> None:
    ring: list[Any] = [{"$file": "1"}]
    ring += [ring, ring]
    assert set(references(ring, 1_000)) == {"1"}


# -- bringing


def test_a_file_is_awaited_then_ready_and_both_once() -> None:
    world = World(DRAW)
    command = replace(ANNOUNCED, id=world.new_id())
    file = world.do(command)
    assert world.do(command) == file
    assert (file.status, file.keep_until) == ("awaited", world.now + Limits().upload_seconds_max * SECOND)
    finish = c.FinishUpload(tenant="acme", file_id=file.id)
    done = world.do(finish)
    assert (done.status, done.keep_until) == ("ready", None)
    assert world.do(finish) == done


def test_what_a_person_brought_is_kept_as_long_as_the_house_says() -> None:
    world = World(DRAW, limits=Limits(upload_keep_seconds=60))
    file = world.get(File, brought(world))
    assert file.keep_until == world.now + 60 * SECOND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tenant": "nobody"}, "tenant_not_found"), ({"user": ""}, "invalid_user"), ({"user": "a\nb"}, "invalid_user"),
        ({"user": "u" * 256}, "invalid_user"), ({"name": ""}, "invalid_file"), ({"name": "../etc/x"}, "invalid_file"),
        ({"name": "C:\\x"}, "invalid_file"), ({"name": "a\0b"}, "invalid_file"),
        ({"name": "n" * 4_096}, "invalid_file"), ({"media_type": "png"}, "invalid_file"),
        ({"media_type": "image/png\r\nx: y"}, "invalid_file"),
        ({"sha256": "A" * 64}, "invalid_file"), ({"sha256": ""}, "invalid_file"), ({"bytes": -1}, "out_of_range"),
        ({"bytes": Limits().file_bytes_max + 1}, "out_of_range"), ({"bytes": True}, "out_of_range"),
    ],
)  # fmt: skip
def test_what_could_not_be_a_file_is_refused(fields: dict[str, Any], code: str) -> None:
    assert World(DRAW).refused(replace(ANNOUNCED, **fields)).code == code


def test_a_user_waits_with_so_many_files_and_no_more() -> None:
    world = World(DRAW, limits=Limits(uploads_awaited_max=2))
    results = world.batch(*[ANNOUNCED] * 3)
    assert [isinstance(one, File) for one in results] == [True, True, False]
    assert (results[2].code, results[2].details) == ("too_many_uploads", {"waiting": 2, "max": 2})
    world.do(replace(ANNOUNCED, user="bob"))
    world.do(c.FinishUpload(tenant="acme", file_id=results[0].id))
    world.do(ANNOUNCED)


@pytest.mark.parametrize("tenant", ["acme", "other"])
def test_only_its_own_tenant_finishes_a_file_that_is_there(tenant: str) -> None:
    world = World(DRAW)
    file = world.do(ANNOUNCED)
    if tenant == "acme":
        world.do(c.DropFiles(tenant="acme", file_ids=(file.id,)))
    for key in (file.id, "nowhere"):
        assert world.refused(c.FinishUpload(tenant=tenant, file_id=key)).code == "file_not_found"


# -- using


def test_a_job_may_use_its_users_own_files_and_those_that_the_users_jobs_made() -> None:
    world = World(DRAW)
    mine = brought(world)
    _, lease = world.started()
    world.do(c.Complete(lease=lease, files=(MADE,)))
    [made] = [file.id for file in world.all(File) if file.job_id]
    job = world.submit(input=using(mine, made, mine))
    assert set(world.all(Use)) == {Use(job, mine), Use(job, made)}


@pytest.mark.parametrize("whose", ["another user's", "another tenant's", "dropped", "unknown", "awaited"])
@pytest.mark.parametrize("how", ["submit", "stages", "add_tasks", "add_stage"])
def test_what_is_not_the_users_own_and_there_cannot_be_used(whose: str, how: str) -> None:
    world = World(DRAW, Recipe(name="open", inline=True))
    world.do(c.PutTenant(tenant="other"))
    match whose:
        case "another user's":
            key = brought(world, user="bob")
        case "another tenant's":
            key = brought(world, tenant="other")
        case "awaited":
            key = world.do(ANNOUNCED).id
        case _:
            key = brought(world) if whose == "dropped" else "nowhere"
    if whose == "dropped":
        world.do(c.DropFiles(tenant="acme", file_ids=(key,)))
    job = world.submit("open", stages=[StageSpec(name="s", kind="draw")])
    stage = world.stages(job)[0].id
    mine = brought(world)
    asks: dict[str, c.Command] = {
        "submit": c.Submit(tenant="acme", user="ann", workflow="draw", input=using(mine, key)),
        "stages": c.Submit(tenant="acme", user="ann", workflow="open",
                           stages=[StageSpec(name="t", kind="draw", inputs=[using(mine), using(key)])]),
        "add_tasks": c.AddTasks(tenant="acme", job_id=job, stage_id=stage, inputs=[using(mine), using(key)]),
        "add_stage": c.AddStage(tenant="acme", job_id=job, stage=StageSpec(name="t", kind="draw", inputs=[using(key)])),
    }  # fmt: skip
    refusal = world.refused(asks[how])
    assert refusal.code == ("file_not_finished" if whose == "awaited" else "file_not_found")


def test_an_input_refers_to_so_many_files_and_no_more() -> None:
    world = World(DRAW, limits=Limits(files_per_task_max=2))
    files = [brought(world) for _ in range(3)]
    world.submit(input=using(*files[:2], *files[:2]))
    assert (
        world.refused(c.Submit(tenant="acme", user="ann", workflow="draw", input=using(*files))).code == "out_of_range"
    )


# -- dropping


def test_a_file_that_an_open_job_made_or_needs_stays() -> None:
    stages = [StageSpec(name="one", kind="draw"), StageSpec(name="two", kind="later")]
    world = World(DRAW, Recipe(name="two", stages=stages, keep_seconds=60), limits=KEPT)
    used = brought(world)
    needs = world.submit(input=using(used))
    needing = world.lease()
    makes = world.submit("two")
    world.do(c.Complete(lease=world.lease(), files=(MADE,)))
    [made] = [file.id for file in world.all(File) if file.job_id == makes]
    for key in (used, made):
        assert world.refused(c.DropFiles(tenant="acme", file_ids=(key,))).code == "file_in_use"
    world.now += 60 * SECOND
    kept: Dropped = world.do(c.DropFiles(file_ids=(used, made), by="retention"))
    assert (kept.files, kept.kept) == ((), 2)
    assert all(world.get(File, key).keep_until == world.now + 3_600 * SECOND for key in (used, made))
    world.do(c.Complete(lease=needing))
    world.do(c.Cancel(tenant="acme", job_id=makes, grace_seconds=0))
    world.now += 3_600 * SECOND
    gone: Dropped = world.do(c.DropFiles(file_ids=(used, made), by="retention"))
    assert ([file.id for file in gone.files], gone.bytes, gone.kept) == ([used, made], 17, 0)
    assert needs


def test_a_file_that_is_finished_while_the_house_is_about_to_drop_it_stays() -> None:
    """The house looks first and drops after: in between its owner may have been told that the file is ready."""
    world = World(DRAW)
    late: File = world.do(ANNOUNCED)
    world.now += Limits().upload_seconds_max * SECOND
    world.do(c.FinishUpload(tenant="acme", file_id=late.id))
    assert world.do(c.DropFiles(file_ids=(late.id,), by="retention")) == Dropped((), 0)
    assert world.get(File, late.id).status == "ready"


def test_what_the_house_drops_is_in_every_tenants_audit_log_and_what_a_person_deletes_is_not() -> None:
    world = World(DRAW, limits=KEPT)
    world.do(c.PutTenant(tenant="other"))
    files = [brought(world), brought(world, bytes=5), brought(world, tenant="other"), brought(world)]
    world.now += 60 * SECOND
    world.do(c.DropFiles(tenant="acme", file_ids=(files[3],), by="key"))
    world.do(c.DropFiles(file_ids=(*files, "nowhere"), by="retention"))
    lines = [(one.tenant, one.actor, one.action, msgspec.json.decode(one.data or "")) for one in world.all(Audit)
             if one.action == "files.drop"]  # fmt: skip
    assert lines == [
        ("acme", "retention", "files.drop", {"files": 2, "bytes": 15}),
        ("other", "retention", "files.drop", {"files": 1, "bytes": 10}),
    ]


def test_a_file_is_dropped_once_and_only_by_its_tenant() -> None:
    world = World(DRAW)
    key = brought(world)
    assert world.refused(c.DropFiles(tenant="other", file_ids=(key,))).code == "file_not_found"
    assert world.do(c.DropFiles(tenant="acme", file_ids=(key,))).bytes == 10
    assert world.refused(c.DropFiles(tenant="acme", file_ids=(key,))).code == "file_not_found"
    assert world.do(c.DropFiles(file_ids=(key,))) == Dropped((), 0)


# -- of a workflow's own


def styled(key: str, **more: Any) -> c.PutWorkflow:
    """Return a workflow that names a file among the defaults of its graph, and perhaps another as an override."""
    graph = {"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}}
    own = ComfySpec(
        graph=graph, inputs={"style": Target(node="1", field="image")}, defaults={"style": {"$file": key}},
        overrides={name: {"$file": value} for name, value in more.items()},
    )  # fmt: skip
    return c.PutWorkflow(recipe=Recipe(name="styled", stages=[StageSpec(name="draw", kind="draw", comfyui=own)]))


PLAIN = c.PutWorkflow(recipe=replace(DRAW, name="styled"))


def test_a_workflow_names_files_in_defaults_overrides_and_inputs() -> None:
    inputs = [{"a": {"$file": "3"}}, [{"$file": "1"}]]
    recipe = styled("1", style="2").recipe
    both = replace(recipe, stages=[*recipe.stages, StageSpec(name="b", kind="b", inputs=inputs)])
    assert set(named(both)) == {"1", "2", "3"}


def test_a_file_stays_while_the_current_workflow_names_it() -> None:
    world = World(DRAW, limits=KEPT)
    style, other = brought(world), brought(world)
    world.do(styled(style, style=other))
    assert set(world.all(WorkflowUse)) == {WorkflowUse("styled", 1, key) for key in (style, other)}
    for key in (style, other):
        refused = world.refused(c.DropFiles(tenant="acme", file_ids=(key,)))
        assert (refused.code, refused.message) == (
            "file_in_use", "The file 'a.png' is needed by the workflow 'styled'.",
        )  # fmt: skip
    world.now += 60 * SECOND
    assert world.do(c.DropFiles(file_ids=(style, other), by="retention")) == Dropped((), 2)
    world.do(styled(style))
    assert world.do(c.DropFiles(tenant="acme", file_ids=(other,))).bytes == 10
    world.do(PLAIN)
    assert world.do(c.DropFiles(tenant="acme", file_ids=(style,))).bytes == 10


def test_a_file_stays_while_jobs_of_an_older_version_are_open_and_is_missed_when_one_is_opened_again() -> None:
    world = World(DRAW)
    style = brought(world)
    world.do(styled(style))
    job = world.submit("styled")
    world.do(PLAIN)
    assert "'styled'" in world.refused(c.DropFiles(tenant="acme", file_ids=(style,))).message
    world.do(c.Fail(lease=world.lease(), code="no", message="no", retryable=False))
    retry = c.Retry(tenant="acme", job_id=job, actor="admin")
    world.do(retry)
    world.do(c.Fail(lease=world.lease(), code="no", message="no", retryable=False))
    world.do(c.DropFiles(tenant="acme", file_ids=(style,)))
    for again in (retry, replace(retry, retry_as="new_job")):
        assert world.refused(again).code == "file_not_found"


def test_a_job_stays_while_a_workflow_names_what_it_made() -> None:
    world = World(DRAW)
    job, lease = world.started()
    world.do(c.Complete(lease=lease, files=(MADE,)))
    [made] = [file.id for file in world.all(File)]
    world.do(styled(made))
    delete = c.Delete(tenant="acme", job_id=job)
    refused = world.refused(delete)
    assert (refused.code, refused.message) == (
        "file_in_use", "The file 'b.png' of this job is needed by the workflow 'styled'.",
    )  # fmt: skip
    world.do(PLAIN)
    world.do(delete)


@pytest.mark.parametrize("whose", ["unknown", "awaited", "dropped", "another tenant's", "no id"])
def test_a_workflow_that_names_a_file_that_is_not_there_is_refused(whose: str) -> None:
    world = World(DRAW)
    key = brought(world)
    match whose:
        case "unknown":
            key = "nowhere"
        case "awaited":
            key = world.do(ANNOUNCED).id
        case "dropped":
            world.do(c.DropFiles(tenant="acme", file_ids=(key,)))
        case "no id":
            key = "a\0b"
    owner = "other" if whose == "another tenant's" else "acme"
    refused = world.refused(replace(styled(key), owner=owner))
    assert refused.code == "invalid_workflow"
    assert f"names the file {key!r}, and there is none of the tenant {owner!r} that is finished" in refused.message
    if owner == "other":
        world.do(styled(key))  # the house itself may name anybody's


def test_more_files_than_anybody_looks_at_are_not_named() -> None:
    world = World(DRAW, limits=Limits(bulk_max=1))
    refused = world.refused(styled(brought(world), style=brought(world)))
    assert (refused.code, "the number of files that 'styled' names" in refused.message) == ("out_of_range", True)


@pytest.mark.parametrize("first", ["put", "drop"])
def test_in_one_batch_a_file_is_named_or_dropped_and_never_both(first: str) -> None:
    world = World(DRAW)
    key = brought(world)
    both: list[c.Command] = [styled(key), c.DropFiles(tenant="acme", file_ids=(key,))]
    results = world.batch(*(both if first == "put" else both[::-1]))
    assert [isinstance(result, Refusal) for result in results] == [False, True]


# -- orphans


NOW, GRACE, BORN = 1_000, 100, 500
AGES = {"young": NOW - GRACE + 1, "old": NOW - GRACE, "older than the house": BORN - 1}


def age(modified_at: int) -> Age:
    return Age(modified_at, NOW, BORN, GRACE)


@pytest.mark.parametrize("at", AGES)
@pytest.mark.parametrize("status", ["awaited", "ready", "dropped", None])
def test_an_upload_goes_when_its_row_is_dropped_or_was_never_there(status: str | None, at: str) -> None:
    row = File("f", "acme", "ann", None, None, 0, 0, "a", "image/png", 1, "a" * 64, 1, status) if status else None
    old = "orphan" if at != "young" else "young"
    fate = {"dropped": old, None: "unknown" if at == "older than the house" else old}.get(status, "needed")
    assert fate_of_upload("acme", row, age(AGES[at])) == fate


def test_a_key_that_another_row_has_is_of_no_row() -> None:
    made = File("f", "acme", "ann", "j", "t", 1, 1, "a", "image/png", 1, "a" * 64, 1)
    for tenant, row in (("acme", made), ("other", replace(made, job_id=None, task_id=None))):
        assert fate_of_upload(tenant, row, age(AGES["old"])) == "orphan"
    assert fate_of_output("acme", "j2", 1, Try("acme", "j", open=True, files={}), age(AGES["old"])) == "orphan"
    assert fate_of_output("other", "j", 1, Try("acme", "j", open=True, files={}), age(AGES["old"])) == "orphan"


def test_an_output_goes_when_its_try_has_ended_without_it() -> None:
    """All combinations; the table of what stays is short."""
    for (name, at), is_open, no, files in product(
        AGES.items(), [True, False], [None, 1, 2], [{}, {1: "ready"}, {1: "dropped"}]
    ):
        fate = fate_of_output("acme", "j", no, Try("acme", "j", is_open, files), age(at))
        if is_open or (no == 1 and files == {1: "ready"}):
            assert fate == "needed"
        else:
            assert fate == ("young" if name == "young" else "orphan")
    assert fate_of_output("acme", "j", 1, None, age(AGES["old"])) == "orphan"
    assert fate_of_output("acme", "j", 1, None, age(AGES["older than the house"])) == "unknown"
