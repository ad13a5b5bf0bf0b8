"""The state machines of jobs, stages and tasks. Every legal move is a row; no other module names a target status.

Read a row as: in the status `source`, one of `actors` may trigger `event`, which moves to `target`. The exhaustive
test, the diagrams in the docs and the permissions of users are derived from these rows.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from callsheet.core.model.errors import IllegalTransition

Actor = Literal["user", "admin", "worker", "system"]
NEW = "new"
_PASSIVE_VERBS = {
    "approve": "be approved", "cancel": "be canceled", "require_approval": "require an approval", "pause": "be paused",
    "resume": "be resumed", "retry": "be retried",
}  # fmt: skip
"""How messages express the events that people can request."""
_PEOPLE: tuple[Actor, ...] = ("user", "admin")


class Move(NamedTuple):
    """One legal move: a row in the table of a machine."""

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
        """Return the status after `event`, or raise `IllegalTransition`."""
        move = self._by_event.get((source, event))
        if move is None or actor not in move.actors:
            raise IllegalTransition(
                self.entity, source, self._target[event], actor, message=self._explain_refusal(source, event, actor)
            )
        return move.target

    def _explain_refusal(self, source: str, event: str, actor: Actor) -> str:
        """Return a message with the current status and the statuses that allow the event."""
        verb = _PASSIVE_VERBS.get(event, f"become {self._target[event]}")
        allowed_from = [m.source for m in self.moves if m.event == event and actor in m.actors and m.source != NEW]
        if allowed_from:
            allowed = f"Only a {self.entity} that is {' or '.join(allowed_from)} can."
        else:
            allowed = f"The actor `{actor}` may not do this."
        return f"The {self.entity} is {source}: it cannot {verb}. {allowed}"

    def allows(self, source: str, event: str, actor: Actor) -> bool:
        """Return whether `step` would succeed."""
        move = self._by_event.get((source, event))
        return move is not None and actor in move.actors

    def target(self, event: str) -> str:
        """Return the target status of an event. Each event has exactly one."""
        return self._target[event]


def _moves(event: str, target: str, sources: Iterable[str], *actors: Actor) -> Iterable[Move]:
    return (Move(source, event, target, actors) for source in sources)


JOB = Machine(
    "job",
    terminal=("completed", "failed", "canceled", "expired", "blocked"),
    moves=(
        *_moves("submit", "queued", [NEW], *_PEOPLE, "system"),
        *_moves("schedule", "pending", [NEW], *_PEOPLE, "system"),
        *_moves("block", "blocked", [NEW], "system"),
        *_moves("release", "queued", ["pending"], "system"),
        *_moves("start", "running", ["queued"], "worker"),
        # A job that expires before it ran passes through `running` in the same transaction, because the systems
        # that Callsheet replaces have no move from a waiting status to `expired`.
        *_moves("preflight", "running", ["pending", "queued", "paused"], "system"),
        *_moves("pause", "paused", ["pending", "queued", "running"], *_PEOPLE),
        *_moves("resume", "queued", ["paused"], *_PEOPLE),
        *_moves("continue", "running", ["paused"], *_PEOPLE),
        *_moves("postpone", "pending", ["paused"], *_PEOPLE),
        *_moves("complete", "completed", ["running", "paused"], "system"),
        *_moves("fail", "failed", ["pending", "queued", "running", "paused"], "system"),
        *_moves("expire", "expired", ["running", "paused"], "system"),
        *_moves("cancel", "canceled", ["pending", "queued", "running", "paused"], *_PEOPLE),
        # A requested cancel takes effect later: when the worker stops, or when the grace period ends.
        *_moves("stop", "canceled", ["running", "paused"], "worker", "system"),
        *_moves("retry", "pending", ["failed", "expired"], *_PEOPLE),
    ),
)

STAGE = Machine(
    "stage",
    terminal=("completed", "failed", "canceled"),
    moves=(
        *_moves("plan", "created", [NEW], "system"),
        *_moves("open", "pending", ["created"], "system"),
        *_moves("require_approval", "waiting", ["created", "pending", "running"], "system", "admin"),
        *_moves("approve", "pending", ["waiting"], *_PEOPLE),
        *_moves("start", "running", ["pending"], "worker"),
        *_moves("complete", "completed", ["pending", "running"], "system"),
        *_moves("fail", "failed", ["pending", "waiting", "running"], "system"),
        *_moves("cancel", "canceled", ["created", "pending", "waiting", "running"], "system"),
        *_moves("reset", "created", ["failed", "canceled"], "system"),
    ),
)

TASK = Machine(
    "task",
    terminal=("completed", "failed", "canceled"),
    moves=(
        *_moves("plan", "created", [NEW], "system"),
        *_moves("open", "pending", ["created"], "system"),
        *_moves("lease", "running", ["pending", "retried"], "worker"),
        *_moves("complete", "completed", ["running"], "worker", "system"),
        *_moves("fail", "failed", ["running"], "worker", "system"),
        *_moves("retry", "retried", ["running"], "worker", "system"),
        *_moves("cancel", "canceled", ["created", "pending", "retried", "running"], "worker", "system"),
        *_moves("reset", "created", ["failed", "canceled"], "system"),
    ),
)

MACHINES = (JOB, STAGE, TASK)
