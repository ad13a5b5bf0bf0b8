"""Texts that no database can store are refused in every field of every command, at any depth."""

from typing import Any

import pytest

from callsheet.core.model import commands
from callsheet.core.model.comfyui_graph import ComfySpec
from callsheet.core.model.commands import Command, Lease, Outcome, OutputFile
from callsheet.core.model.errors import BadInput
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.request_validation import encode_bounded, encode_input
from callsheet.core.policy.storable_text import check_storable

UNSTORABLE = ["\0", "a\0b", "\\\0", "\\\\\0", "\ud800", "a\udfff", "\ud83c x"]
STORABLE = ["", "a", "\\u0000", "\\\\u0000", "u0000", "\x01\x7f\x85", "\u202e", "\U0001f3ac", "\ufeff"]
LEASE = Lease("job", "task", 1, "token")


def commands_with(text: str) -> dict[str, Command]:
    """Return commands that contain a text in a place of their own."""
    job: dict[str, Any] = {"tenant": "t", "user": "u", "workflow": "w"}
    stage = StageSpec(name="s", kind="k")
    output = OutputFile(1, text, "image/png", 1, "0" * 64)

    def definition(**fields: Any) -> WorkflowDefinition:
        return WorkflowDefinition(name="w", **({"stages": [stage]} | fields))

    return {
        "input": commands.Submit(**job, input={"a": [{"b": text}]}),
        "a name in the input": commands.Submit(**job, input={"a": [{text: 1}]}),
        "metadata": commands.Submit(**job, metadata={"a": text}),
        "a name in the metadata": commands.Submit(**job, metadata={text: 1}),
        "labels": commands.Submit(**job, labels={"a": text}),
        "a name of a label": commands.Submit(**job, labels={text: "a"}),
        "trace": commands.Submit(**job, trace={"traceparent": text}),
        "the input of a stage": commands.Submit(**job, stages=[StageSpec(name="s", kind="k", inputs=[{"a": text}])]),
        "the metadata of an update": commands.Update(tenant="t", job_id="j", metadata={"a": text}),
        "the input of a task": commands.AddTasks(tenant="t", job_id="j", stage_id="s", inputs=[{"a": text}]),
        "an output": commands.Complete(lease=LEASE, output={"a": text}),
        "a name of an output file": commands.Complete(lease=LEASE, files=(output,)),
        "a log line": commands.Heartbeat(lease=LEASE, log=("a", text)),
        "capabilities": commands.Register(worker_id="w", kinds=("k",), token_hash="h", capabilities={"a": [text]}),
        "labels of a worker": commands.Register(worker_id="w", kinds=("k",), token_hash="h", labels={"a": text}),
        "a schema": commands.PutWorkflow(definition=definition(input_schema={"description": text})),
        "a graph": commands.PutWorkflow(
            definition=definition(stages=[StageSpec(name="s", kind="k", comfyui=ComfySpec(graph={"1": {"a": text}}))])
        ),
        "an outcome": commands.ReportOutcome(call_id="c", job_id="j", outcome=Outcome("completed", output={"a": text})),
    }


PLACES = list(commands_with(""))


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
@pytest.mark.parametrize("place", PLACES)
def test_a_text_that_cannot_be_stored_is_refused(place: str, text: str) -> None:
    with pytest.raises(BadInput, match="contains a NUL character or a lone surrogate") as refused:
        check_storable(commands_with(text)[place])
    assert refused.value.code == "invalid_text"


@pytest.mark.parametrize("text", STORABLE, ids=ascii)
@pytest.mark.parametrize("place", PLACES)
def test_other_texts_are_accepted(place: str, text: str) -> None:
    check_storable(commands_with(text)[place])


def test_a_value_that_is_not_json_does_not_hide_another_field() -> None:
    with pytest.raises(BadInput, match="`user`"):
        check_storable(commands.Submit(tenant="t", user="a\0", workflow="w", input=object()))
    check_storable(commands.Submit(tenant="t", user="a", workflow="w", input=object()))


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
def test_free_json_is_checked_without_a_command(text: str) -> None:
    """A quote validates an input, but runs no command."""
    for value in ({"a": text}, {text: 1}):
        with pytest.raises(BadInput) as refused:
            encode_input(value, Limits())
        assert refused.value.code == "invalid_text"
        with pytest.raises(BadInput) as refused:
            encode_bounded("metadata", value, 1_000)
        assert refused.value.code == "invalid_text"
