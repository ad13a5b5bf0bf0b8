"""`callsheet workers autoscale`: more at once, fewer after a while, the busy never; and a command that sees to it."""

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

COOL = 300.0
_windows = count(1_000)


def executed(recommended: int, *, workers: int = 0, busy: int = 0, safe: bool = True) -> ScaleSignals:
    """Return signals of which only these matter."""
    seen = KindObservation(
        kind="gpu", workers=workers, busy=busy, running=busy, capacity=workers, ready=0 if safe else 1
    )
    found = compute_signals(seen, ScalingTarget(wait_seconds=60, workers_min=recommended))
    assert (found.recommended_workers, found.scale_down_safe) == (max(recommended, busy), safe)
    return found


def wanted_after(*looks: tuple[float, ScaleSignals]) -> list[int]:
    """Return what is desired after each look."""
    wish: ScaleTarget | None = None
    desired = []
    for now, seen in looks:
        wish = decide_target(wish, seen, now, COOL)
        desired.append(wish.desired)
    return desired


# -- the decision


def test_more_are_wanted_at_once() -> None:
    assert wanted_after((0, executed(3)), (1, executed(7, safe=False)), (2, executed(7))) == [3, 7, 7]


def test_fewer_are_wanted_after_a_while_in_which_fewer_would_have_done() -> None:
    looks = [(at, executed(2, workers=9)) for at in (0, 100, 299, 300)]
    assert wanted_after(*looks) == [9, 9, 9, 2]


def test_as_many_stay_as_were_needed_at_most_in_that_while() -> None:
    needs = [(0, 2), (100, 5), (200, 1), (300, 1), (400, 1)]
    looks = [(float(at), executed(need, workers=9)) for at, need in needs]
    assert wanted_after(*looks) == [9, 9, 9, 5, 5]


def test_whoever_waits_meanwhile_begins_the_while_anew() -> None:
    looks = [(0, executed(2, workers=9)), (200, executed(2, workers=9, safe=False)), (301, executed(2, workers=9)),
             (600, executed(2, workers=9)), (601, executed(2, workers=9))]  # fmt: skip
    assert wanted_after(*looks) == [9, 9, 9, 9, 2]


def test_the_busy_are_never_let_go() -> None:
    assert wanted_after((0, executed(0, workers=9, busy=4)), (300, executed(0, workers=9, busy=4))) == [9, 4]
    wrong = replace(executed(0, workers=9, busy=4), recommended_workers=0)
    assert wanted_after((0, wrong), (300, wrong)) == [9, 4], "whatever a server recommends"


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_never_fewer_than_are_needed_or_busy(looks: list[tuple[int, int, int, bool]]) -> None:
    wish: ScaleTarget | None = None
    now = 0
    for passed, need, busy, safe in looks:
        now += passed
        seen = executed(max(need, 0 if safe else 1), workers=9, busy=busy, safe=safe)
        before, wish = wish, decide_target(wish, seen, now, COOL)
        assert wish.desired >= max(seen.recommended_workers, busy)
        if before is not None and wish.desired < before.desired:
            assert seen.scale_down_safe
            assert now - (before.scale_down_since or now) >= COOL or COOL == 0


# -- the command that sees to it


def scaler(tmp_path: Path, looks: Sequence[ScaleSignals], *words: str, cool_down: float = 0) -> tuple[Autoscaler, Path]:
    """Return an autoscaler that is shown one kind after the other, and the file that its command writes to."""
    file = tmp_path / "executed.txt"
    script = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + chr(10))"
    shown = iter(looks)
    given_words = words or (sys.executable, "-c", script, str(file), "{kind}", "{desired}", "--of={workers}")
    return Autoscaler(lambda: [next(shown)], given_words, cool_down), file


def test_a_command_is_run_when_the_number_changes_and_only_then(tmp_path: Path) -> None:
    looks = [executed(0), executed(2), executed(2, workers=1), executed(0, workers=2)]
    scaling, file = scaler(tmp_path, looks)
    seen = [scaling.check()[0] for _ in looks]
    assert [(one.desired, one.executed) for one in seen] == [(0, False), (2, True), (2, False), (0, True)]
    assert file.read_text().splitlines() == ["gpu 2 --of=0", "gpu 0 --of=2"]


def test_a_command_that_fails_is_run_again_at_the_next_look(tmp_path: Path) -> None:
    script = "import sys; sys.stderr.write('no quota'); sys.exit(3)"
    scaling, _ = scaler(tmp_path, [executed(2), executed(2)], sys.executable, "-c", script, "{desired}")
    for _ in range(2):
        (seen,) = scaling.check()
        assert (seen.executed, seen.error) == (False, f"{sys.executable} ended with 3: no quota.")
        assert seen.reason.endswith("no quota.")
    absent, _ = scaler(tmp_path, [executed(2)], str(tmp_path / "nothing"), "{desired}")
    assert absent.check()[0].error == f"{tmp_path / 'nothing'}: No such file or directory."


def test_nothing_of_a_kind_is_read_by_a_shell(tmp_path: Path) -> None:
    scaling, file = scaler(tmp_path, [executed(2)])
    assert scaling.check()[0].executed
    assert file.read_text() == "gpu 2 --of=0\n"
    quoted, _ = scaler(tmp_path, [executed(2)], sys.executable, "-c", "import sys; sys.exit(sys.argv[1] != '$(2)')",
                       "$({desired})")  # fmt: skip
    assert quoted.check()[0].error is None


# -- against a server


def window_option() -> list[str]:
    """Return the option for a window of its own: what a server keeps for a second is kept by window."""
    return ["--window", str(next(_windows))]


def submit_tasks(live_server: LiveServer, kind: str, tasks: int) -> None:
    definition = WorkflowDefinition(name=kind, stages=[StageSpec(name="make", kind=kind, tasks=tasks)])
    live_server.engine.execute(commands.PutWorkflow(definition=definition))
    live_server.submit(workflow=kind)


def test_what_is_wanted_and_why_is_printed(live_server: LiveServer, run: Run) -> None:
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


def test_a_dry_run_runs_nothing_and_a_real_one_does(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
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
    assert (failed.code, "false ended with 1" in failed.out) == (1, True)


def test_a_single_look_lets_nobody_go_unless_it_may_at_once(live_server: LiveServer, run: Run, tmp_path: Path) -> None:
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
    (kept,) = run(*words, role="operator").json["kinds"]
    assert (kept["desired"], kept["reason"], list(tmp_path.iterdir())) == (
        1, "Nothing waits and nothing runs. Fewer would do; waiting for the cooldown.", [],
    )  # fmt: skip
    (gone,) = run(*words, "--cooldown", "0", role="operator").json["kinds"]
    assert (gone["desired"], [one.name for one in tmp_path.iterdir()]) == (0, ["0"])


@pytest.mark.parametrize(
    "words",
    [
        ["--once", "--interval", "5"], ["--min", "3", "--max", "2"], ["--exec", "scale up"], ["--exec",
        "scale '{desired}"],
        ["--interval", "0"], ["--target-wait", "0"],
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_before_anybody_is_asked(words: list[str]) -> None:
    assert invoke_cli("workers", "autoscale", *words, "--url", "http://127.0.0.1:9", "--api-key", "x").code == 2


def test_only_an_operator_scales(run: Run) -> None:
    refused = run("workers", "autoscale", "--interval", "1", role="admin")
    assert (refused.code, refused.err.count("\n")) == (1, 1)


def kinds(**fields: Any) -> dict[str, Any]:
    one = compute_signals(KindObservation(kind="gpu", **fields), ScalingTarget(wait_seconds=60))
    body = {name: getattr(one, name) for name in one.__struct_fields__}
    return {
        "measured_at": "2026-01-31T12:00:00.000Z",
        "window_seconds": 600,
        "target_wait_seconds": 60,
        "kinds": [body],
    }


def test_it_goes_on_polling_while_the_server_is_away_until_it_is_stopped(tmp_path: Path) -> None:
    with StubServer() as stub:
        stub.responses = [
            ScriptedResponse(200, kinds()),
            problem(500, "internal_error"),
            ScriptedResponse(200, kinds(ready=1, startable=1)),
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
        assert (process.returncode, err) == (0, "callsheet: Not now. Autoscaling is paused until the server answers.\n")
        looks = [json.loads(line)["kinds"][0] for line in out.splitlines()]
        assert [(one["desired"], one["executed"]) for one in looks[:2]] == [(0, False), (1, True)]
