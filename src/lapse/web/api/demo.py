"""The demo over HTTP: whether it runs and what there is of it, its start, and its removal with one click.

| address under ``/api/v1`` | what |
|---|---|
| GET ``/demo`` | whether it runs, and what there is of it |
| POST ``/demo/start`` | let it run for its time |
| POST ``/demo/stop`` | end it, and everything that it has made |
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from lapse.engine.verbs.demo import DemoControl, DemoView
from lapse.web.api.forms import Answer, Form, answer
from lapse.web.server.security import caller_of

router = APIRouter(tags=["demo"])


class DemoAsked(Form):
    """There is nothing to say: an empty object."""


async def _demo(request: Request) -> DemoControl:
    demo: DemoControl = request.app.state.demo
    return demo


Control = Annotated[DemoControl, Depends(_demo)]


@router.get("/demo", operation_id="demo.status", summary="The demo", responses={200: answer(DemoView)})
async def show_demo(demo: Control) -> Response:
    """Return whether the demo runs, until when, and what there is of it now."""
    return Answer(await demo.status())


@router.post("/demo/start", operation_id="demo.start", summary="Start the demo", responses={200: answer(DemoView)})
async def start_demo(_asked: DemoAsked, demo: Control) -> Response:
    """Let the demo run for an hour; one that runs goes on as it is."""
    return Answer(await demo.start())


@router.post("/demo/stop", operation_id="demo.stop", summary="Stop the demo", responses={200: answer(DemoView)})
async def stop_demo(request: Request, _asked: DemoAsked, demo: Control) -> Response:
    """End the demo, and everything that it has made; what takes longer is removed within seconds."""
    return Answer(await demo.stop(caller_of(request)))
