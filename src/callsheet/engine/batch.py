"""One batch: prefetch, decide, store, commit. Everything that a crash may cut in two lies between begin and commit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from callsheet.core.commands import Adjust, Claim, Command, Submit, TopUp
from callsheet.core.decide import DECISIONS
from callsheet.core.limits import Limits
from callsheet.core.money import wallet_id
from callsheet.core.working import Key, Missing, WorkingSet
from callsheet.engine.offers import Offers
from callsheet.engine.prefetch import Prefetch, Recipes
from callsheet.store.connection import Connection

_KEPT_MAX = 50_000
_LAST = ("wallet", "active", "tail")
"""Wanted by many, loaded once, after everything that is locked before them."""


def subject(command: Command) -> str:
    """Name what a command is about, so that commands about the same stay in order: a job, else a wallet, a kind."""
    lease = getattr(command, "lease", None)
    if lease is not None:
        return str(lease.job_id)
    if isinstance(command, Submit | TopUp | Adjust):
        return wallet_id(command.tenant, command.user)
    if isinstance(command, Claim):
        return command.kinds[0] if command.kinds else ""
    return str(getattr(command, "job_id", "") or getattr(command, "worker_id", ""))


class Done(NamedTuple):
    """What a batch gave: an answer or an error per command, and the kinds that have new work."""

    results: list[Any]
    woken: set[str]
    wrote: bool
    expected: Mapping[tuple[str, ...], float]
    """Kinds that a rate held back, and for how many seconds."""


class Batch:
    """Runs batches on one connection."""

    def __init__(self, connection: Connection, limits: Limits, recipes: Recipes, offers: Offers) -> None:
        self.connection = connection
        self._limits = limits
        self._recipes = recipes
        self._offers = offers
        self._kept: tuple[int, WorkingSet] | None = None

    def run(self, commands: Sequence[Command], *, again: bool = False) -> Done:
        """Decide commands in order, in one transaction. Raises what the store raises, with nothing written."""
        connection = self.connection
        connection.begin()
        kept, self._kept = self._kept, None
        try:
            version = connection.version()
            still = kept[1] if kept is not None and kept[0] == version else None
            ws = WorkingSet(0, self._limits, again=again, kept=still)
            results = self._decide(ws, commands)
            wrote = self._store(ws)
            if wrote:
                connection.notify(ws.woken)
                connection.commit()
            else:
                connection.rollback()
        except BaseException:
            connection.rollback()
            raise
        if version is not None and len(ws) <= _KEPT_MAX:
            self._kept = version, ws
        return Done(results, ws.woken, wrote, dict(self._offers.expected))

    def _decide(self, ws: WorkingSet, commands: Sequence[Command]) -> list[Any]:
        prefetch = Prefetch(self.connection, ws, self._recipes, self._offers)
        self._prefetch(prefetch, ws, commands)
        ws.now = self.connection.now()  # once everything is locked: never earlier than what is seen
        results: list[Any] = [None] * len(commands)
        waiting: Sequence[int] = range(len(commands))
        loaded: set[tuple[str, Key]] = set()
        while True:
            missing: dict[str, set[Key]] = defaultdict(set)
            rest: list[int] = []
            stuck: set[str] = set()
            for count, place in enumerate(waiting, 1):
                if count % self._limits.unsaid_max == 0:
                    self._say(ws)
                command = commands[place]
                if stuck and subject(command) in stuck:
                    rest.append(place)
                    continue
                ws.begin()
                try:
                    results[place] = DECISIONS[type(command)].decide(ws, command)
                except Missing as want:
                    ws.undo()
                    missing[want.want].add(want.key)
                    rest.append(place)
                    stuck.add(subject(command))  # what comes after it on the same job waits with it
                except Exception as error:  # noqa: BLE001 - a refusal, or a fault that is its caller's alone to hear of
                    ws.undo()
                    results[place] = error
            if not rest:
                return results
            asked = {(name, key) for name, keys in missing.items() for key in keys}
            if asked <= loaded:
                raise AssertionError(f"a decision still misses {asked}, which was loaded for it")
            loaded |= asked
            prefetch.load(missing)
            waiting = rest

    def _say(self, ws: WorkingSet) -> None:
        for row, rows in ws.said():
            self.connection.insert(row, rows)
        self.connection.push()

    def _prefetch(self, prefetch: Prefetch, ws: WorkingSet, commands: Sequence[Command]) -> None:
        wants: dict[str, set[Key]] = defaultdict(set)
        self._offers.begin()
        for command in commands:
            DECISIONS[type(command)].wants(command, wants)
            if isinstance(command, Claim):
                demand = self._offers.demand
                count = min(max(command.count, 1), self._limits.claim_max)  # what is refused for it comes later
                demand[command.kinds] = demand.get(command.kinds, 0) + count
        follows: dict[str, set[Key]] = defaultdict(set)
        for name in _LAST:
            follows[name] = wants.pop(name, set())
        prefetch.load(wants)
        for command in commands:
            follow = DECISIONS[type(command)].follows
            if follow is not None:
                follow(ws, command, follows)
        prefetch.load(follows)

    def _store(self, ws: WorkingSet) -> bool:
        wrote = False
        for row, new, changed in ws.writes():
            wrote = True
            if changed:  # before the new ones: an ended lease or an old version makes room for the next
                self.connection.update(row, changed)
            if new:
                self.connection.insert(row, new)
        if ws.purged:
            purges = ("purge_documents", "purge_files", "purge_uses")
            self.connection.fetch_all([(purge, {"ids": ws.purged}) for purge in purges])
        return wrote
