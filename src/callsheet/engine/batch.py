"""One batch of commands in one transaction: prefetch rows, decide, store changed rows, commit."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from callsheet.comfyui.graph_rules_implementation import COMFYUI_GRAPH_RULES
from callsheet.core import prefetched_facts as facts
from callsheet.core.command_registry import COMMANDS
from callsheet.core.decisions.audit import chain_lines, chain_needs
from callsheet.core.decisions.money import wallet_id
from callsheet.core.model.commands import Adjust, Claim, Command, Submit, TopUp
from callsheet.core.model.rows import StorageUsage, Wallet
from callsheet.core.policy.engine_limits import Limits
from callsheet.core.policy.fair_order import settle_turns, withdrawn_counts
from callsheet.core.policy.storage_quota import DiscardedOutputs
from callsheet.core.prefetched_facts import Key, Need, Needs
from callsheet.core.working_set import NotLoaded, WorkingSet
from callsheet.engine.candidates import CandidateSelector
from callsheet.engine.prefetch import DefinitionCache, Prefetch
from callsheet.store.connection import Connection

_CACHED_ROWS_MAX = 50_000
_LOADED_LAST = (
    Wallet,
    StorageUsage,
    facts.ACTIVE_JOB_COUNT,
    facts.QUEUE_TAIL,
    facts.USER_TAIL,
)
"""Many commands need these. They are loaded once, after the rows that are locked before them."""


def ordering_key(command: Command) -> str:
    """Return the key by which commands stay in order: the job, otherwise the wallet or kind."""
    lease = getattr(command, "lease", None)
    if lease is not None:
        return str(lease.job_id)
    if isinstance(command, Submit | TopUp | Adjust):
        return wallet_id(command.tenant, command.user)
    if isinstance(command, Claim):
        return command.kinds[0] if command.kinds else ""
    return str(getattr(command, "job_id", "") or getattr(command, "worker_id", ""))


class BatchResult(NamedTuple):
    """The result of a batch: an answer or an error per command, and the kinds that have new work."""

    results: list[Any]
    woken_kinds: set[str]
    wrote: bool
    delays: Mapping[tuple[str, ...], float]
    """Kinds whose waiting tasks may start later, with the delay in seconds."""
    discarded_outputs: Sequence[DiscardedOutputs] = ()
    """Objects of ended attempts that are no longer needed. The caller of a deletion deletes those of the job."""


class Batch:
    """Runs batches on one connection."""

    def __init__(
        self, connection: Connection, limits: Limits, definitions: DefinitionCache, selector: CandidateSelector
    ) -> None:
        self.connection = connection
        self._limits = limits
        self._definitions = definitions
        self._selector = selector
        self._cached: tuple[int, WorkingSet] | None = None

    def run(self, commands: Sequence[Command], *, retrying: bool = False) -> BatchResult:
        """Run commands in order, in one transaction. If the store raises an error, nothing is written."""
        connection = self.connection
        connection.begin()
        cached, self._cached = self._cached, None
        try:
            version = connection.version()
            reusable = cached[1] if cached is not None and cached[0] == version else None
            ws = WorkingSet(0, self._limits, graph_rules=COMFYUI_GRAPH_RULES, retrying=retrying, previous=reusable)
            results = self._decide(ws, commands)
            self._chain_audit_lines(ws)
            wrote = self._store(ws)
            if wrote:
                connection.notify(ws.woken_kinds)
                connection.commit()
            else:
                connection.rollback()
        except BaseException:
            connection.rollback()
            raise
        if version is not None and len(ws) <= _CACHED_ROWS_MAX:
            self._cached = version, ws
        discarded = [outputs for outputs in ws.discarded_outputs if outputs.job_id not in ws.purged_job_ids]
        return BatchResult(results, ws.woken_kinds, wrote, dict(self._selector.delays), discarded)

    def _decide(self, ws: WorkingSet, commands: Sequence[Command]) -> list[Any]:
        prefetch = self._make_prefetch(ws)
        self._prefetch(prefetch, ws, commands)
        ws.now = self.connection.now()  # after the locks, so that it is not earlier than any change in the loaded rows
        results: list[Any] = [None] * len(commands)
        waiting: Sequence[int] = range(len(commands))
        loaded: set[tuple[Need, Key]] = set()
        while True:
            missing = Needs()
            deferred: list[int] = []
            blocked_keys: set[str] = set()
            for count, index in enumerate(waiting, 1):
                if count % self._limits.flush_every == 0:
                    self._write_appended(ws)
                command = commands[index]
                if blocked_keys and ordering_key(command) in blocked_keys:
                    deferred.append(index)
                    continue
                ws.begin()
                try:
                    results[index] = COMMANDS[type(command)].decide(ws, command)
                except NotLoaded as miss:
                    ws.undo()
                    missing.keys.setdefault(miss.need, set()).add(miss.key)
                    deferred.append(index)
                    blocked_keys.add(ordering_key(command))  # later commands with the same key must wait for it
                except Exception as error:  # noqa: BLE001 - a refusal or a bug; only the command's caller gets it
                    ws.undo()
                    results[index] = error
            if not deferred:
                prefetch.load_last_turns(withdrawn_counts(ws.queue_exits))
                settle_turns(ws)
                return results
            requested = {(need, key) for need, keys in missing.keys.items() for key in keys}
            if requested <= loaded:
                raise AssertionError(f"a decision still misses {requested}, which was loaded before")
            loaded |= requested
            prefetch.load(missing)
            waiting = deferred

    def _make_prefetch(self, ws: WorkingSet) -> Prefetch:
        return Prefetch(self.connection, ws, self._definitions, self._selector)

    def _chain_audit_lines(self, ws: WorkingSet) -> None:
        """Lock the chains that the batch extends, after everything else, and append its lines to them."""
        if ws.audit_lines:
            self._make_prefetch(ws).load(chain_needs(ws))
            chain_lines(ws)

    def _write_appended(self, ws: WorkingSet) -> None:
        for row, rows in ws.take_appended():
            self.connection.insert(row, rows)
        self.connection.push()

    def _prefetch(self, prefetch: Prefetch, ws: WorkingSet, commands: Sequence[Command]) -> None:
        needs = Needs()
        self._selector.begin()
        for command in commands:
            COMMANDS[type(command)].add_needs(command, needs)
            if isinstance(command, Claim):
                demand = self._selector.demand
                count = min(max(command.count, 1), self._limits.claim_tasks_max)  # the decision checks the range
                demand[command.kinds] = demand.get(command.kinds, 0) + count
        follow_up = Needs()
        for need in _LOADED_LAST:
            needs.move(need, follow_up)
        prefetch.load(needs)
        for command in commands:
            add_follow_up_needs = COMMANDS[type(command)].add_follow_up_needs
            if add_follow_up_needs is not None:
                add_follow_up_needs(ws, command, follow_up)
        prefetch.load(follow_up)

    def _store(self, ws: WorkingSet) -> bool:
        wrote = False
        for row, new, changed in ws.writes():
            wrote = True
            if changed:  # before inserts, because of unique indexes: one live lease per task, one current version
                self.connection.update(row, changed)
            if new:
                self.connection.insert(row, new)
        if ws.purged_job_ids:
            purges = ("purge_documents", "purge_files", "purge_job_files")
            self.connection.fetch_all([(purge, {"ids": ws.purged_job_ids}) for purge in purges])
        return wrote
