"""Loading what decisions want, with set queries, in the one lock order: jobs, what is below them, then wallets.

A loader is a generator that asks once and takes the rows; loaders that follow each other ask in one trip.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from callsheet.core.order import Tail
from callsheet.core.recipe import Recipe, parse, validator
from callsheet.core.rows import (
    ApiKey,
    Attempt,
    Audit,
    Call,
    Cursor,
    Document,
    File,
    Inbox,
    Job,
    Queue,
    Row,
    Run,
    Stage,
    Task,
    Tenant,
    Use,
    Wallet,
    Worker,
    Workflow,
)
from callsheet.core.working import Key, WorkingSet
from callsheet.engine.offers import Offers
from callsheet.store.connection import Ask, Connection, Rows

Wants = Mapping[str, set[Key]]
Loading = Generator[Ask, Rows, None]


class Recipes:
    """Recipes read so far. A version never changes, so what is here stays true."""

    def __init__(self) -> None:
        self._recipes: dict[tuple[str, int], Recipe] = {}
        self._validators: dict[tuple[str, int], Any] = {}

    def read(self, row: Workflow) -> Recipe:
        key = (row.name, row.version)
        if key not in self._recipes:
            self._recipes[key] = parse(row.spec)
        return self._recipes[key]

    def known(self, key: tuple[str, int]) -> Recipe | None:
        return self._recipes.get(key)

    def validator(self, row: Workflow) -> Any:
        key = (row.name, row.version)
        if key not in self._validators:
            self._validators[key] = validator(self.read(row))
        return self._validators[key]


class Prefetch:
    """Fills one batch's working set."""

    def __init__(self, connection: Connection, ws: WorkingSet, recipes: Recipes, offers: Offers) -> None:
        self._connection = connection
        self._ws = ws
        self._recipes = recipes
        self._offers = offers

    def load(self, wants: Wants) -> None:
        """Load everything wanted, in the one order."""
        wants = self._with_held(wants)
        together: list[Loading] = []
        for name in _ORDER:
            keys = wants.get(name)
            if not keys:
                continue
            if row := _ROWS.get(name):
                new = self._ws.unknown(row, keys)
            else:
                new = [key for key in keys if not self._ws.has(name, key)]
            if new and name in _STEPS:
                self._ask(together)
                together = []
                _STEPS[name](self, new)
            elif new:
                together.append(_LOADERS[name](self, new))
        self._ask(together)
        if unknown := set(wants) - set(_ORDER):
            raise LookupError(f"nobody knows how to load {unknown}")

    def _with_held(self, wants: Wants) -> Wants:
        """Add the jobs of what workers hold: they are locked with the others, once the workers are, and then read."""
        keys = [key for key in wants.get("held_by", ()) if not self._ws.has("held_by", key)]
        if not keys:
            return wants
        self.load({name: wants[name] for name in ("ref", "worker") if name in wants})
        jobs = {row[0] for row in self._connection.fetch("jobs_held_by", ids=keys)}
        return {**wants, "job": {*wants.get("job", ()), *jobs}}

    def _ask(self, loaders: Iterable[Loading]) -> None:
        """Let loaders ask together and give each its rows; one that finds that it knows all does not ask."""
        asking = [(loader, ask) for loader in loaders if (ask := next(loader, None))]
        if not asking:
            return
        answers = self._connection.fetch_all([ask for _, ask in asking])
        for (loader, _), rows in zip(asking, answers, strict=True):
            try:
                loader.send(rows)
            except StopIteration:
                continue
            raise AssertionError("a loader asks once")

    def _facts(self, name: str, keys: Iterable[Key], values: Mapping[Key, Any], default: Any) -> None:
        for key in keys:
            self._ws.facts.setdefault((name, key), values.get(key, default))

    # -- loaders: one question each

    def _rows(self, row: type[Row], query: str, keys: list[Key]) -> Loading:
        found = yield query, {"keys" if query in _BY_TABLE else "ids": keys}
        self._ws.load(row, [row(*got) for got in found], keys)

    def _grouped(self, name: str, row: type[Row], query: str, field: str, keys: list[Key]) -> Loading:
        found = [row(*got) for got in (yield query, {"ids": keys})]
        self._ws.load(row, found, ())
        groups: dict[Key, list[str]] = defaultdict(list)
        for one in found:
            groups[getattr(one, field)].append(row.key_of(one))  # type: ignore[arg-type]
        for key in keys:
            self._ws.facts.setdefault((name, key), tuple(groups.get(key, ())))

    def _idem(self, keys: list[Key]) -> Loading:
        """Look keys up without taking the jobs into the working set: they are not locked."""
        found = [Job(*row) for row in (yield "jobs_by_idem", {"ids": keys})]
        self._facts("idem", keys, {job.idem: job for job in found}, None)

    def _run_named(self, keys: list[Key]) -> Loading:
        found = yield "runs_named", {"keys": keys}
        self._facts("run_named", keys, dict.fromkeys(map(tuple, found), True), False)  # noqa: FBT003 - whether there is one

    def _entry(self, keys: list[Key]) -> Loading:
        found = yield "entries_by_idem", {"ids": keys}
        self._facts("entry", keys, dict(found), None)  # type: ignore[arg-type]

    def _active(self, keys: list[Key]) -> Loading:
        found = yield "active", {"ids": keys}
        self._facts("active", keys, dict(found), 0)  # type: ignore[arg-type]

    def _tail(self, keys: list[Key]) -> Loading:
        rows = yield "tails", {"keys": keys}
        self._facts("tail", keys, {(q, p, t): Tail(head, last) for q, p, t, head, last in rows}, Tail(None, None))

    def _queues(self, keys: list[Key]) -> Loading:
        found = yield "queues_sharing", {"kinds": [], "workflows": keys, "providers": []}
        self._facts("queues", keys, Counter(Queue(*row).workflow for row in found), 0)

    def _current_recipe(self, keys: list[Key]) -> Loading:
        rows = [Workflow(*got) for got in (yield "current_workflows", {"ids": keys})]
        self._ws.load(Workflow, rows, ())
        found = {row.name: row for row in rows}
        for key in keys:
            row = found.get(str(key))
            self._ws.facts["current_recipe", key] = self._recipes.read(row) if row else None
            self._ws.facts["current_version", key] = row.version if row else 0
            self._ws.facts["validator", key] = self._recipes.validator(row) if row else None

    def _recipe(self, keys: list[Any]) -> Loading:
        if unknown := [key for key in keys if self._recipes.known(key) is None]:
            rows = [Workflow(*got) for got in (yield "workflows", {"keys": unknown})]
            self._ws.load(Workflow, rows, ())
            for row in rows:
                self._recipes.read(row)
        for key in keys:
            self._ws.facts["recipe", key] = self._recipes.known(key)

    def _holds(self, keys: list[Key]) -> Loading:
        """Name the tasks in each worker's hand, without locking or loading them."""
        found: dict[Key, list[str]] = defaultdict(list)
        for worker, task in (yield "holds", {"ids": keys}):
            found[worker].append(task)
        self._facts("holds", keys, {key: tuple(tasks) for key, tasks in found.items()}, ())

    def _fleet(self, keys: list[Key]) -> Loading:
        found = yield "fleet", {}
        self._facts("fleet", keys, {}, found[0][0])

    def _key_of(self, keys: list[Key]) -> Loading:
        """Find the keys that have these secrets."""
        found = [ApiKey(*got) for got in (yield "api_keys_by_hash", {"ids": keys})]
        self._ws.load(ApiKey, found)
        self._facts("key_of", keys, {key.secret_hash: key.id for key in found}, None)

    def _awaited(self, keys: list[Key]) -> Loading:
        found = yield "awaited", {"keys": keys}
        self._facts("awaited", keys, {(tenant, user): count for tenant, user, count in found}, 0)

    def _needed(self, keys: list[Key]) -> Loading:
        found = yield "needed", {"ids": keys}
        self._facts("needed", keys, {key: workflow or "" for key, workflow in found}, None)

    def _lent(self, keys: list[Key]) -> Loading:
        found = yield "lent", {"ids": keys}
        self._facts("lent", keys, {key: workflow or "" for key, workflow in found}, None)

    def _document(self, keys: list[Any]) -> Loading:
        found = yield "documents", {"ids": [owner for owner, _ in keys]}
        self._ws.load(Document, [Document(*got) for got in found], keys)

    def _ref(self, keys: list[Any]) -> Loading:
        """Let one at a time speak of a reference: a callback and the hand-over of its task must not miss each other."""
        yield "lock_refs", {"keys": [(key,) for key in sorted(keys)]}
        self._facts("ref", keys, {}, default=True)

    def _call_by_ref(self, keys: list[Any]) -> Loading:
        found = [Call(*got) for got in (yield "calls_by_ref", {"keys": keys})]
        self._facts("call_by_ref", keys, {(call.provider, call.ref): call.id for call in found}, None)
        for call in found:
            self._ws.facts["call_link", call.id] = call.job_id

    def _call_link(self, keys: list[Key]) -> Loading:
        found = [Call(*got) for got in (yield "calls", {"ids": keys})]
        self._facts("call_link", keys, {call.id: call.job_id for call in found}, None)

    # -- steps: several questions, each after the answer to the one before

    def _offer(self, keys: list[Any]) -> None:
        tasks: list[str] = []
        jobs: dict[str, None] = {}
        for kinds, offer in self._offers.pick(self._connection, self._ws.limits, sorted(keys)):
            self._ws.facts["offer", kinds] = tuple(one.task for one in offer)
            self._ws.facts["place", kinds] = 0
            tasks += (one.task for one in offer)
            jobs |= dict.fromkeys(one.job for one in offer)
        self._ws.facts |= {("rated", queue): rated for queue, rated in self._offers.rated.items()}
        self._held(tasks, list(jobs))

    def _held_by(self, keys: list[Key]) -> None:
        """Read what workers hold, now that its jobs are locked: until that moment any of it may have ended."""
        self._ask([self._grouped("held_by", Task, "held_by", "worker_id", keys)])
        tasks: list[Task] = []
        for key in keys:  # what came into a hand since then is not locked, and not looked at
            held = [self._ws.get(Task, task) for task in self._ws.facts["held_by", key]]
            tasks += (mine := [task for task in held if self._ws.knows(Job, task.job_id)])
            self._ws.facts["held_by", key] = tuple(task.id for task in mine)
        self._held([task.id for task in tasks], [task.job_id for task in tasks])

    def _held(self, tasks: list[str], jobs: list[str]) -> None:
        """Load all that leasing needs of tasks whose jobs are already locked."""
        if not tasks:
            return
        loaders = [self._document([(key, "input") for key in (*tasks, *jobs)])]
        if unknown := self._ws.unknown(Job, jobs):
            loaders.append(self._rows(Job, "jobs_unlocked", unknown))
        if unknown := self._ws.unknown(Task, tasks):
            loaders.append(self._rows(Task, "tasks", unknown))
        if new := [key for key in jobs if not self._ws.has("stages", key)]:
            loaders.append(_LOADERS["stages"](self, new))
        self._ask(loaders)


Loader = Callable[[Prefetch, list[Any]], Loading]


def _by_id(row: type[Row], query: str) -> Loader:
    return lambda self, keys: self._rows(row, query, keys)


def _group(name: str, row: type[Row], query: str, field: str) -> Loader:
    return lambda self, keys: self._grouped(name, row, query, field, keys)


_BY_TABLE = frozenset({"workflows", "runs", "attempts", "uses"})
_ROWS: dict[str, type[Row]] = {
    "job": Job, "stage": Stage, "task": Task, "run": Run, "attempt": Attempt, "document": Document, "call": Call,
    "inbox": Inbox, "cursor": Cursor, "api_key": ApiKey, "file": File, "use": Use, "worker": Worker, "audit": Audit,
    "queue": Queue, "tenant": Tenant, "tenant_to_change": Tenant, "wallet": Wallet, "workflow": Workflow,
}  # fmt: skip
_FIRST: dict[str, Loader] = {
    "ref": Prefetch._ref,  # noqa: SLF001 - as above
    "worker": _by_id(Worker, "workers"),
    "holds": Prefetch._holds,  # noqa: SLF001
    "fleet": Prefetch._fleet,  # noqa: SLF001
    "call_by_ref": Prefetch._call_by_ref,  # noqa: SLF001
    "call_link": Prefetch._call_link,  # noqa: SLF001
    "job": _by_id(Job, "jobs"),
}
_STEPS: dict[str, Callable[[Prefetch, list[Any]], None]] = {
    "offer": Prefetch._offer,  # noqa: SLF001 - as above
    "held_by": Prefetch._held_by,  # noqa: SLF001
}
_THEN: dict[str, Loader] = {
    "idem": Prefetch._idem,  # noqa: SLF001
    "tenant_to_change": _by_id(Tenant, "tenants_to_change"),
    "tenant": _by_id(Tenant, "tenants"),
    "current_recipe": Prefetch._current_recipe,  # noqa: SLF001
    "recipe": Prefetch._recipe,  # noqa: SLF001
    "workflow": _by_id(Workflow, "workflows"),
    "queue": _by_id(Queue, "queues"),
    "queues": Prefetch._queues,  # noqa: SLF001
    "task": _by_id(Task, "tasks"),
    "stage": _by_id(Stage, "stages_by_id"),
    "stages": _group("stages", Stage, "stages", "job_id"),
    "open_tasks": _group("open_tasks", Task, "open_tasks", "stage_id"),
    "tasks": _group("tasks", Task, "tasks_of_stages", "stage_id"),
    "run": _by_id(Run, "runs"),
    "run_named": Prefetch._run_named,  # noqa: SLF001
    "attempt": _by_id(Attempt, "attempts"),
    "document": Prefetch._document,  # noqa: SLF001
    "call": _by_id(Call, "calls"),
    "inbox": _by_id(Inbox, "inbox"),
    "held_callbacks": _group("held_callbacks", Inbox, "held_callbacks", "ref"),
    "cursor": _by_id(Cursor, "cursors"),
    "used": _group("used", Use, "used_by", "job_id"),
    "file": _by_id(File, "files"),
    "files_of": _group("files_of", File, "files_of_jobs", "job_id"),
    "lent": Prefetch._lent,  # noqa: SLF001
    "use": _by_id(Use, "uses"),
    "awaited": Prefetch._awaited,  # noqa: SLF001
    "needed": Prefetch._needed,  # noqa: SLF001
    "api_key": _by_id(ApiKey, "api_keys"),
    "key_of": Prefetch._key_of,  # noqa: SLF001
    "audit": _by_id(Audit, "audits"),
    "entry": Prefetch._entry,  # noqa: SLF001
    "wallet": _by_id(Wallet, "wallets"),
    "active": Prefetch._active,  # noqa: SLF001
    "tail": Prefetch._tail,  # noqa: SLF001
}
_LOADERS = _FIRST | _THEN
_ORDER = (*_FIRST, *_STEPS, *_THEN)
