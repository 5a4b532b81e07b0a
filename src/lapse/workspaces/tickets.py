"""Tickets and derived secrets of workspaces: one-time addresses that open a workspace in a browser.

Somebody who may open a workspace gets an address with a ticket in it; a proxy takes the ticket and gives a session. A
ticket is 256 random bits, good for one workspace and `TICKET_SECONDS`. A keys store holds only its SHA-256, so that
nobody who reads the store can use it, with the id of the token in whose name it was made: a ticket, and the session
that it begins, count only while that token does. `derive` makes the secret of one workspace for one purpose from the
secret of the installation: nothing is stored, and no derived secret tells another.

Guarantees: of any number of proxies at most one accepts a ticket, because it is removed by comparison, in one step. A
ticket that is shown at another workspace is refused and stays. Not guaranteed: that a ticket is still there when the
answer of the store was lost on its way; then it is gone unused, and a new one is made in a moment.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.identity import secret_token

if TYPE_CHECKING:
    from lapse.workspaces.model import WorkspaceId

FIELD: Final = "X-Lapse-Workspace-Secret"
"""The header in which a program is told the secret of its port."""


def derive(secret: bytes, purpose: str, workspace_id: str) -> str:
    """Return the secret of a workspace for a purpose: 64 hexadecimal characters."""
    return hmac.new(secret, f"{purpose}\0{workspace_id}".encode(), sha256).hexdigest()


TICKET_SECONDS: Final = 60
OPEN_PATH: Final = "/.lapse/open"
"""The path on a workspace's host at which a ticket is taken."""
_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{43}")


class TicketRecords(Protocol):
    """What is used of a keys store."""

    async def insert_if_not_exists(self, key: str, value: str, ttl_seconds: int) -> bool:
        """Write unless a live record is there."""
        ...

    async def ttl_get(self, key: str) -> str | None:
        """Return the value of a live record."""
        ...

    async def compare_and_delete(self, key: str, expected_value: str) -> bool:
        """Delete if this is the live value, in one atomic step."""
        ...


class Tickets:
    """The tickets in one keys store."""

    def __init__(self, records: TicketRecords) -> None:
        """Touch nothing yet."""
        self._records = records

    async def issue(self, workspace: WorkspaceId, token_id: str) -> str:
        """Make a ticket for a workspace in the name of a token; raises what the store raises."""
        while True:
            ticket = secret_token()
            if await self._records.insert_if_not_exists(_key(ticket), f"{workspace} {token_id}", TICKET_SECONDS):
                return ticket

    async def redeem(self, ticket: str, workspace: WorkspaceId) -> str | None:
        """Use up a ticket of this workspace; return the id of its token, None if it is none that nobody has used."""
        if not _TICKET.fullmatch(ticket):
            return None
        value = await self._records.ttl_get(_key(ticket)) or ""
        named, _, token_id = value.partition(" ")
        ours = named == workspace and await self._records.compare_and_delete(_key(ticket), value)
        return token_id if ours else None


def ticket_url(url: str, ticket: str) -> str:
    """Return the address that opens a workspace; ``url`` is that of its first page."""
    return f"{url.rstrip('/')}{OPEN_PATH}?ticket={ticket}"


def _key(ticket: str) -> str:
    return f"ticket/{sha256(ticket.encode()).hexdigest()}"
