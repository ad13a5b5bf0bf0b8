"""The three machines. Every legal move is a row here; nothing else names a target status.

Read a row as: in `source`, when `event` happens, one of `actors` may take it to the event's target.
The exhaustive test, the diagrams in the docs and the split between users and system all come from these rows.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from callsheet.core.errors import IllegalMove

Actor = Literal["user", "admin", "worker", "system"]
NEW = "new"
_DONE = {
    "approve": "be approved", "cancel": "be canceled", "hold": "be made to wait", "pause": "be paused",
    "resume": "be resumed", "retry": "be tried again",
}  # fmt: skip
"""What people ask for, in words."""
_PEOPLE: tuple[Actor, ...] = ("user", "admin")


class Move(NamedTuple):
    """One row of a machine's table."""

    source: str
    event: str
    target: str
    actors: tuple[Actor, ...]


class Machine:
    """A table of moves, indexed by source and event."""

    def __init__(self, entity: str, terminal: Iterable[str], moves: Iterable[Move]) -> None:
        self.entity = entity
        self.terminal = frozenset(terminal)
        self.moves = tuple(moves)
        self.statuses = tuple(dict.fromkeys(s for m in self.moves for s in (m.source, m.target) if s != NEW))
        self._by_event: Mapping[tuple[str, str], Move] = {(m.source, m.event): m for m in self.moves}
        self._target: Mapping[str, str] = {m.event: m.target for m in self.moves}

    def step(self, source: str, event: str, actor: Actor) -> str:
        """Return the status after `event`, or refuse it by name."""
        move = self._by_event.get((source, event))
        if move is None or actor not in move.actors:
            raise IllegalMove(self.entity, source, self._target[event], actor, said=self._why_not(source, event, actor))
        return move.target

    def _why_not(self, source: str, event: str, actor: Actor) -> str:
        """Say why not, and when it could be."""
        done = _DONE.get(event, f"become {self._target[event]}")
        could = [m.source for m in self.moves if m.event == event and actor in m.actors and m.source != NEW]
        when = f" Only one that is {' or '.join(could)} can." if could else f" The {actor} may not do that."
        return f"The {self.entity} is {source}: it cannot {done}.{when}"

    def allows(self, source: str, event: str, actor: Actor) -> bool:
        """Say whether `step` would succeed."""
        move = self._by_event.get((source, event))
        return move is not None and actor in move.actors

    def target(self, event: str) -> str:
        """Return where an event leads; each event leads to one status."""
        return self._target[event]


def _rows(event: str, target: str, sources: Iterable[str], *actors: Actor) -> Iterable[Move]:
    return (Move(source, event, target, actors) for source in sources)


JOB = Machine(
    "job",
    terminal=("completed", "failed", "canceled", "expired", "blocked"),
    moves=(
        *_rows("submit", "queued", [NEW], *_PEOPLE, "system"),
        *_rows("schedule", "pending", [NEW], *_PEOPLE, "system"),
        *_rows("block", "blocked", [NEW], "system"),
        *_rows("release", "queued", ["pending"], "system"),
        *_rows("start", "running", ["queued"], "worker"),
        # A job that expires before it ever ran passes through `running` in the same instant,
        # because no source system knows a way from waiting to expired.
        *_rows("preflight", "running", ["pending", "queued", "paused"], "system"),
        *_rows("pause", "paused", ["pending", "queued", "running"], *_PEOPLE),
        *_rows("resume", "queued", ["paused"], *_PEOPLE),
        *_rows("continue", "running", ["paused"], *_PEOPLE),
        *_rows("postpone", "pending", ["paused"], *_PEOPLE),
        *_rows("complete", "completed", ["running", "paused"], "system"),
        *_rows("fail", "failed", ["pending", "queued", "running", "paused"], "system"),
        *_rows("expire", "expired", ["running", "paused"], "system"),
        *_rows("cancel", "canceled", ["pending", "queued", "running", "paused"], *_PEOPLE),
        # The person's request is carried out later: by the worker that heard it, or when the grace is over.
        *_rows("stop", "canceled", ["running", "paused"], "worker", "system"),
        *_rows("retry", "pending", ["failed", "expired"], *_PEOPLE),
    ),
)

STAGE = Machine(
    "stage",
    terminal=("completed", "failed", "canceled"),
    moves=(
        *_rows("plan", "created", [NEW], "system"),
        *_rows("open", "pending", ["created"], "system"),
        *_rows("hold", "waiting", ["created", "pending", "running"], "system", "admin"),
        *_rows("approve", "pending", ["waiting"], *_PEOPLE),
        *_rows("start", "running", ["pending"], "worker"),
        *_rows("complete", "completed", ["pending", "running"], "system"),
        *_rows("fail", "failed", ["pending", "waiting", "running"], "system"),
        *_rows("cancel", "canceled", ["created", "pending", "waiting", "running"], "system"),
        *_rows("reset", "created", ["failed", "canceled"], "system"),
    ),
)

TASK = Machine(
    "task",
    terminal=("completed", "failed", "canceled"),
    moves=(
        *_rows("plan", "created", [NEW], "system"),
        *_rows("open", "pending", ["created"], "system"),
        *_rows("lease", "running", ["pending", "retried"], "worker"),
        *_rows("complete", "completed", ["running"], "worker", "system"),
        *_rows("fail", "failed", ["running"], "worker", "system"),
        *_rows("retry", "retried", ["running"], "worker", "system"),
        *_rows("cancel", "canceled", ["created", "pending", "retried", "running"], "worker", "system"),
        *_rows("reset", "created", ["failed", "canceled"], "system"),
    ),
)

MACHINES = (JOB, STAGE, TASK)
