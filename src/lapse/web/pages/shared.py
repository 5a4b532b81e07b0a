"""The live part of a page, made once for everybody who looks at the same at the same time.

After a change all open dashboards ask for the same part. It is made for the first of them; whoever asks within the next
moment, with the same scopes and after the same changes, gets the same, with the token of their own forms.

Not guaranteed: that it shows what was changed within the last quarter of a second, unless a form of this server did
that. Subscribers are told of each change (`lapse.web.live`), and ask again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from starlette.responses import Response

from lapse.core.identity import secret_token
from lapse.web.live import LiveChanges
from lapse.web.pages.forms import csrf_of
from lapse.web.pages.render import is_live_update, own_url
from lapse.web.server.security import PRINCIPAL, Principal

_SHARED_NS: Final = 250_000_000
_MOST_KEPT: Final = 16


@dataclass(frozen=True, slots=True)
class _Made:
    seen: dict[str, int]
    begun_ns: int
    task: asyncio.Task[Response]


class SharedPages:
    """See the module. Belongs to one event loop."""

    def __init__(self, live: LiveChanges) -> None:
        """Share nothing yet; ``live`` tells whether something has changed."""
        self._live = live
        self._made: OrderedDict[tuple[str, frozenset[str]], _Made] = OrderedDict()
        self._mark = secret_token()
        """Stands where the token of a person is put in. A secret, so that nothing on a page can be taken for it."""

    async def answer(self, request: Request, make: Callable[[str], Awaitable[Response]]) -> Response:
        """Return what ``make`` returns for the token of forms that it is given, or has returned a moment ago."""
        if not is_live_update(request):
            return await make(csrf_of(request))
        principal: Principal = request.scope[PRINCIPAL]
        key, seen = (own_url(request), principal.scopes), dict(await self._live.seen())
        now = self._live.clock.monotonic_ns()
        made = self._made.pop(key, None)
        if made is None or made.seen != seen or now - made.begun_ns >= _SHARED_NS:
            made = _Made(seen, now, asyncio.ensure_future(make(self._mark)))
        self._made[key] = made
        if len(self._made) > _MOST_KEPT:
            self._made.popitem(last=False)
        found = await asyncio.shield(made.task)  # others may wait for it, too
        body = bytes(found.body).replace(self._mark.encode(), csrf_of(request).encode())
        headers = {name: value for name, value in found.headers.items() if name != "content-length"}
        return Response(body, found.status_code, headers)

    def forget(self) -> None:
        """Make everything anew: a person has just changed something, and looks at what came of it."""
        self._made.clear()
