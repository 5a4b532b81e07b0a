"""Measurement of HTTP requests, in front of everything else that an application does.

A request is counted with the template of its route, never with its path, which holds keys and names. What counts as its
time ends with the head of the answer, so that neither a slow client nor an answer that goes on is measured.

Not counted: requests whose client went away before an answer, and what the listener refuses before it is a request (too
many connections, a head that cannot be read).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lapse.core.clock import Clock, SystemClock
from lapse.engine.running.metrics import Metrics

_NS: Final = 1_000_000_000
_READING: Final = ("GET", "HEAD")


class MeasuredApp:
    """An ASGI application whose requests are counted and timed."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        routes: Iterable[tuple[str, Sequence[BaseRoute]]],
        static: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Measure what ``app`` answers: ``routes`` with what stands before their paths, and files below ``static``."""
        self.app, self._clock = app, clock or SystemClock()
        known = [(prefix + one.path_format, one) for prefix, some in routes for one in some if isinstance(one, Route)]
        # By identity, because that is what the framework leaves in the scope: the route, without what stands before it.
        self._templates = {id(route): template for template, route in known}
        named = [(method, template) for template, route in known for method in route.methods or ()]
        self._metrics = metrics.http([*named, *((method, static) for method in _READING if static)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and take the time."""
        began_ns = self._clock.monotonic_ns()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = (self._clock.monotonic_ns() - began_ns) / _NS
                self._metrics.answered(scope["method"], self._template(scope), message["status"], seconds=seconds)
            await send(message)

        await self.app(scope, receive, watched)

    def _template(self, scope: Scope) -> str:
        """Return the template of the route that a request has reached, or what files were mounted at."""
        template: str = self._templates.get(id(scope.get("route")), "") or scope.get("root_path", "")
        return template
