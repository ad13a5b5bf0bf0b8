"""`callsheet workers autoscale`: say how many workers each kind needs, and have a command see to it.

More are wanted at once. Fewer are wanted only after a while in which fewer would have done all the time, and then as
many as were needed at most in that while; never fewer than are busy.
"""

import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from msgspec import Struct
from msgspec.structs import replace

from callsheet.cli.ending import Ending
from callsheet.cli.fleet import workers
from callsheet.cli.output import FAILED, as_json, one_line, say, table
from callsheet.cli.server import Server, command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from callsheet.core.scaling import Signals

_COMMAND_SECONDS = 120.0
_PLACES = ("{kind}", "{wanted}", "{workers}")
_OURS = range(400, 429)
"""Statuses that say that the call or the key is wrong: to ask again would not help."""


class Wish(Struct, frozen=True):
    """How many workers of one kind were asked for last, and since when fewer would do."""

    wanted: int
    fewer_since: float | None = None
    needed: int = 0
    """The most that were needed since then."""


def steer(before: Wish | None, seen: "Signals", now: float, cool_down: float) -> Wish:
    """Decide how many workers are wanted now."""
    wish = before or Wish(seen.workers)  # whoever is there when we come was wanted by somebody
    needed = max(seen.recommended_workers, seen.busy_workers)
    if needed >= wish.wanted:
        return Wish(needed)
    if not seen.scale_down_safe:
        return Wish(wish.wanted)
    since = now if wish.fewer_since is None else wish.fewer_since
    most = max(needed, wish.needed if wish.fewer_since is not None else 0)
    if now - since < cool_down:
        return replace(wish, fewer_since=since, needed=most)
    return Wish(most)


class Seen(NamedTuple):
    """One kind after a look: what the server says, what is wanted, whether the command had to be run for it."""

    signals: "Signals"
    wanted: int
    told: bool
    trouble: str | None = None

    @property
    def why(self) -> str:
        said = self.signals.reason
        if self.trouble is not None:
            return f"{said} {self.trouble}"
        if self.wanted > max(self.signals.recommended_workers, self.signals.busy_workers):
            return f"{said} Fewer would do, if it stays so."
        return said


class Autoscaler:
    """Looks, decides, and tells a command."""

    def __init__(
        self, look: "Callable[[], Sequence[Signals]]", words: "Sequence[str]", cool_down: float,
        clock: "Callable[[], float]" = time.monotonic,
    ) -> None:  # fmt: skip
        self._look = look
        self._words = words
        self._cool_down = cool_down
        self._clock = clock
        self._wishes: dict[str, Wish] = {}

    def look(self) -> list[Seen]:
        """Look once at every kind; what a command could not do is tried again at the next look."""
        return [self._seen(one) for one in self._look()]

    def _seen(self, one: "Signals") -> Seen:
        before = self._wishes.get(one.kind)
        wish = steer(before, one, self._clock(), self._cool_down)
        changed = wish.wanted != (one.workers if before is None else before.wanted)
        trouble = None
        if changed and self._words:
            trouble = _told(self._words, one, wish.wanted)
        if trouble is None:
            self._wishes[one.kind] = wish
        return Seen(one, wish.wanted, changed and bool(self._words) and trouble is None, trouble)


def _told(words: "Sequence[str]", one: "Signals", wanted: int) -> str | None:
    """Run the command; return what went wrong."""
    values = (one.kind, str(wanted), str(one.workers))
    filled = list(words)
    for place, value in zip(_PLACES, values, strict=True):
        filled = [word.replace(place, value) for word in filled]
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command, and no shell
            filled, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", timeout=_COMMAND_SECONDS, check=False,
        )  # fmt: skip
    except OSError as error:
        return f"{filled[0]}: {error.strerror}."
    except subprocess.TimeoutExpired:
        return f"{filled[0]} took longer than {_COMMAND_SECONDS:.0f} seconds."
    if not done.returncode:
        return None
    last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
    return f"{filled[0]} ended with {done.returncode}: {last[0]}."


# -- the command


def register(_app: typer.Typer) -> None:
    """Add the command to those of the fleet."""
    command(workers)(autoscale)


def autoscale(  # noqa: PLR0913 - one per option of the command
    server: Server,
    *,
    kind: Annotated[str, typer.Option("--kind", help="Only this kind; by default every kind.")] = "",
    target_wait: Annotated[
        float | None,
        typer.Option("--target-wait", min=1, help="Seconds that a task may wait; by default the server's."),
    ] = None,
    window: Annotated[int | None, typer.Option("--window", min=1, help="Seconds to look back for durations.")] = None,
    least: Annotated[int, typer.Option("--min", min=0, help="Never want fewer workers of a kind.")] = 0,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Never want more, unless more are busy.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, help="Tasks that one worker does at once."),
    ] = None,
    execute: Annotated[
        str,
        typer.Option("--exec", help="Run this when the number changes, with {kind} and {wanted} filled in."),
    ] = "",
    cool_down: Annotated[
        float, typer.Option("--cool-down", min=0, help="Seconds that fewer must do before fewer are wanted.")
    ] = 300,
    every: Annotated[float | None, typer.Option("--every", min=1, help="Look again after so many seconds.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once; that is so without --every.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print; run nothing.")] = False,
) -> None:
    """Say how many workers each kind needs, and why.

    With --exec a command sees to it. A single look wants fewer workers only with --cool-down 0: it cannot know for how
    long fewer would have done.
    """
    if once and every is not None:
        raise typer.BadParameter("--once and --every exclude each other.")
    if most is not None and least > most:
        raise typer.BadParameter("--min is more than --max.")
    words = _words(execute)
    with server.client(patient=True) as client:
        scaler = Autoscaler(
            lambda: client.scale(
                kind, target_wait_seconds=target_wait, window_seconds=window, workers_min=least, workers_max=most,
                concurrency=concurrency,
            ).kinds,
            () if dry_run else words, cool_down,
        )  # fmt: skip
        if every is None:
            seen = scaler.look()
            _show(seen, server, again=False)
            if any(one.trouble for one in seen):
                raise typer.Exit(FAILED)
            return
        _keep_looking(scaler, server, every)


def _keep_looking(scaler: Autoscaler, server: Server, every: float) -> None:
    """Look until somebody asks for the end; a server that is away for a while is waited for."""
    from callsheet.client import CallsheetError  # noqa: PLC0415 - brings httpx

    with Ending() as ending:
        while not ending.asked:
            try:
                _show(scaler.look(), server, again=True)
            except CallsheetError as error:
                if error.status in _OURS:
                    raise
                sys.stderr.write(f"callsheet: {error.message} Nothing is decided meanwhile.\n")
            ending.wait(every)


def _words(execute: str) -> list[str]:
    try:
        words = shlex.split(execute)
    except ValueError as error:
        raise typer.BadParameter(f"--exec cannot be read: {error}.") from None
    if words and not any("{wanted}" in word for word in words):
        raise typer.BadParameter("--exec says nowhere how many: put {wanted} into it.")
    return words


def _show(seen: "Sequence[Seen]", server: Server, *, again: bool) -> None:
    if server.json:
        body = {
            "kinds": [
                {
                    "kind": one.signals.kind,
                    "wanted": one.wanted,
                    "told": one.told,
                    "why": one.why,
                    "signals": one.signals,
                }
                for one in seen
            ]
        }
        if again:
            say(one_line(body))
        else:
            as_json(body)
        sys.stdout.flush()
        return
    table(
        ("KIND", "DEPTH", "OLDEST", "RUNNING", "WORKERS", "WANTED", "WHY"),
        ((one.signals.kind, one.signals.depth, _age(one.signals), one.signals.running, one.signals.workers, one.wanted,
          one.why) for one in seen),
        empty="No kind of work is known yet.",
        least=("OLDEST", "RUNNING", "DEPTH"),
        text=("WHY",),
    )  # fmt: skip
    sys.stdout.flush()


def _age(one: "Signals") -> str:
    return "" if one.oldest_wait_seconds is None else f"{one.oldest_wait_seconds:.0f} s"
