"""The time of every rule of `callsheet verify` on a large database.

The engine runs one priced job of each user to its end, and bare SQL copies these jobs with all their rows. The copies
break no rule: a rule that finds a row is a fault of this benchmark.
"""

from bench import load
from bench.databases import DATABASE_KINDS, SQLITE, Databases, database_at
from bench.engine.backlog import IDS, copy_sql, vacuum, without_indexes
from bench.table import Row, plain_row
from callsheet.core.model.commands import Submit
from callsheet.core.model.rows import Attempt, Document, Event, Job, LedgerEntry, Run, Stage, Task
from callsheet.core.model.rows import Row as Stored
from callsheet.engine import Engine
from callsheet.engine.engine import MAINTENANCE_STATEMENT_SECONDS, database_for
from callsheet.settings import Settings
from callsheet.store import verify
from callsheet.store.connection import Connection
from callsheet.store.dialect import columns

COPIED_TABLES: tuple[type[Stored], ...] = (Job, Run, Stage, Task, Attempt, Event, Document, LedgerEntry)
JOBS = 200_000
QUICK_JOBS = 10_000


def measure(databases: Databases, *, quick: bool) -> list[Row]:
    return [row for kind in DATABASE_KINDS for row in _measure_rules(databases, kind, QUICK_JOBS if quick else JOBS)]


def _measure_rules(databases: Databases, kind: str, jobs: int) -> list[Row]:
    dsn = databases.create(kind)
    fill(dsn, kind, jobs)
    connection = connect_for_maintenance(dsn)
    try:
        results = verify.check_rules(connection, verify.rules(database_at(dsn).name), connection.now())
    finally:
        connection.close()
    databases.drop(dsn)
    if broken := [result.violation for result in results if result.violation]:
        raise AssertionError(verify.report(broken))
    slowest = max(results, key=lambda result: result.seconds)
    label = f"{kind}: verify, {jobs // 1_000} k jobs"
    return [
        plain_row(f"{label}, all rules", sum(result.seconds for result in results), "s"),
        plain_row(f"{label}, slowest rule ({slowest.name})", slowest.seconds, "s"),
    ]


def fill(dsn: str, kind: str, jobs: int) -> None:
    """Create so many completed jobs, each with one task."""
    _complete_one_job_of_each_user(dsn)
    copies = jobs // load.USERS
    connection = connect_for_maintenance(dsn)
    try:
        connection.run("PRAGMA synchronous = OFF" if kind == SQLITE else "SET synchronous_commit = off")
        connection.begin()
        for table in COPIED_TABLES:
            connection.run(f"CREATE TABLE ended_{table.TABLE} AS SELECT * FROM {table.TABLE}")
        for table in COPIED_TABLES:
            text = copy_sql(kind, table, "ended", 1, copies, changed=_copied_values(kind, table))
            if table is LedgerEntry:
                text += " WHERE t.job_id IS NOT NULL"
            without_indexes(connection, kind, table, text)
        _total_wallets(connection)
        for table in COPIED_TABLES:
            connection.run(f"DROP TABLE ended_{table.TABLE}")
        connection.commit()
        vacuum(connection, kind)
    finally:
        connection.close()


def connect_for_maintenance(dsn: str) -> Connection:
    """Connect with a statement timeout of days."""
    return database_for(dsn, Settings(statement_timeout_seconds=MAINTENANCE_STATEMENT_SECONDS)).connect()


def _complete_one_job_of_each_user(dsn: str) -> None:
    with Engine(database_at(dsn)) as engine:
        engine.start()
        load.set_up(engine)
        for tenant, user in load.users():
            engine.execute(Submit(tenant=tenant, user=user, workflow=load.WORKFLOW, input={"prompt": "a"}))
        for leased in engine.execute(load.claim(load.USERS)):
            engine.execute(load.complete(leased))


def _copied_values(kind: str, table: type[Stored]) -> dict[str, str]:
    """Return the columns in which the copies differ from their original.

    The number of a copy takes the place of the time in its ids. So rows are stored in the order of their ids, as on a
    server.
    """
    number = "printf('%08x', s.n)" if kind == SQLITE else "lpad(to_hex(s.n), 8, '0')"
    changed = {name: f"{number} || substr(t.{name}, 9)" for name in IDS if name in columns(table)}
    if table is Attempt:
        changed["token_hash"] = f"{number} || substr(t.token_hash, 9)"
    if table is LedgerEntry:
        changed |= {
            "seq": "t.seq + 2 * s.n", "balance": f"t.balance - {load.PRICE} * s.n", "at": "t.at + s.n * 3600000000",
        }  # fmt: skip
    return changed


def _total_wallets(connection: Connection) -> None:
    connection.run(
        "UPDATE wallet SET entries = (SELECT count(*) FROM entry e WHERE e.wallet_id = wallet.id), "
        "balance = (SELECT sum(amount) FROM entry e WHERE e.wallet_id = wallet.id), "
        "consumed = (SELECT sum(consumed) FROM entry e WHERE e.wallet_id = wallet.id)"
    )
