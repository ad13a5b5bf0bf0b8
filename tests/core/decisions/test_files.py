"""Files: uploads, references in inputs and workflows, and deletion."""

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
from tests.core.rule_harness import DRAW, CoreHarness

CREATE_UPLOAD = c.CreateUpload(
    tenant="acme", user="ann", name="a.png", media_type="image/png", bytes=10, sha256="a" * 64, requested_by="key"
)
OUTPUT = c.OutputFile(1, "b.png", "image/png", 7, "b" * 64)
RETAINED = Limits(upload_retention_seconds=60)


def upload(harness: CoreHarness, **more: Any) -> str:
    """Create an upload, finish it and return its id."""
    file: File = harness.do(replace(CREATE_UPLOAD, **more))
    harness.do(c.FinishUpload(tenant=file.tenant, file_id=file.id))
    return file.id


def input_with(*file_ids: str) -> dict[str, Any]:
    return {"pictures": [{"$file": file_id} for file_id in file_ids]}


# -- references


def test_only_objects_with_a_file_id_are_references_at_any_depth() -> None:
    tree = {
        "a": {"$file": "1"}, "b": [[{"c": {"$file": "2"}}], {"$file": 3}, {"$file": None}, "$file", {"x": "$file"}],
        "$file": {"$file": "4"}, "text": '{"$file": "5"}',
    }  # fmt: skip
    assert sorted(find_references(tree)) == ["1", "2", "4"]
    assert list(find_references(msgspec.json.decode(msgspec.json.encode(tree)))) == list(find_references(tree))


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_a_planted_reference_is_found_in_any_tree(tree: Any) -> None:
    assert "planted" in find_references([tree, {"deep": {"$file": "planted"}}])


def test_the_search_for_references_is_limited() -> None:
    ring: list[Any] = [{"$file": "1"}]
    ring += [ring, ring]
    assert set(find_references(ring, 1_000)) == {"1"}


# -- upload


def test_creating_and_finishing_an_upload_can_be_repeated() -> None:
    harness = CoreHarness(DRAW)
    command = replace(CREATE_UPLOAD, id=harness.new_id())
    file = harness.do(command)
    assert harness.do(command) == file
    assert (file.status, file.expires_at) == ("uploading", harness.now + Limits().upload_timeout_seconds * SECOND)
    finish = c.FinishUpload(tenant="acme", file_id=file.id)
    done = harness.do(finish)
    assert (done.status, done.expires_at) == ("ready", None)
    assert harness.do(finish) == done


def test_a_finished_upload_expires_after_the_retention_time() -> None:
    harness = CoreHarness(DRAW, limits=Limits(upload_retention_seconds=60))
    file = harness.get(File, upload(harness))
    assert file.expires_at == harness.now + 60 * SECOND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tenant": "missing"}, "tenant_not_found"), ({"user": ""}, "invalid_user"), ({"user": "a\nb"}, "invalid_user"),
        ({"user": "u" * 256}, "invalid_user"), ({"name": ""}, "invalid_file"), ({"name": "../etc/x"}, "invalid_file"),
        ({"name": "C:\\x"}, "invalid_file"), ({"name": "a\0b"}, "invalid_file"),
        ({"name": "n" * 4_096}, "invalid_file"), ({"media_type": "png"}, "invalid_file"),
        ({"media_type": "image/png\r\nx: y"}, "invalid_file"),
        ({"sha256": "A" * 64}, "invalid_file"), ({"sha256": ""}, "invalid_file"), ({"bytes": -1}, "out_of_range"),
        ({"bytes": Limits().file_bytes_max + 1}, "out_of_range"), ({"bytes": True}, "out_of_range"),
    ],
)  # fmt: skip
def test_an_invalid_upload_is_refused(fields: dict[str, Any], code: str) -> None:
    assert CoreHarness(DRAW).expect_refusal(replace(CREATE_UPLOAD, **fields)).code == code


def test_a_user_has_a_limited_number_of_pending_uploads() -> None:
    harness = CoreHarness(DRAW, limits=Limits(uploads_pending_max=2))
    results = harness.batch(*[CREATE_UPLOAD] * 3)
    assert [isinstance(one, File) for one in results] == [True, True, False]
    assert (results[2].code, results[2].details) == ("too_many_uploads", {"waiting": 2, "max": 2})
    harness.do(replace(CREATE_UPLOAD, user="bob"))
    harness.do(c.FinishUpload(tenant="acme", file_id=results[0].id))
    harness.do(CREATE_UPLOAD)


@pytest.mark.parametrize("tenant", ["acme", "other"])
def test_a_deleted_file_or_one_of_another_tenant_cannot_be_finished(tenant: str) -> None:
    harness = CoreHarness(DRAW)
    file = harness.do(CREATE_UPLOAD)
    if tenant == "acme":
        harness.do(c.DeleteFiles(tenant="acme", file_ids=(file.id,)))
    for file_id in (file.id, "missing"):
        assert harness.expect_refusal(c.FinishUpload(tenant=tenant, file_id=file_id)).code == "file_not_found"


# -- use in jobs


def test_a_job_can_use_uploads_of_its_user_and_outputs_of_jobs_of_its_user() -> None:
    harness = CoreHarness(DRAW)
    uploaded = upload(harness)
    _, lease = harness.started()
    harness.do(c.Complete(lease=lease, files=(OUTPUT,)))
    [output] = [file.id for file in harness.all(File) if file.job_id]
    job = harness.submit(input=input_with(uploaded, output, uploaded))
    assert set(harness.all(JobFile)) == {JobFile(job, uploaded), JobFile(job, output)}


@pytest.mark.parametrize("file_state", ["another user's", "another tenant's", "deleted", "unknown", "uploading"])
@pytest.mark.parametrize("how", ["submit", "stages", "add_tasks", "add_stage"])
def test_a_job_can_use_only_finished_files_of_its_own_user(file_state: str, how: str) -> None:
    """R169, O7."""
    harness = CoreHarness(DRAW, WorkflowDefinition(name="inline", inline=True))
    harness.do(c.PutTenant(tenant="other"))
    match file_state:
        case "another user's":
            file_id = upload(harness, user="bob")
        case "another tenant's":
            file_id = upload(harness, tenant="other")
        case "uploading":
            file_id = harness.do(CREATE_UPLOAD).id
        case _:
            file_id = upload(harness) if file_state == "deleted" else "missing"
    if file_state == "deleted":
        harness.do(c.DeleteFiles(tenant="acme", file_ids=(file_id,)))
    job = harness.submit("inline", stages=[StageSpec(name="s", kind="draw")])
    stage = harness.stages(job)[0].id
    own = upload(harness)
    inputs = [input_with(own), input_with(file_id)]
    new_stage = StageSpec(name="t", kind="draw", inputs=inputs)
    commands: dict[str, c.Command] = {
        "submit": c.Submit(tenant="acme", user="ann", workflow="draw", input=input_with(own, file_id)),
        "stages": c.Submit(tenant="acme", user="ann", workflow="inline", stages=[new_stage]),
        "add_tasks": c.AddTasks(tenant="acme", job_id=job, stage_id=stage, inputs=inputs),
        "add_stage": c.AddStage(tenant="acme", job_id=job, stage=new_stage),
    }
    refusal = harness.expect_refusal(commands[how])
    assert refusal.code == ("file_not_finished" if file_state == "uploading" else "file_not_found")


def test_an_input_can_refer_to_a_limited_number_of_files() -> None:
    harness = CoreHarness(DRAW, limits=Limits(files_per_task_max=2))
    files = [upload(harness) for _ in range(3)]
    harness.submit(input=input_with(*files[:2], *files[:2]))
    submit = c.Submit(tenant="acme", user="ann", workflow="draw", input=input_with(*files))
    assert harness.expect_refusal(submit).code == "out_of_range"


# -- deletion


def test_a_file_that_an_open_job_created_or_uses_is_not_deleted() -> None:
    stages = [StageSpec(name="one", kind="draw"), StageSpec(name="two", kind="later")]
    harness = CoreHarness(DRAW, WorkflowDefinition(name="two", stages=stages, retention_seconds=60), limits=RETAINED)
    used = upload(harness)
    harness.submit(input=input_with(used))
    lease_of_user = harness.lease()
    creator = harness.submit("two")
    harness.do(c.Complete(lease=harness.lease(), files=(OUTPUT,)))
    [created] = [file.id for file in harness.all(File) if file.job_id == creator]
    for file_id in (used, created):
        assert harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(file_id,))).code == "file_in_use"
    harness.now += 60 * SECOND
    still_needed: DeletedFiles = harness.do(c.DeleteFiles(file_ids=(used, created), requested_by="retention"))
    assert (still_needed.files, still_needed.still_needed) == ((), 2)
    assert all(harness.get(File, key).expires_at == harness.now + 3_600 * SECOND for key in (used, created))
    harness.do(c.Complete(lease=lease_of_user))
    harness.do(c.Cancel(tenant="acme", job_id=creator, grace_seconds=0))
    harness.now += 3_600 * SECOND
    deleted: DeletedFiles = harness.do(c.DeleteFiles(file_ids=(used, created), requested_by="retention"))
    assert ([file.id for file in deleted.files], deleted.bytes, deleted.still_needed) == ([used, created], 17, 0)


def test_a_file_that_is_finished_just_before_retention_deletes_it_is_kept() -> None:
    """Retention selects files before it deletes them; an upload can be finished in between."""
    harness = CoreHarness(DRAW)
    late: File = harness.do(CREATE_UPLOAD)
    harness.now += Limits().upload_timeout_seconds * SECOND
    harness.do(c.FinishUpload(tenant="acme", file_id=late.id))
    assert harness.do(c.DeleteFiles(file_ids=(late.id,), requested_by="retention")) == DeletedFiles((), 0)
    assert harness.get(File, late.id).status == "ready"


def test_deletion_by_retention_is_in_the_audit_log_of_each_tenant_and_deletion_by_a_client_is_not() -> None:
    harness = CoreHarness(DRAW, limits=RETAINED)
    harness.do(c.PutTenant(tenant="other"))
    files = [upload(harness), upload(harness, bytes=5), upload(harness, tenant="other"), upload(harness)]
    harness.now += 60 * SECOND
    harness.do(c.DeleteFiles(tenant="acme", file_ids=(files[3],), requested_by="key"))
    harness.do(c.DeleteFiles(file_ids=(*files, "missing"), requested_by="retention"))
    entries = [(one.tenant, one.actor, one.action, msgspec.json.decode(one.data or "")) for one in harness.all(Audit)
               if one.action == "files.delete"]  # fmt: skip
    assert entries == [
        ("acme", "retention", "files.delete", {"files": 2, "bytes": 15}),
        ("other", "retention", "files.delete", {"files": 1, "bytes": 10}),
    ]


def test_a_file_is_deleted_once_and_only_by_its_tenant() -> None:
    harness = CoreHarness(DRAW)
    key = upload(harness)
    assert harness.expect_refusal(c.DeleteFiles(tenant="other", file_ids=(key,))).code == "file_not_found"
    assert harness.do(c.DeleteFiles(tenant="acme", file_ids=(key,))).bytes == 10
    assert harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(key,))).code == "file_not_found"
    assert harness.do(c.DeleteFiles(file_ids=(key,))) == DeletedFiles((), 0)


# -- use in workflows


def put_styled(file_id: str, **overrides: Any) -> c.PutWorkflow:
    """Return the command for a workflow whose graph refers to a file in its defaults, and to others in overrides."""
    graph = {"1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}}}
    spec = ComfySpec(
        graph=graph, inputs={"style": Target(node="1", field="image")}, defaults={"style": {"$file": file_id}},
        overrides={name: {"$file": value} for name, value in overrides.items()},
    )  # fmt: skip
    return c.PutWorkflow(
        definition=WorkflowDefinition(name="styled", stages=[StageSpec(name="draw", kind="draw", comfyui=spec)])
    )


PUT_WITHOUT_FILES = c.PutWorkflow(definition=replace(DRAW, name="styled"))


def test_a_workflow_refers_to_files_in_defaults_overrides_and_inputs() -> None:
    inputs = [{"a": {"$file": "3"}}, [{"$file": "1"}]]
    definition = put_styled("1", style="2").definition
    both = replace(definition, stages=[*definition.stages, StageSpec(name="b", kind="b", inputs=inputs)])
    assert set(workflow_file_ids(both)) == {"1", "2", "3"}


def test_a_file_is_not_deleted_while_the_current_workflow_refers_to_it() -> None:
    harness = CoreHarness(DRAW, limits=RETAINED)
    style, other = upload(harness), upload(harness)
    harness.do(put_styled(style, style=other))
    assert set(harness.all(WorkflowFile)) == {WorkflowFile("styled", 1, key) for key in (style, other)}
    for file_id in (style, other):
        refused = harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(file_id,)))
        assert (refused.code, refused.message) == (
            "file_in_use", "The file 'a.png' is used by the workflow 'styled': delete it later.",
        )  # fmt: skip
    harness.now += 60 * SECOND
    assert harness.do(c.DeleteFiles(file_ids=(style, other), requested_by="retention")) == DeletedFiles((), 2)
    harness.do(put_styled(style))
    assert harness.do(c.DeleteFiles(tenant="acme", file_ids=(other,))).bytes == 10
    harness.do(PUT_WITHOUT_FILES)
    assert harness.do(c.DeleteFiles(tenant="acme", file_ids=(style,))).bytes == 10


def test_a_file_of_an_older_version_is_kept_while_its_jobs_are_open_and_a_retry_without_it_is_refused() -> None:
    harness = CoreHarness(DRAW)
    style = upload(harness)
    harness.do(put_styled(style))
    job = harness.submit("styled")
    harness.do(PUT_WITHOUT_FILES)
    assert "'styled'" in harness.expect_refusal(c.DeleteFiles(tenant="acme", file_ids=(style,))).message
    harness.do(c.Fail(lease=harness.lease(), code="failed", message="It failed.", retryable=False))
    retry = c.Retry(tenant="acme", job_id=job, actor="admin")
    harness.do(retry)
    harness.do(c.Fail(lease=harness.lease(), code="failed", message="It failed.", retryable=False))
    harness.do(c.DeleteFiles(tenant="acme", file_ids=(style,)))
    for retrying in (retry, replace(retry, retry_as="new_job")):
        assert harness.expect_refusal(retrying).code == "file_not_found"


def test_a_job_is_not_deleted_while_a_workflow_refers_to_its_output() -> None:
    harness = CoreHarness(DRAW)
    job, lease = harness.started()
    harness.do(c.Complete(lease=lease, files=(OUTPUT,)))
    [output] = [file.id for file in harness.all(File)]
    harness.do(put_styled(output))
    delete = c.Delete(tenant="acme", job_id=job)
    refused = harness.expect_refusal(delete)
    assert (refused.code, refused.message) == (
        "file_in_use", "The file 'b.png' of this job is used by the workflow 'styled': delete it later.",
    )  # fmt: skip
    harness.do(PUT_WITHOUT_FILES)
    harness.do(delete)


@pytest.mark.parametrize("file_state", ["unknown", "uploading", "deleted", "another tenant's", "no id"])
def test_a_workflow_that_refers_to_a_missing_file_is_refused(file_state: str) -> None:
    harness = CoreHarness(DRAW)
    file_id = upload(harness)
    match file_state:
        case "unknown":
            file_id = "missing"
        case "uploading":
            file_id = harness.do(CREATE_UPLOAD).id
        case "deleted":
            harness.do(c.DeleteFiles(tenant="acme", file_ids=(file_id,)))
        case "no id":
            file_id = "a\0b"
    owner = "other" if file_state == "another tenant's" else "acme"
    refused = harness.expect_refusal(replace(put_styled(file_id), owner=owner))
    assert refused.code == "invalid_workflow"
    assert f"refers to the file {file_id!r}, but no finished file of the tenant {owner!r}" in refused.message
    if owner == "other":
        harness.do(put_styled(file_id))  # a workflow of the operator can refer to files of every tenant


def test_a_workflow_can_refer_to_a_limited_number_of_files() -> None:
    harness = CoreHarness(DRAW, limits=Limits(bulk_items_max=1))
    refused = harness.expect_refusal(put_styled(upload(harness), style=upload(harness)))
    assert (refused.code, "the number of files that 'styled' names" in refused.message) == ("out_of_range", True)


@pytest.mark.parametrize("first", ["put", "delete"])
def test_of_a_reference_and_a_deletion_in_one_batch_the_first_wins(first: str) -> None:
    harness = CoreHarness(DRAW)
    file_id = upload(harness)
    both: list[c.Command] = [put_styled(file_id), c.DeleteFiles(tenant="acme", file_ids=(file_id,))]
    results = harness.batch(*(both if first == "put" else both[::-1]))
    assert [isinstance(result, Refusal) for result in results] == [False, True]
