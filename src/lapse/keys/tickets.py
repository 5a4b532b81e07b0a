"""The part of a keys store that holds tickets to workspaces: beside all applications, so that none can reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapse.keys.aio import AsyncAppKeys, AsyncKeys
from lapse.keys.backends.layout import Prefix

if TYPE_CHECKING:
    from lapse.core.clock import Clock


def ticket_records(keys: AsyncKeys, *, clock: Clock) -> AsyncAppKeys:
    """Return the records that `lapse.workspaces.tickets` works on."""
    space = keys.backend.async_space(Prefix.WORKSPACE_TICKETS, 0)
    return AsyncAppKeys(0, space, backend=keys.backend, clock=clock)
