"""What an operator sets up: tenants, workflows, credits; and the places of readers in the event order."""

from msgspec.structs import replace

from callsheet.core.clock import seconds
from callsheet.core.commands import Adjust, Balance, MoveCursor, Place, PutTenant, PutWorkflow, TakeCursor, TopUp
from callsheet.core.errors import BadInput, Conflict, Unknown
from callsheet.core.files import name_files
from callsheet.core.money import adjust as post_adjustment
from callsheet.core.money import top_up as post_top_up
from callsheet.core.money import wallet_of
from callsheet.core.recipe import check_recipe, in_range, name_checked, validator
from callsheet.core.redact import clean
from callsheet.core.rows import Cursor, Tenant, Wallet, Workflow
from callsheet.core.working import WorkingSet, encode


def put_tenant(ws: WorkingSet, command: PutTenant) -> Tenant:
    """Make a tenant or change it; an equal one changes nothing."""
    name_checked("tenant", command.tenant, ws.limits)
    known = ws.find(Tenant, command.tenant)
    before = known or Tenant(command.tenant, 1, "active", 0, ws.now, ws.now)
    given = {name: getattr(command, name) for name in ("weight", "status", "active_jobs_max")}
    after = replace(before, **{name: value for name, value in given.items() if value is not None})
    in_range("weight", after.weight, 1, 1_000)
    in_range("active_jobs_max", after.active_jobs_max, 0, 2**31)
    if after.status not in {"active", "suspended"}:
        raise BadInput("invalid_status", f"A tenant is active or suspended, not {after.status!r}.")
    if after == known:
        return known
    after = replace(after, updated_at=ws.now)
    ws.put(after)
    return after


def put_workflow(ws: WorkingSet, command: PutWorkflow) -> Workflow:
    """Store a recipe as the newest version; an equal one changes nothing."""
    recipe = command.recipe
    check_recipe(recipe, ws.limits)
    spec = encode(recipe)
    version: int = ws.fact("current_version", recipe.name)
    before = ws.find(Workflow, (recipe.name, version)) if version else None
    if before is not None:
        if before.spec == spec:
            return before
        ws.put(replace(before, current=0))
    after = Workflow(recipe.name, version + 1, 1, recipe.running_max, recipe.rate_max, spec, ws.now)
    ws.put(after)
    name_files(ws, recipe, version + 1, command.owner)
    ws.set_fact("current_version", recipe.name, version + 1)
    ws.set_fact("current_recipe", recipe.name, recipe)
    ws.set_fact("recipe", (recipe.name, version + 1), recipe)
    ws.set_fact("validator", recipe.name, validator(recipe))
    return after


def top_up(ws: WorkingSet, command: TopUp) -> Balance:
    """Add credits once per key."""
    return _posted(ws, command)


def adjust(ws: WorkingSet, command: Adjust) -> Balance:
    """Correct a balance once per key."""
    return _posted(ws, command)


def idem_of(command: TopUp | Adjust) -> str:
    """Return the name under which a movement of credits is known."""
    verb = "topup" if isinstance(command, TopUp) else "adjust"
    return f"{command.tenant}/{len(command.user)}/{command.user}/{verb}/{command.idempotency_key or command.id}"


def _posted(ws: WorkingSet, command: TopUp | Adjust) -> Balance:
    name_checked("tenant", command.tenant, ws.limits)
    if not command.user or len(command.user) > ws.limits.key_chars_max or not command.user.isprintable():
        raise BadInput("invalid_user", f"A user id has 1 to {ws.limits.key_chars_max} printable characters.")
    if len(command.idempotency_key) > ws.limits.key_chars_max or not command.idempotency_key.isprintable():
        raise BadInput("invalid_idempotency_key", f"A key has at most {ws.limits.key_chars_max} printable characters.")
    if ws.find(Tenant, command.tenant) is None:
        raise Unknown("tenant", command.tenant[:80])
    idem = idem_of(command)
    wallet = wallet_of(ws, command.tenant, command.user)
    before: int | None = ws.fact("entry", idem)
    if before is not None:
        if before != command.amount:
            raise Conflict("idempotency_key_reused", "This key moved another amount before.")
        return Balance(wallet.balance, wallet.held, replay=True)
    post = post_top_up if isinstance(command, TopUp) else post_adjustment
    reason = clean(command.reason, ws.limits.message_chars_max) if command.reason.strip() else ""
    after: Wallet = post(ws, wallet, command.amount, idem, reason, command.actor)
    ws.set_fact("entry", idem, command.amount)
    return Balance(after.balance, after.held)


def take_cursor(ws: WorkingSet, command: TakeCursor) -> Place:
    """Give a reader its place, if nobody else reads for it now."""
    cursor = ws.find(Cursor, command.name) or Cursor(command.name, 0, 0, None, 0)
    if cursor.holder not in {None, command.holder} and cursor.held_until > ws.now:
        return Place(cursor.tx, cursor.position, held=False)
    ws.put(replace(cursor, holder=command.holder, held_until=ws.now + seconds(command.hold_seconds)))
    return Place(cursor.tx, cursor.position)


def move_cursor(ws: WorkingSet, command: MoveCursor) -> Place:
    """Note how far a reader has come; one that lost its hold moves nothing."""
    cursor = ws.find(Cursor, command.name)
    if cursor is None or cursor.holder != command.holder:
        return Place(0, 0, held=False) if cursor is None else Place(cursor.tx, cursor.position, held=False)
    place = max((cursor.tx, cursor.position), (command.tx, command.position))
    ws.put(replace(cursor, tx=place[0], position=place[1], holder=None, held_until=0))
    return Place(*place, held=False)
