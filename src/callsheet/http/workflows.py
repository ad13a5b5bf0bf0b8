"""Workflows: what may be asked for."""

from typing import Any

import msgspec
from msgspec import Struct

from callsheet.core import commands, rows
from callsheet.core.recipe import Recipe
from callsheet.http import views
from callsheet.http.codes import STAGE
from callsheet.http.house import House
from callsheet.http.misfit import sentence
from callsheet.http.paging import NamesQuery, limited, listed, paged
from callsheet.http.problem import Problem, absent
from callsheet.http.request import Request
from callsheet.http.route import HOUSE, USER, WATCHERS, Answer, Route


class Workflows(Struct, frozen=True):
    """Workflows by name."""

    workflows: list[views.Workflow]
    next: str | None


class WorkflowBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A recipe; its name is the path's."""

    recipe: dict[str, Any]


async def list_workflows(house: House, request: Request) -> Answer:
    query = listed(house, request, NamesQuery)
    found = await house.reads.fetch("workflows_current", after=query.after, count=limited(house, query.limit))
    page, more = paged(found, query.limit)
    shown = [_shown(request, rows.Workflow(*row)) for row in page]
    return Answer(Workflows(shown, shown[-1].name if more else None))


async def get_workflow(house: House, request: Request) -> Answer:
    found = await house.reads.fetch("current_workflows", ids=[request.params["workflow"]])
    if not found:
        raise absent("workflow")
    return Answer(_shown(request, rows.Workflow(*found[0])))


async def put_workflow(house: House, request: Request) -> Answer:
    body: WorkflowBody = request.content
    name = request.params["workflow"]
    if body.recipe.get("name", name) != name:
        raise Problem(422, "invalid_recipe", "The recipe's name differs from the address.")
    try:
        recipe = msgspec.convert({**body.recipe, "name": name}, Recipe)
    except msgspec.ValidationError as error:
        raise Problem(422, "invalid_recipe", f"Recipe: {sentence(error, Recipe)}") from None
    row: rows.Workflow = await house.engine.aexecute(
        commands.PutWorkflow(recipe=recipe, owner=request.who.tenant, by=request.who.id)
    )
    return Answer(_shown(request, row))


def _shown(request: Request, row: rows.Workflow) -> views.Workflow:
    """Show a workflow: graphs are the house's own, and what goes into its stages is no browser's business."""
    role = request.who.role
    hidden = () if role in HOUSE else ("comfyui", "inputs") if role == USER else ("comfyui",)
    return views.workflow_view(row, hidden)


ROUTES = (
    Route("GET", "/v1/workflows", list_workflows, WATCHERS, "List workflows", Workflows, query=NamesQuery),
    Route("GET", "/v1/workflows/{workflow}", get_workflow, WATCHERS, "Get a workflow with its JSON Schema",
          views.Workflow, problems=("404 workflow_not_found",)),
    Route("PUT", "/v1/workflows/{workflow}", put_workflow, HOUSE, "Make or replace a workflow", views.Workflow,
          WorkflowBody, problems=("422 invalid_recipe", "422 invalid_workflow", "422 invalid_rate", *STAGE)),
)  # fmt: skip
