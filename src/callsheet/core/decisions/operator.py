"""Operator commands: tenants, workflows, credits; the cursors of event readers; what all servers share.

A put with equal values changes nothing. Credits move once per idempotency key. The first server records a shared value,
and the others get the recorded one.
"""

from msgspec import UNSET
from msgspec.structs import replace

from callsheet.core import prefetched_facts as facts
from callsheet.core.decisions.files import link_workflow_files
from callsheet.core.decisions.money import adjust as post_adjustment
from callsheet.core.decisions.money import top_up as post_top_up
from callsheet.core.decisions.money import wallet_of
from callsheet.core.model.clock import seconds
from callsheet.core.model.commands import (
    AcquireCursor,
    Adjust,
    AdvanceCursor,
    Balance,
    CheckWrite,
    CursorPosition,
    PutTenant,
    PutWorkflow,
    RecordInstallationValue,
    ReplaceInstallationValue,
    TopUp,
)
from callsheet.core.model.errors import BadInput, Conflict, NotFound
from callsheet.core.model.plural import pluralize
from callsheet.core.model.rows import Cursor, InstallationValue, StorageUsage, Tenant, Wallet, Workflow
from callsheet.core.model.workflow_definition import check_definition, check_name, check_range
from callsheet.core.policy.input_schema.validator import compile_input_schema
from callsheet.core.policy.redaction import redact_error
from callsheet.core.working_set import WorkingSet, encode

WRITE_CHECK = "write_check"
"""The name of the row that a write check updates."""
_OWN_LIMITS = {"active_jobs_max": 2**31, "storage_bytes_max": 2**62}
"""The limits that a tenant can have of its own, with their highest values."""


def put_tenant(ws: WorkingSet, command: PutTenant) -> Tenant:
    """Create a tenant or change it; equal values change nothing."""
    check_name("tenant", command.tenant, ws.limits)
    existing = ws.find(Tenant, command.tenant)
    before = existing or Tenant(command.tenant, 1, "active", None, ws.now, ws.now)
    own_limits = {name: limit for name in _OWN_LIMITS if (limit := getattr(command, name)) is not UNSET}
    after = replace(
        before, weight=before.weight if command.weight is None else command.weight,
        status=before.status if command.status is None else command.status, **own_limits,
    )  # fmt: skip
    check_range("weight", after.weight, 1, 1_000)
    for name, most in _OWN_LIMITS.items():
        if (limit := getattr(after, name)) is not None:
            check_range(name, limit, 0, most)
    if after.status not in {"active", "suspended"}:
        message = f"The status {after.status[:80]!r} is invalid: a tenant is `active` or `suspended`."
        raise BadInput("invalid_status", message)
    if after == existing:
        return existing
    after = replace(after, updated_at=ws.change_time(before))
    ws.put(after)
    if existing is None:
        ws.put(StorageUsage(command.tenant))
    return after


def put_workflow(ws: WorkingSet, command: PutWorkflow) -> Workflow:
    """Store a definition as the newest version; an equal definition changes nothing."""
    definition = command.definition
    check_definition(definition, ws.limits, ws.graph_rules)
    spec = encode(definition)
    version = ws.get_fact(facts.CURRENT_VERSION, definition.name)
    before = ws.find(Workflow, (definition.name, version)) if version else None
    if before is not None:
        if before.spec == spec:
            return before
        ws.put(replace(before, current=0))
    created_at = ws.change_time(before) if before else ws.now
    after = Workflow(definition.name, version + 1, 1, definition.running_max, definition.rate_max, spec, created_at)
    ws.put(after)
    link_workflow_files(ws, definition, version + 1, command.owner)
    ws.set_fact(facts.CURRENT_VERSION, definition.name, version + 1)
    ws.set_fact(facts.CURRENT_DEFINITION, definition.name, definition)
    ws.set_fact(facts.DEFINITION, (definition.name, version + 1), definition)
    ws.set_fact(facts.INPUT_SCHEMA, definition.name, compile_input_schema(definition.name, definition.input_schema))
    return after


def top_up(ws: WorkingSet, command: TopUp) -> Balance:
    """Add credits, once per idempotency key."""
    return _post_once(ws, command)


def adjust(ws: WorkingSet, command: Adjust) -> Balance:
    """Correct a balance, once per idempotency key."""
    return _post_once(ws, command)


def dedup_key_of(command: TopUp | Adjust) -> str:
    """Return the stored form of the idempotency key, scoped to the user and the verb."""
    verb = "topup" if isinstance(command, TopUp) else "adjust"
    return f"{command.tenant}/{len(command.user)}/{command.user}/{verb}/{command.idempotency_key or command.id}"


def _post_once(ws: WorkingSet, command: TopUp | Adjust) -> Balance:
    check_name("tenant", command.tenant, ws.limits)
    if not command.user or len(command.user) > ws.limits.key_chars_max or not command.user.isprintable():
        raise BadInput("invalid_user", f"The user id must have 1 to {ws.limits.key_chars_max} printable characters.")
    if len(command.idempotency_key) > ws.limits.key_chars_max or not command.idempotency_key.isprintable():
        most = ws.limits.key_chars_max
        message = f"The idempotency key must have at most {most} printable characters."
        raise BadInput("invalid_idempotency_key", message)
    if ws.find(Tenant, command.tenant) is None:
        raise NotFound("tenant", command.tenant[:80])
    dedup_key = dedup_key_of(command)
    wallet = wallet_of(ws, command.tenant, command.user)
    before = ws.get_fact(facts.LEDGER_AMOUNT, dedup_key)
    if before is not None:
        if before != command.amount:
            message = (
                f"This idempotency key was used for {pluralize(before, 'credit')}, not {command.amount}: use a new key."
            )
            raise Conflict("idempotency_key_reused", message)
        return Balance(wallet.balance, wallet.reserved, replay=True)
    post = post_top_up if isinstance(command, TopUp) else post_adjustment
    reason = redact_error(command.reason, ws.limits.message_chars_max) if command.reason.strip() else ""
    after: Wallet = post(ws, wallet, command.amount, dedup_key, reason, command.actor)
    ws.set_fact(facts.LEDGER_AMOUNT, dedup_key, command.amount)
    return Balance(after.balance, after.reserved)


def acquire_cursor(ws: WorkingSet, command: AcquireCursor) -> CursorPosition:
    """Lock a cursor for a reader and return its position, unless another reader holds the lock."""
    cursor = ws.find(Cursor, command.name) or Cursor(command.name, 0, 0, None, 0)
    locked_until = ws.now + seconds(command.lock_seconds)
    # A later end than that was set by a clock that was set back since.
    if cursor.holder not in {None, command.holder} and ws.now < cursor.locked_until <= locked_until:
        return CursorPosition(cursor.tx, cursor.position, reserved=False)
    ws.put(replace(cursor, holder=command.holder, locked_until=locked_until))
    return CursorPosition(cursor.tx, cursor.position)


def advance_cursor(ws: WorkingSet, command: AdvanceCursor) -> CursorPosition:
    """Advance a cursor and release its lock; a reader that lost the lock changes nothing."""
    cursor = ws.find(Cursor, command.name)
    if cursor is None or cursor.holder != command.holder:
        return (
            CursorPosition(0, 0, reserved=False)
            if cursor is None
            else CursorPosition(cursor.tx, cursor.position, reserved=False)
        )
    tx, position = max((cursor.tx, cursor.position), (command.tx, command.position))
    ws.put(replace(cursor, tx=tx, position=position, holder=None, locked_until=0))
    return CursorPosition(tx, position, reserved=False)


def record_installation_value(ws: WorkingSet, command: RecordInstallationValue) -> InstallationValue:
    """Record a value, unless one is recorded already."""
    existing = ws.find(InstallationValue, command.name)
    if existing is not None:
        return existing
    row = InstallationValue(command.name, command.value, ws.now, ws.now)
    ws.put(row)
    return row


def replace_installation_value(ws: WorkingSet, command: ReplaceInstallationValue) -> InstallationValue:
    """Record a value in place of the earlier one; an equal value changes nothing."""
    existing = ws.find(InstallationValue, command.name)
    if existing is not None and existing.value == command.value:
        return existing
    row = InstallationValue(command.name, command.value, ws.now if existing is None else existing.created_at, ws.now)
    ws.put(row)
    return row


def check_write(ws: WorkingSet, command: CheckWrite) -> None:
    """Update a row of its own, whose time always differs."""
    _ = command
    existing = ws.find(InstallationValue, WRITE_CHECK) or InstallationValue(WRITE_CHECK, "", ws.now, 0)
    ws.put(replace(existing, updated_at=ws.now))
