"""Routes for workflows: list, get, and create or replace their definitions."""

import msgspec

from callsheet.api.shared_fields import NamesQuery
from callsheet.api.workflows import Workflow, WorkflowBody, WorkflowPage
from callsheet.core.model import commands
from callsheet.core.model.workflow_definition import WorkflowDefinition
from callsheet.http.openapi.error_codes import STAGE
from callsheet.http.server.list_query import parse_list_query
from callsheet.http.server.problems import Problem
from callsheet.http.server.request import Request
from callsheet.http.server.route import OPERATORS, READERS_AND_USERS, Response, Route
from callsheet.http.server.validation_errors import describe_validation_error
from callsheet.http.state import AppState
from callsheet.queries import workflows


async def list_workflows(state: AppState, request: Request) -> Response:
    query = parse_list_query(state, request, NamesQuery)
    return Response(await workflows.list_workflows(state.queries, request.caller, query))


async def get_workflow(state: AppState, request: Request) -> Response:
    return Response(await workflows.get_workflow(state.queries, request.caller, request.params["workflow"]))


async def put_workflow(state: AppState, request: Request) -> Response:
    body: WorkflowBody = request.content
    name = request.params["workflow"]
    if body.definition.get("name", name) != name:
        raise Problem(422, "invalid_definition", f"The definition's name must be {name!r}, as in the URL.")
    try:
        definition = msgspec.convert({**body.definition, "name": name}, WorkflowDefinition)
    except msgspec.ValidationError as error:
        raise Problem(
            422, "invalid_definition", f"WorkflowDefinition: {describe_validation_error(error, WorkflowDefinition)}"
        ) from None
    row = await state.engine.aexecute(
        commands.PutWorkflow(definition=definition, owner=request.caller.tenant, requested_by=request.caller.id)
    )
    return Response(workflows.render_workflow(request.caller, row))


ROUTES = (
    Route("GET", "/v1/workflows", list_workflows, READERS_AND_USERS, "List workflows", WorkflowPage, query=NamesQuery,
          details="The current version of each workflow, sorted by name."),
    Route("GET", "/v1/workflows/{workflow}", get_workflow, READERS_AND_USERS, "Get a workflow",
          Workflow, problems=("404 workflow_not_found",),
          details="Returns the current version of the definition, with its price and the JSON Schema of its input."),
    Route("PUT", "/v1/workflows/{workflow}", put_workflow, OPERATORS, "Create or replace a workflow", Workflow,
          WorkflowBody,
          problems=(
              "422 invalid_definition", "422 invalid_workflow", "422 invalid_rate", "422 schema_too_large", *STAGE
          ),
          details="A changed definition becomes a new version. Jobs keep the version with which they were submitted."),
)  # fmt: skip
