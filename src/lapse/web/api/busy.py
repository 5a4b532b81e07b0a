"""``lapse busy`` over HTTP: a lease that keeps a workspace from lapsing while a command runs.

| address under ``/api/v1`` | what |
|---|---|
| POST ``/workspaces/{name}/busy`` | begin a lease, or renew one |
| DELETE ``/workspaces/{name}/busy/{lease}`` | end it |

A caller that may change a workspace may do this, and so may its own program, with a token that is good for nothing
else. A lease counts like a connection: it ends by itself when it is not renewed, and after ``busy_most`` it is renewed
no more. It wakes nothing, and what a person stops is stopped.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field
from starlette.responses import Response

from lapse.web.api.forms import Answer, Name, answer, problems
from lapse.web.api.workspaces import Service, Whose, WorkspaceForm
from lapse.web.auth.scopes import busy_in
from lapse.web.server.security import PRINCIPAL, Principal
from lapse.workspaces.view import BusyLeaseView

router = APIRouter(tags=["workspaces"])


class BusyAsked(WorkspaceForm):
    """A lease to begin, or the one to renew."""

    lease: Annotated[str | None, Field(description="The id of the lease to renew; without one a new lease begins")] = (
        None
    )


async def _busy(request: Request) -> str | None:
    principal: Principal = request.scope[PRINCIPAL]
    return busy_in(principal.scopes)


Own = Annotated[str | None, Depends(_busy)]


@router.post(
    "/workspaces/{name}/busy",
    operation_id="workspaces.busy",
    summary="Keep a workspace busy",
    responses={200: answer(BusyLeaseView), **problems(404, 409)},
)
async def keep_busy(name: Name, body: BusyAsked, *, service: Service, whose: Whose, own: Own) -> Response:
    """Begin or renew a lease: the workspace does not lapse as long as it is renewed."""
    return Answer(await service.busy(name, whose, own=own, lease=body.lease))


@router.delete(
    "/workspaces/{name}/busy/{lease}",
    operation_id="workspaces.end_busy",
    summary="End a lease",
    status_code=204,
    responses={204: {"description": "Ended"}, **problems(404)},
)
async def end_busy(
    name: Name,
    lease: Annotated[str, Path(description="The id of the lease")],
    *,
    service: Service,
    whose: Whose,
    own: Own,
) -> Response:
    """End a lease; the time of the workspace counts from now."""
    await service.not_busy(name, whose, own=own, lease=lease)
    return Response(status_code=204)
