"""The autoscaling guide: its YAML, JSON and scripts are valid and name existing routes, metrics and options."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from callsheet.api.scaling import ScaleQuery
from callsheet.core.policy.autoscale import KindObservation, ScaleSignals, ScalingTarget, compute_signals
from callsheet.http.metrics import Metrics, MetricsSnapshot
from tests.cli.command_tree import commands
from tests.cli.conftest import invoke_cli
from tests.support.tidiness.tidy import ROOT

PAGE = ROOT / "docs" / "guides" / "autoscaling.md"
TEXT = PAGE.read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    return [body for name, body in BLOCK.findall(TEXT) if name == kind]


def documents() -> list[dict[str, Any]]:
    return [document for block in blocks("yaml") for document in yaml.safe_load_all(block)]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents() if document.get("kind") == kind]
    return found


def options(*words: str) -> set[str]:
    (command,) = [one for name, one in commands() if name == words]
    return {text for parameter in command.params for text in parameter.opts}


def test_every_yaml_document_is_valid_and_consistent() -> None:
    assert len(documents()) >= 6
    scaled, deployed = of_kind("ScaledObject")["spec"], of_kind("Deployment")["spec"]["template"]["spec"]
    assert of_kind("ScaledObject")["spec"]["scaleTargetRef"]["name"] == of_kind("Deployment")["metadata"]["name"]
    assert of_kind("TriggerAuthentication")["metadata"]["name"] == scaled["triggers"][0]["authenticationRef"]["name"]
    words = deployed["containers"][0]["command"]
    grace = int(words[words.index("--grace") + 1])
    assert grace < deployed["terminationGracePeriodSeconds"], "a pod must have longer than its worker needs"


def test_the_keda_trigger_uses_existing_parameters_and_fields() -> None:
    metadata = of_kind("ScaledObject")["spec"]["triggers"][0]["metadata"]
    url, _, query = metadata["url"].partition("?")
    assert url.endswith("/v1/admin/scale")
    assert {pair.partition("=")[0] for pair in query.split("&")} <= set(ScaleQuery.__struct_fields__)
    kinds, first, field = metadata["valueLocation"].split(".")
    assert (kinds, first, field in ScaleSignals.__struct_fields__) == ("kinds", "0", True)
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA accepts strings only"


def test_every_metric_on_the_page_exists() -> None:
    full = compute_signals(
        KindObservation(kind="gpu", ready=1, oldest_wait=1, capacity=1, attempt_durations=[1]),
        ScalingTarget(wait_seconds=60),
    )
    scraped = Metrics().text(MetricsSnapshot(0, signals=[full])).decode()
    named = set(re.findall(r"callsheet_queue_\w+", TEXT))
    assert named
    assert [name for name in named if f"\n{name}{{" not in scraped] == []


def test_every_field_of_the_signals_is_on_the_page() -> None:
    missing = [name for name in ScaleSignals.__struct_fields__ if f"`{name}`" not in TEXT and name != "kind"]
    assert missing == []


def test_every_json_block_is_valid() -> None:
    policies = [json.loads(block) for block in blocks("json")]
    assert [policy["TargetValue"] for policy in policies] == [1.0]


@pytest.mark.parametrize("number", range(len(blocks("sh"))))
def test_every_script_is_valid_shell(number: int, tmp_path: Path) -> None:
    file = tmp_path / "script.sh"
    file.write_text(blocks("sh")[number])
    result = subprocess.run(["/bin/sh", "-n", file], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_unit_uses_existing_options() -> None:
    lines = re.findall(r"^ExecStart=/usr/local/bin/callsheet (.+)$", TEXT, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        known = options("worker") if words[0] == "worker" else options("workers", "autoscale")
        assert {word for word in words if word.startswith("--")} <= known, line
    deployed = of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]["command"]
    composed = next(one for one in documents() if "services" in one)["services"]["worker"]["command"]
    for words in (deployed, composed):
        assert {word for word in words if word.startswith("--")} <= options("worker")


def test_the_autoscale_command_on_the_page_is_accepted() -> None:
    found = re.search(r"^callsheet (workers autoscale --kind gpu .+?[^\\])$", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", " "))
    refused = invoke_cli(*words, "--url", "invalid", "--api-key", "x")
    assert (refused.code, refused.err.partition(":")[2][:30]) == (2, " 'invalid' is not a server URL")


@pytest.mark.parametrize("text", ["a: [", "a:\n\tb: 1", "{a: b"])
def test_invalid_yaml_is_found(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        list(yaml.safe_load_all(text))
