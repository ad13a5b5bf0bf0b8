"""Files: announced and finished, referred to by inputs, deleted when nobody needs them; and what is an orphan."""

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.core.decisions.files import DeletedFiles, find_references, workflow_file_ids
from callsheet.core.model import commands as c
from callsheet.core.model.clock import SECOND
from callsheet.core.model.comfyui_graph import ComfySpec, Target
from callsheet.core.model.errors import Refusal
from callsheet.core.model.rows import Audit, File, JobFile, WorkflowFile
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.orphan_files import AttemptFiles, ObjectAge, classify_output, classify_upload
from tests.core.rule_harness import DRAW, CoreHarness

ANNOUNCED = c.CreateUpload(
    tenant="acme", user="ann", name="a.png", media_type="image/png", bytes=10, sha256="a" * 64, requested_by="key"
)
MADE = c.OutputFile(1, "b.png", "image/png", 7, "b" * 64)
KEPT = Limits(upload_retention_seconds=60)


def brought(harness: CoreHarness, **more: Any) -> str:
    """Announce a file and finish it."""
    file: File = harness.do(replace(ANNOUNCED, **more))
    harness.do(c.FinishUpload(tenant=file.tenant, file_id=file.id))
    return file.id


def using(*keys: str) -> dict[str, Any]:
    return {"pictures": [{"$file": key} for key in keys]}


# -- references


def test_references_are_found_anywhere_in_the_tree_and_nothing_else_is_one() -> None:
    tree = {
        "a": {"$file": "1"}, "b": [[{"c": {"$file": "2"}}], {"$file": 3}, {"$file": None}, "$file", {"x": "$file"}],
        "$file": {"$file": "4"}, "text": '{"$file": "5"}',
    }  # fmt: skip
    assert sorted(find_references(tree)) == ["1", "2", "4"]
    assert list(find_references(msgspec.json.decode(msgspec.json.encode(tree)))) == list(find_references(tree))


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_planted_reference_is_found_wherever_it_is(tree: Any) -> None:
    assert "here" in find_references([tree, {"deep": {"$file": "here"}}])


def test_an_input_without_an_end_is_looked_at_for_a_while_only() -> None:
    ring: list[Any] = [{"$file": "1"}]
    ring += [ring, ring]
    assert set(find_references(ring, 1_000)) == {"1"}


# -- bringing


def test_a_file_is_awaited_then_ready_and_both_once() -> None:
    harness = CoreHarness(DRAW)
    command = replace(ANNOUNCED, id=harness.new_id())
    file = harness.do(command)
    assert harness.do(command) == file
    assert (file.status, file.expires_at) == ("uploading", harness.now + Limits().upload_timeout_seconds * SECOND)
    finish = c.FinishUpload(tenant="acme", file_id=file.id)
    done = harness.do(finish)
    assert (done.status, done.expires_at) == ("ready", None)
    assert harness.do(finish) == done


def test_what_a_person_brought_is_kept_as_long_as_the_house_says() -> None:
    harness = CoreHarness(DRAW, limits=Limits(upload_retention_seconds=60))
    file = harness.get(File, brought(harness))
    assert file.expires_at == harness.now + 60 * SECOND


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
    assert CoreHarness(DRAW).expect_refusal(replace(ANNOUNCED, **fields)).code == code


def test_a_user_waits_with_so_many_files_and_no_more() -> None:
    harness = CoreHarness(DRAW, limits=Limits(uploads_pending_max=2))
    results = harness.batch(*[ANNOUNCED] * 3)
    assert [isinstance(one, File) for one in results] == [True, True, False]
    assert (results[2].code, results[2].details) == ("too_many_uploads", {"waiting": 2, "max": 2})
    harness.do(replace(ANNOUNCED, user="bob"))
    harness.do(c.FinishUpload(tenant="acme", file_id=results[0].id))
    harness.do(ANNOUNCED)


@pytest.mark.parametrize("tenant", ["acme", "other"])
def test_only_its_own_tenant_finishes_a_file_that_is_there(tenant: str) -> None:
    harness = CoreHarness(DRAW)
    file = harness.do(ANNOUNCED)
    if tenant == "acme":
        harness.do(c.DeleteFiles(tenant="acme", file_ids=(file.id,)))
    for key in (file.id, "nowhere"):
        assert harness.expect_refusal(c.FinishUpload(tenant=tenant, file_id=key)).code == "file_not_found"


# -- using


def test_a_job_may_use_its_users_own_files_and_those_that_the_users_jobs_made() -> None:
    harness = CoreHarness(DRAW)
    mine = brought(harness)
    _, lease = harness.started()
    harness.do(c.Complete(lease=lease, files=(MADE,)))
    [made] = [file.id for file in harness.all(File) if file.job_id]
    job = harness.submit(input=using(mine, made, mine))
    assert set(harness.all(JobFile)) == {JobFile(job, mine), JobFile(job, made)}


@pytest.mark.parametrize("whose", ["another user's", "another tenant's", "deleted", "unknown", "uploading"])
@pytest.mark.parametrize("how", ["submit", "stages", "add_tasks", "add_stage"])
def test_what_is_not_the_users_own_and_there_cannot_be_used(whose: str, how: str) -> None:
    harness = CoreHarness(DRAW, WorkflowDefinition(name="open", inline=True))
    harness.do(c.PutTenant(tenant="other"))
    match whose:
        case "another user's":
            key = brought(harness, user="bob")
        case "another tenant's":
            key = brought(harness, tenant="other")
        case "uploading":
            key = harness.do(ANNOUNCED).id
        case _:
            key = brought(harness) if whose == "deleted" else "nowhere"
    if whose == "deleted":
        harness.do(c.DeleteFiles(tenant="acme", file_ids=(key,)))
    job = harness.submit("open", stages=[StageSpec(name="s", kind="draw")])
    stage = harness.stages(job)[0].id
    mine = brought(harness)
    asks: dict[str, c.Command] = {
        "submit": c.Submit(tenant="acme", user="ann", workflow="draw", input=using(mine, key)),
        "stages": c.Submit(tenant="acme", user="ann", workflow="open",
                           stages=[StageSpec(name="t", kind="draw", inputs=[using(mine), using(key)])]),
        "add_tasks": c.AddTasks(tenant="acme", job_id=job, stage_id=stage, inputs=[using(mine), using(key)]),
        "add_stage": c.AddStage(tenant="acme", job_id=job, stage=StageSpec(name="t", kind="draw", inputs=[using(key)])),
    }  # fmt: skip
    refusal = harness.expect_refusal(asks[how])
    assert refusal.code == ("file_not_finished" if whose == "uploading" else "file_not_found")


def test_an_input_refers_to_so_many_files_and_no_more() -> None:
    harness = CoreHarness(DRAW, limits=Limits(files_per_task_max=2))
    files = [brought(harness) for _ in range(3)]
    harness.submit(input=using(*files[:2], *files[:2]))
    assert (
        harness.expect_refusal(c.Submit(tenant="acme", user="ann", workflow="draw", input=using(*files))).code
        == "out_of_range"
    )


# -- dropping


def test_a_file_that_an_open_job_made_or_needs_stays() -> None:
    stages = [StageSpec(name="one", kind="draw"), StageSpec(name="two", kind="later")]
    harness = CoreHarness(DRAW, WorkflowDefinition(name="two", stages=stages, retention_seconds=60), limits=KEPT)
    used = brought(harness)
    needs = harness.submit(input=using(used))
    needing = harness.lease()
    makes = harness.submit("two")
    harness.do(c.Complete(lease=harness.lease(), files=(MADE,)))
    [made] = [file.id for file in harness.all(File) if file.job_id == makes]
    for key in (used, made):
        assert harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(key,))).code == "file_in_use"
    harness.now += 60 * SECOND
    still_needed: DeletedFiles = harness.do(c.DeleteFiles(file_ids=(used, made), requested_by="retention"))
    assert (still_needed.files, still_needed.still_needed) == ((), 2)
    assert all(harness.get(File, key).expires_at == harness.now + 3_600 * SECOND for key in (used, made))
    harness.do(c.Complete(lease=needing))
    harness.do(c.Cancel(tenant="acme", job_id=makes, grace_seconds=0))
    harness.now += 3_600 * SECOND
    gone: DeletedFiles = harness.do(c.DeleteFiles(file_ids=(used, made), requested_by="retention"))
    assert ([file.id for file in gone.files], gone.bytes, gone.still_needed) == ([used, made], 17, 0)
    assert needs


def test_a_file_that_is_finished_while_the_house_is_about_to_drop_it_stays() -> None:
    """The house looks first and drops after: in between its owner may have been told that the file is ready."""
    harness = CoreHarness(DRAW)
    late: File = harness.do(ANNOUNCED)
    harness.now += Limits().upload_timeout_seconds * SECOND
    harness.do(c.FinishUpload(tenant="acme", file_id=late.id))
    assert harness.do(c.DeleteFiles(file_ids=(late.id,), requested_by="retention")) == DeletedFiles((), 0)
    assert harness.get(File, late.id).status == "ready"


def test_what_the_house_drops_is_in_every_tenants_audit_log_and_what_a_person_deletes_is_not() -> None:
    harness = CoreHarness(DRAW, limits=KEPT)
    harness.do(c.PutTenant(tenant="other"))
    files = [brought(harness), brought(harness, bytes=5), brought(harness, tenant="other"), brought(harness)]
    harness.now += 60 * SECOND
    harness.do(c.DeleteFiles(tenant="acme", file_ids=(files[3],), requested_by="key"))
    harness.do(c.DeleteFiles(file_ids=(*files, "nowhere"), requested_by="retention"))
    lines = [(one.tenant, one.actor, one.action, msgspec.json.decode(one.data or "")) for one in harness.all(Audit)
             if one.action == "files.delete"]  # fmt: skip
    assert lines == [
        ("acme", "retention", "files.delete", {"files": 2, "bytes": 15}),
        ("other", "retention", "files.delete", {"files": 1, "bytes": 10}),
    ]


def test_a_file_is_dropped_once_and_only_by_its_tenant() -> None:
    harness = CoreHarness(DRAW)
    key = brought(harness)
    assert harness.expect_refusal(c.DeleteFiles(tenant="other", file_ids=(key,))).code == "file_not_found"
    assert harness.do(c.DeleteFiles(tenant="acme", file_ids=(key,))).bytes == 10
    assert harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(key,))).code == "file_not_found"
    assert harness.do(c.DeleteFiles(file_ids=(key,))) == DeletedFiles((), 0)


# -- of a workflow's own


def styled(key: str, **more: Any) -> c.PutWorkflow:
    """Return a workflow that names a file among the defaults of its graph, and perhaps another as an override."""
    graph = {"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}}
    own = ComfySpec(
        graph=graph, inputs={"style": Target(node="1", field="image")}, defaults={"style": {"$file": key}},
        overrides={name: {"$file": value} for name, value in more.items()},
    )  # fmt: skip
    return c.PutWorkflow(
        definition=WorkflowDefinition(name="styled", stages=[StageSpec(name="draw", kind="draw", comfyui=own)])
    )


PLAIN = c.PutWorkflow(definition=replace(DRAW, name="styled"))


def test_a_workflow_names_files_in_defaults_overrides_and_inputs() -> None:
    inputs = [{"a": {"$file": "3"}}, [{"$file": "1"}]]
    definition = styled("1", style="2").definition
    both = replace(definition, stages=[*definition.stages, StageSpec(name="b", kind="b", inputs=inputs)])
    assert set(workflow_file_ids(both)) == {"1", "2", "3"}


def test_a_file_stays_while_the_current_workflow_names_it() -> None:
    harness = CoreHarness(DRAW, limits=KEPT)
    style, other = brought(harness), brought(harness)
    harness.do(styled(style, style=other))
    assert set(harness.all(WorkflowFile)) == {WorkflowFile("styled", 1, key) for key in (style, other)}
    for key in (style, other):
        refused = harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(key,)))
        assert (refused.code, refused.message) == (
            "file_in_use", "The file 'a.png' is used by the workflow 'styled': delete it later.",
        )  # fmt: skip
    harness.now += 60 * SECOND
    assert harness.do(c.DeleteFiles(file_ids=(style, other), requested_by="retention")) == DeletedFiles((), 2)
    harness.do(styled(style))
    assert harness.do(c.DeleteFiles(tenant="acme", file_ids=(other,))).bytes == 10
    harness.do(PLAIN)
    assert harness.do(c.DeleteFiles(tenant="acme", file_ids=(style,))).bytes == 10


def test_a_file_stays_while_jobs_of_an_older_version_are_open_and_is_missed_when_one_is_opened_again() -> None:
    harness = CoreHarness(DRAW)
    style = brought(harness)
    harness.do(styled(style))
    job = harness.submit("styled")
    harness.do(PLAIN)
    assert "'styled'" in harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(style,))).message
    harness.do(c.Fail(lease=harness.lease(), code="no", message="no", retryable=False))
    retry = c.Retry(tenant="acme", job_id=job, actor="admin")
    harness.do(retry)
    harness.do(c.Fail(lease=harness.lease(), code="no", message="no", retryable=False))
    harness.do(c.DeleteFiles(tenant="acme", file_ids=(style,)))
    for retrying in (retry, replace(retry, retry_as="new_job")):
        assert harness.expect_refusal(retrying).code == "file_not_found"


def test_a_job_stays_while_a_workflow_names_what_it_made() -> None:
    harness = CoreHarness(DRAW)
    job, lease = harness.started()
    harness.do(c.Complete(lease=lease, files=(MADE,)))
    [made] = [file.id for file in harness.all(File)]
    harness.do(styled(made))
    delete = c.Delete(tenant="acme", job_id=job)
    refused = harness.expect_refusal(delete)
    assert (refused.code, refused.message) == (
        "file_in_use", "The file 'b.png' of this job is used by the workflow 'styled': delete it later.",
    )  # fmt: skip
    harness.do(PLAIN)
    harness.do(delete)


@pytest.mark.parametrize("whose", ["unknown", "uploading", "deleted", "another tenant's", "no id"])
def test_a_workflow_that_names_a_file_that_is_not_there_is_refused(whose: str) -> None:
    harness = CoreHarness(DRAW)
    key = brought(harness)
    match whose:
        case "unknown":
            key = "nowhere"
        case "uploading":
            key = harness.do(ANNOUNCED).id
        case "deleted":
            harness.do(c.DeleteFiles(tenant="acme", file_ids=(key,)))
        case "no id":
            key = "a\0b"
    owner = "other" if whose == "another tenant's" else "acme"
    refused = harness.expect_refusal(replace(styled(key), owner=owner))
    assert refused.code == "invalid_workflow"
    assert f"refers to the file {key!r}, but no finished file of the tenant {owner!r}" in refused.message
    if owner == "other":
        harness.do(styled(key))  # the house itself may name anybody's


def test_more_files_than_anybody_looks_at_are_not_named() -> None:
    harness = CoreHarness(DRAW, limits=Limits(bulk_items_max=1))
    refused = harness.expect_refusal(styled(brought(harness), style=brought(harness)))
    assert (refused.code, "the number of files that 'styled' names" in refused.message) == ("out_of_range", True)


@pytest.mark.parametrize("first", ["put", "drop"])
def test_in_one_batch_a_file_is_named_or_dropped_and_never_both(first: str) -> None:
    harness = CoreHarness(DRAW)
    key = brought(harness)
    both: list[c.Command] = [styled(key), c.DeleteFiles(tenant="acme", file_ids=(key,))]
    results = harness.batch(*(both if first == "put" else both[::-1]))
    assert [isinstance(result, Refusal) for result in results] == [False, True]


# -- orphans


NOW, GRACE, BORN = 1_000, 100, 500
AGES = {"young": NOW - GRACE + 1, "old": NOW - GRACE, "older than the house": BORN - 1}


def age(modified_at: int) -> ObjectAge:
    return ObjectAge(modified_at, NOW, BORN, GRACE)


@pytest.mark.parametrize("at", AGES)
@pytest.mark.parametrize("status", ["uploading", "ready", "deleted", None])
def test_an_upload_goes_when_its_row_is_dropped_or_was_never_there(status: str | None, at: str) -> None:
    row = File("f", "acme", "ann", None, None, 0, 0, "a", "image/png", 1, "a" * 64, 1, status) if status else None
    old = "orphan" if at != "young" else "young"
    fate = {"deleted": old, None: "unknown" if at == "older than the house" else old}.get(status, "needed")
    assert classify_upload("acme", row, age(AGES[at])) == fate


def test_a_key_that_another_row_has_is_of_no_row() -> None:
    made = File("f", "acme", "ann", "j", "t", 1, 1, "a", "image/png", 1, "a" * 64, 1)
    for tenant, row in (("acme", made), ("other", replace(made, job_id=None, task_id=None))):
        assert classify_upload(tenant, row, age(AGES["old"])) == "orphan"
    assert (
        classify_output("acme", "j2", 1, AttemptFiles("acme", "j", open=True, files={}), age(AGES["old"])) == "orphan"
    )
    assert (
        classify_output("other", "j", 1, AttemptFiles("acme", "j", open=True, files={}), age(AGES["old"])) == "orphan"
    )


def test_an_output_goes_when_its_try_has_ended_without_it() -> None:
    """All combinations; the table of what stays is short."""
    for (name, at), is_open, no, files in product(
        AGES.items(), [True, False], [None, 1, 2], [{}, {1: "ready"}, {1: "deleted"}]
    ):
        fate = classify_output("acme", "j", no, AttemptFiles("acme", "j", is_open, files), age(at))
        if is_open or (no == 1 and files == {1: "ready"}):
            assert fate == "needed"
        else:
            assert fate == ("young" if name == "young" else "orphan")
    assert classify_output("acme", "j", 1, None, age(AGES["old"])) == "orphan"
    assert classify_output("acme", "j", 1, None, age(AGES["older than the house"])) == "unknown"
