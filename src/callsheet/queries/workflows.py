"""Workflows as a caller sees them."""

from callsheet.api.shared_fields import NamesQuery
from callsheet.api.workflows import Workflow, WorkflowPage
from callsheet.core.model import rows
from callsheet.core.model.errors import NotFound
from callsheet.core.policy.visibility import Viewer, sees_all_tenants
from callsheet.queries import render
from callsheet.queries.context import QueryContext
from callsheet.queries.pages import row_count, split_page


async def list_workflows(context: QueryContext, viewer: Viewer, query: NamesQuery) -> WorkflowPage:
    """Return a page of the workflows, by name."""
    found = await context.reads.lookup(
        "current_workflows_after", after=query.cursor, count=row_count(context, query.limit)
    )
    page, more = split_page(found, query.limit)
    views = [render_workflow(viewer, rows.Workflow(*row)) for row in page]
    return WorkflowPage(views, views[-1].name if more else None)


async def get_workflow(context: QueryContext, viewer: Viewer, name: str) -> Workflow:
    """Return the current version of a workflow."""
    found = await context.reads.lookup("current_workflows", ids=[name])
    if not found:
        raise NotFound("workflow", name[:80])
    return render_workflow(viewer, rows.Workflow(*found[0]))


def render_workflow(viewer: Viewer, row: rows.Workflow) -> Workflow:
    """Return a workflow: only operators see graphs, and browsers do not see the inputs of stages."""
    hidden = () if sees_all_tenants(viewer) else ("comfyui", "inputs") if viewer.user is not None else ("comfyui",)
    return render.workflow_view(row, hidden)
