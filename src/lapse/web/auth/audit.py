"""Tokens in the journal: who made and revoked which of them, and with which scopes.

Tokens and the journal are in two databases, so their rows come after the change. A token whose row cannot be written is
revoked at once and not shown; one that was revoked stays so, and the error says that nobody was told.
`tell_tokens` writes the rows of tokens that the journal does not know: those of the owner, which the first command or
``lapse up`` makes, and those of a process that was killed in between. Rows name a token by its id and its name; nothing
of its text is ever in one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.core.address import Address
from lapse.core.errors import LapseError
from lapse.engine.journal.port import AUDIT, AuditReason, audit_row

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Entry, Journal
    from lapse.web.auth.tokens import Token, TokenStore

_MS: Final = 1_000_000


class RevokedUntoldError(LapseError):
    """Token {id} is revoked, but that is not in the journal: {problem}. Run lapse up, which writes what is missing."""


@dataclass(frozen=True, slots=True)
class AuditedTokens:
    """Changes of tokens by one person. The journal is opened when it is needed."""

    tokens: TokenStore
    journal: Callable[[], Awaitable[Journal]]
    clock: Clock
    actor: str

    async def create(self, name: str, scopes: Sequence[str]) -> tuple[str, str]:
        """Make a token; see `TokenStore.create`. Raises what the journal raises, and then there is none."""
        journal = await self.journal()
        token_id, token = self.tokens.create(name, scopes)
        try:
            await journal.append(self._row(AuditReason.TOKEN_CREATED, token_id, name=name, scopes=list(scopes)))
        except BaseException:
            self.tokens.revoke(token_id)
            raise
        return token_id, token

    async def revoke(self, token_id: str) -> None:
        """Make a token useless; see `TokenStore.revoke`. Raises `RevokedUntoldError` when no row could be written."""
        was_usable = self.tokens.find(token_id) is not None
        self.tokens.revoke(token_id)
        if not was_usable:
            return
        try:
            await (await self.journal()).append(self._row(AuditReason.TOKEN_REVOKED, token_id))
        except LapseError as error:
            raise RevokedUntoldError(id=token_id, problem=str(error).rstrip(".")) from error

    def _row(self, reason: AuditReason, token_id: str, **details: object) -> Entry:
        return _row(reason, token_id, actor=self.actor, time_ns=self.clock.wall_ns(), **details)


async def tell_tokens(tokens: TokenStore, journal: Journal, *, since_ns: int, actor: str) -> None:
    """Write what the journal does not know of tokens since then: an older row may have been removed by its age."""
    for token in tokens.list():
        known = {row.reason for row in await journal.entries(domain=AUDIT, address=address_of(token.id))}
        missing = [row for row in _rows_of(token, actor) if row.reason not in known and row.time_ns > since_ns]
        if missing:
            await journal.append(*missing)


def _rows_of(token: Token, actor: str) -> list[Entry]:
    """Return all rows that there should be about a token."""
    told = {"name": token.name, "scopes": list(token.scopes)}
    rows = [_row(AuditReason.TOKEN_CREATED, token.id, actor=actor, time_ns=token.created_at, **told)]
    if token.revoked_at is not None:
        rows.append(_row(AuditReason.TOKEN_REVOKED, token.id, actor=actor, time_ns=token.revoked_at))
    return rows


def address_of(token_id: str) -> str:
    """Return what the journal calls a token."""
    return str(Address("token", None, token_id))


def _row(reason: AuditReason, token_id: str, *, actor: str, time_ns: int, **details: object) -> Entry:
    return audit_row(reason, address=address_of(token_id), uid=token_id, actor=actor, time_ns=time_ns, details=details)
