"""`callsheet workers autoscale`: scales up at once, down after the cooldown, and never below the busy workers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callsheet.cli.commands.fleet.autoscale import Autoscaler, ScaleTarget, decide_target
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import StageSpec, WorkflowDefinition
from callsheet.core.policy.autoscale import KindObservation, ScaleSignals, ScalingTarget, compute_signals
from tests.cli.conftest import Run, invoke_cli
from tests.client.stub_server import ScriptedResponse, StubServer, problem
from tests.support.processes.live_server import LiveServer
from tests.support.wait import wait_until

COOLDOWN_SECONDS = 300.0
_windows = count(1_000)


def signals(recommended: int, *, workers: int = 0, busy: int = 0, safe: bool = True) -> ScaleSignals:
    """Return the signals of a kind that recommend so many workers."""
    observation = KindObservation(
        kind="gpu", workers=workers, busy=busy, running=busy, capacity=workers, ready=0 if safe else 1
    )
    found = compute_signals(observation, ScalingTarget(wait_seconds=60, workers_min=recommended))
    assert (found.recommended_workers, found.scale_down_safe) == (max(recommended, busy), safe)
    return found


def desired_after(*checks: tuple[float, ScaleSignals]) -> list[int]:
    """Return the desired number of workers after each check."""
    target: ScaleTarget | None = None
    desired = []
    for now, observed in checks:
        target = decide_target(target, observed, now, COOLDOWN_SECONDS)
        desired.append(target.desired)
    return desired


# -- the decision about the number of workers


def test_scaling_up_happens_at_once() -> None:
    assert desired_after((0, signals(3)), (1, signals(7, safe=False)), (2, signals(7))) == [3, 7, 7]


def test_scaling_down_happens_after_the_cooldown() -> None:
    checks = [(at, signals(2, workers=9)) for at in (0, 100, 299, 300)]
    assert desired_after(*checks) == [9, 9, 9, 2]


def test_scaling_down_keeps_the_most_workers_that_the_cooldown_needed() -> None:
    needs = [(0, 2), (100, 5), (200, 1), (300, 1), (400, 1)]
    checks = [(float(at), signals(need, workers=9)) for at, need in needs]
    assert desired_after(*checks) == [9, 9, 9, 5, 5]


def test_a_waiting_task_restarts_the_cooldown() -> None:
    checks = [(0, signals(2, workers=9)), (200, signals(2, workers=9, safe=False)), (301, signals(2, workers=9)),
             (600, signals(2, workers=9)), (601, signals(2, workers=9))]  # fmt: skip
    assert desired_after(*checks) == [9, 9, 9, 9, 2]


def test_busy_workers_are_never_scaled_down() -> None:
    assert desired_after((0, signals(0, workers=9, busy=4)), (300, signals(0, workers=9, busy=4))) == [9, 4]
    wrong = replace(signals(0, workers=9, busy=4), recommended_workers=0)
    assert desired_after((0, wrong), (300, wrong)) == [9, 4], "even if the server recommends fewer"


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_the_desired_number_is_never_below_the_needed_or_busy_workers(checks: list[tuple[int, int, int, bool]]) -> None:
    target: ScaleTarget | None = None
    now = 0
    for passed, need, busy, safe in checks:
        now += passed
        observed = signals(max(need, 0 if safe else 1), workers=9, busy=busy, safe=safe)
        before, target = target, decide_target(target, observed, now, COOLDOWN_SECONDS)
        assert target.desired >= max(observed.recommended_workers, busy)
        if before is not None and target.desired < before.desired:
            assert observed.scale_down_safe
            assert now - (before.scale_down_since or now) >= COOLDOWN_SECONDS or COOLDOWN_SECONDS == 0


# -- the command that changes the number of workers


def make_autoscaler(
    tmp_path: Path, checks: Sequence[ScaleSignals], *words: str, cooldown: float = 0
) -> tuple[Autoscaler, Path]:
    """Return an autoscaler that observes these signals, and the file that its command writes to."""
    file = tmp_path / "executed.txt"
    script = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + chr(10))"
    remaining = iter(checks)
    command = words or (sys.executable, "-c", script, str(file), "{kind}", "{desired}", "--of={workers}")
    return Autoscaler(lambda: [next(remaining)], command, cooldown), file


def test_the_command_runs_only_when_the_number_changes(tmp_path: Path) -> None:
    checks = [signals(0), signals(2), signals(2, workers=1), signals(0, workers=2)]
    autoscaler, file = make_autoscaler(tmp_path, checks)
    decisions = [autoscaler.check()[0] for _ in checks]
    assert [(one.desired, one.executed) for one in decisions] == [(0, False), (2, True), (2, False), (0, True)]
    assert file.read_text().splitlines() == ["gpu 2 --of=0", "gpu 0 --of=2"]


def test_a_command_that_failed_runs_again_at_the_next_check(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('no quota'); sys.exit(3)"
    autoscaler, _ = make_autoscaler(tmp_path, [signals(2), signals(2)], sys.executable, "-c", script, "{desired}")
    for _ in range(2):
        (decision,) = autoscaler.check()
        assert (decision.executed, decision.error) == (False, f"{sys.executable} exited with 3: no quota.")
        assert decision.reason.endswith("no quota.")
    absent, _ = make_autoscaler(tmp_path, [signals(2)], str(tmp_path / "nothing"), "{desired}")
    assert absent.check()[0].error == f"{tmp_path / 'nothing'}: No such file or directory."


def test_the_command_is_run_without_a_shell(tmp_path: Path) -> None:
    autoscaler, file = make_autoscaler(tmp_path, [signals(2)])
    assert autoscaler.check()[0].executed
    assert file.read_text() == "gpu 2 --of=0\n"
    script = "import sys; sys.exit(sys.argv[1] != '$(2)')"
    quoted, _ = make_autoscaler(tmp_path, [signals(2)], sys.executable, "-c", script, "$({desired})")
    assert quoted.check()[0].error is None


# -- against a server


def window_option() -> list[str]:
    """Return the option for a window that no other call uses, because the server caches signals by window."""
    return ["--window", str(next(_windows))]


def submit_tasks(live_server: LiveServer, kind: str, tasks: int) -> None:
    definition = WorkflowDefinition(name=kind, stages=[StageSpec(name="make", kind=kind, tasks=tasks)])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    live_server.submit(workflow=kind)


def test_the_desired_number_and_its_reason_are_printed(live_server: LiveServer, run: Run) -> None:
    submit_tasks(live_server, "weld", 3)
    done = run("workers", "autoscale", "--kind", "weld", "--dry-run", *window_option(), role="operator")
    heads, line = done.out.splitlines()
    assert heads.split() == ["KIND", "DEPTH", "OLDEST", "RUNNING", "WORKERS", "DESIRED", "REASON"]
    kind, depth, _, _, running, workers, desired, *reason = line.split()
    assert (kind, depth, running, workers, desired) == ("weld", "3", "0", "0", "1")
    assert " ".join(reason) == "3 tasks wait, 0 run; the duration is not known yet, so start with one."
    words = ["workers", "autoscale", "--kind", "weld", "--json", "--max", "1", *window_option()]
    (kind,) = run(*words, role="operator").json["kinds"]
    assert (kind["kind"], kind["desired"], kind["executed"], kind["signals"]["depth"]) == ("weld", 1, False, 3)


def test_a_dry_run_does_not_run_the_command(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
    submit_tasks(live_server, "solder", 1)
    file = tmp_path / "desired"
    words = ["workers", "autoscale", *window_option(), "--kind", "solder", "--min", "2", "--exec",
             f"touch {file}.{{kind}}.{{desired}}"]  # fmt: skip
    dry = run(*words, "--dry-run", role="operator")
    assert (dry.code, list(tmp_path.iterdir())) == (0, [])
    done = run(*words, "--once", "--json", role="operator").json["kinds"]
    assert ([(one["desired"], one["executed"]) for one in done], [one.name for one in tmp_path.iterdir()]) == (
        [(2, True)], ["desired.solder.2"],
    )  # fmt: skip
    failed = run(*words[:-1], "false {desired}", role="operator")
    assert (failed.code, "false exited with 1" in failed.out) == (1, True)


def test_a_single_check_scales_down_only_without_a_cooldown(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
    live_server.engine.execute(commands.Register(worker_id="s1", kinds=("rivet",), token_hash="rivet", concurrency=1))
    words = [
        "workers",
        "autoscale",
        *window_option(),
        "--kind",
        "rivet",
        "--json",
        "--exec",
        f"touch {tmp_path}/{{desired}}",
    ]
    (unchanged,) = run(*words, role="operator").json["kinds"]
    assert (unchanged["desired"], unchanged["reason"], list(tmp_path.iterdir())) == (
        1, "Nothing waits and nothing runs. Fewer would be enough; waiting for the cooldown.", [],
    )  # fmt: skip
    (reduced,) = run(*words, "--cooldown", "0", role="operator").json["kinds"]
    assert (reduced["desired"], [one.name for one in tmp_path.iterdir()]) == (0, ["0"])


@pytest.mark.parametrize(
    "words",
    [
        ["--once", "--interval", "5"], ["--min", "3", "--max", "2"], ["--exec", "scale up"], ["--exec",
        "scale '{desired}"],
        ["--interval", "0"], ["--target-wait", "0"],
    ],
)  # fmt: skip
def test_invalid_options_are_a_usage_error_before_any_request(words: list[str]) -> None:
    assert invoke_cli("workers", "autoscale", *words, "--url", "http://127.0.0.1:9", "--api-key", "x").code == 2


def test_only_an_operator_may_autoscale(run: Run) -> None:
    refused = run("workers", "autoscale", "--interval", "1", role="admin")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


def scale_body(**fields: Any) -> dict[str, Any]:
    """Return the server's answer about one kind."""
    one = compute_signals(KindObservation(kind="gpu", **fields), ScalingTarget(wait_seconds=60))
    body = {name: getattr(one, name) for name in one.__struct_fields__}
    return {
        "measured_at": "2026-01-31T12:00:00.000Z",
        "window_seconds": 600,
        "target_wait_seconds": 60,
        "kinds": [body],
    }


def test_it_keeps_polling_while_the_server_fails_until_it_is_stopped(tmp_path: Path) -> None:
    with StubServer() as stub:
        stub.responses = [
            ScriptedResponse(200, scale_body()),
            problem(500, "internal_error"),
            ScriptedResponse(200, scale_body(ready=1, startable=1)),
        ]
        words = [
            sys.executable, "-c", "from callsheet.cli.main import main; main()", "workers", "autoscale",
            "--interval", "1", "--json", "--url", stub.url, "--api-key", "cs_x",
            "--exec", f"touch {tmp_path}/{{desired}}",
        ]  # fmt: skip
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
            try:
                wait_until((tmp_path / "1").exists, within_seconds=60)
            finally:
                process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (
            0,
            "callsheet: Not now. Autoscaling is paused until the server responds.\n",
        )
        checks = [json.loads(line)["kinds"][0] for line in out.splitlines()]
        assert [(one["desired"], one["executed"]) for one in checks[:2]] == [(0, False), (1, True)]
