"""The operator: changes workflows and limits, suspends tenants, manages workers, creates and revokes keys."""

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from callsheet.core.model.commands import (
    Command,
    CreateKey,
    PutTenant,
    PutWorkflow,
    RevokeKey,
    RevokeWorker,
    RotateWorker,
    UpdateWorker,
)
from callsheet.core.model.commands.operator import Role
from callsheet.core.model.rows import ApiKey
from callsheet.core.model.workflow_definition import WorkflowDefinition
from tests.sim.actors.fleet_workers import FleetWorker
from tests.sim.environment.network import Request, ignore_answers
from tests.sim.environment.scenario import KINDS, Scenario
from tests.sim.environment.server import Admission


class Operator:
    """Changes the setup while it is in use; limits only grow, so that running tasks stay within them."""

    def __init__(self, random: Random, scenario: Scenario, fleet: list[FleetWorker]) -> None:
        self._random = random
        self._fleet = fleet
        self._secrets: list[str] = []
        """The hashes of the newest secrets; a secret may be used again."""
        self._keys: list[str] = []
        self._tenants = {command.tenant: command for command in scenario.setup if isinstance(command, PutTenant)}
        self._definitions = {
            command.definition.name: command.definition
            for command in scenario.setup
            if isinstance(command, PutWorkflow)
        }

    def act(self) -> Request:
        roll = self._random.random()
        if roll < 0.2:
            return self._change_key()
        if self._fleet and roll < 0.8:
            return self._change_worker(self._random.choice(self._fleet))
        actions: tuple[Callable[[], Command], ...] = (
            self._change_price,
            self._raise_running_limit,
            self._toggle_suspension,
            self._raise_job_limit,
        )
        return Request([self._random.choice(actions)()], ignore_answers)

    def _change_price(self) -> Command:
        definition = self._definitions[self._random.choice(sorted(self._definitions))]
        return self._put_workflow(replace(definition, price=self._random.choice((0, 4, 11))))

    def _raise_running_limit(self) -> Command:
        film = self._definitions["film"]
        return self._put_workflow(replace(film, running_max=film.running_max + 1 if film.running_max else None))

    def _put_workflow(self, definition: WorkflowDefinition) -> Command:
        self._definitions[definition.name] = definition
        return PutWorkflow(definition=definition)

    def _toggle_suspension(self) -> Command:
        tenant = self._tenants[self._random.choice(sorted(self._tenants))]
        active = tenant.status == "active"
        self._tenants[tenant.tenant] = replace(tenant, status="suspended" if active else "active")
        return self._tenants[tenant.tenant]

    def _raise_job_limit(self) -> Command:
        tenant = self._tenants[self._random.choice(sorted(self._tenants))]
        limit = tenant.active_jobs_max + 1 if tenant.active_jobs_max else None
        self._tenants[tenant.tenant] = replace(tenant, active_jobs_max=limit, weight=self._random.choice((1, 2, 3)))
        return self._tenants[tenant.tenant]

    # -- keys

    def _change_key(self) -> Request:
        """Create a key, sometimes with the secret of another one, or revoke one, sometimes of another tenant."""
        tenant = self._random.choice(sorted(self._tenants))
        if self._keys and self._random.random() < 0.5:
            owner = None if self._random.random() < 0.7 else tenant
            return Request([RevokeKey(key_id=self._random.choice(self._keys), tenant=owner)], ignore_answers)
        if not self._secrets or self._random.random() < 0.7:
            self._secrets = [*self._secrets[-2:], f"{self._random.getrandbits(256):064x}"]
        seconds = self._random.choice((None, 60))
        secret_hash = self._random.choice(self._secrets)
        roles: tuple[Role, ...] = ("client", "viewer", "worker")  # a worker key has no tenant, so it is refused
        role = self._random.choice(roles)
        create = CreateKey(tenant=tenant, role=role, name="app", secret_hash=secret_hash, expires_in_seconds=seconds)
        return Request([create], self._on_key_created)

    def _on_key_created(self, answers: list[Any] | None) -> None:
        if answers and isinstance(answers[0], ApiKey):
            self._keys = [*self._keys[-3:], answers[0].id]

    # -- workers

    def _change_worker(self, worker: FleetWorker) -> Request:
        """Change a worker; approvals are the most frequent, so that workers do not stay excluded."""
        name, roll = worker.name, self._random.random()
        if roll < 0.12:
            return Request([RevokeWorker(worker_id=name, requested_by="op")], ignore_answers)
        if roll < 0.27:
            return Request(
                [RotateWorker(worker_id=name, token_hash="", requested_by="op")],
                lambda answers: _pass_session(worker, answers),
            )
        if roll < 0.4:
            return Request([UpdateWorker(worker_id=name, draining=True, requested_by="op")], ignore_answers)
        if roll < 0.5:
            kinds = self._random.choice((("draw",), ("cut", "draw"), KINDS))
            return Request([UpdateWorker(worker_id=name, kinds=kinds, requested_by="op")], ignore_answers)
        approved = None if self._random.random() < 0.1 else self._random.random() < 0.9
        return Request(
            [UpdateWorker(worker_id=name, approved=approved, draining=False, requested_by="op")], ignore_answers
        )

    def unblock_all(self) -> list[Command]:
        """Return commands that approve every worker and lift its restrictions."""
        names = dict.fromkeys(worker.name for worker in self._fleet)
        return [
            UpdateWorker(worker_id=name, approved=True, draining=False, kinds=(), requested_by="op") for name in names
        ]


def _pass_session(worker: FleetWorker, answers: list[Any] | None) -> None:
    if answers and isinstance(answers[0], Admission):
        worker.replace_session(answers[0].session)
