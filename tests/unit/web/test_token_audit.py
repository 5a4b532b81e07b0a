from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.errors import LapseError
from lapse.engine.journal.port import AUDIT, Entry
from lapse.web.auth.audit import AuditedTokens, RevokedUntoldError, tell_tokens
from lapse.web.auth.tokens import NoSuchTokenError

if TYPE_CHECKING:
    from lapse.engine.journal.port import Journal
    from tests.unit.web.conftest import API


class FullError(LapseError):
    """The disk is full."""


class FullJournal:
    """Takes no row."""

    async def append(self, *_: Entry) -> None:
        raise FullError


def audited(api: API, journal: object = None) -> AuditedTokens:
    async def opened() -> Journal:
        return journal or api.journal  # type: ignore[return-value]

    return AuditedTokens(api.tokens, opened, api.clock, "cli (ann)")


async def told(api: API) -> list[tuple[object, ...]]:
    rows = await api.journal.entries(domain=AUDIT)
    return [(row.reason, row.address, row.actor, row.details) for row in reversed(rows)]


async def test_who_makes_and_revokes_a_token_is_told_without_a_word_of_its_text(api: API) -> None:
    token_id, token = await audited(api).create("ci", ["read", "monitor"])
    await audited(api).revoke(token_id)

    assert await told(api) == [
        ("token_created", f"token/{token_id}", "cli (ann)", {"name": "ci", "scopes": ["read", "monitor"]}),
        ("token_revoked", f"token/{token_id}", "cli (ann)", None),
    ]
    secret = token.rpartition("_")[2]
    assert secret not in str(await api.journal.entries())


async def test_a_token_that_cannot_be_told_is_not_made(api: API) -> None:
    with pytest.raises(FullError):
        await audited(api, FullJournal()).create("ci", ["admin"])
    (made,) = [token for token in api.tokens.list() if token.name == "ci"]

    assert made.revoked_at is not None


async def test_a_token_that_is_not_made_is_not_told(api: API) -> None:
    with pytest.raises(LapseError):
        await audited(api).create("ci", [])
    with pytest.raises(NoSuchTokenError):
        await audited(api).revoke("nobody")

    assert await told(api) == []


async def test_a_token_is_revoked_also_when_nobody_can_be_told_and_that_is_said(api: API) -> None:
    token_id, _ = await audited(api).create("ci", ["admin"])
    with pytest.raises(RevokedUntoldError, match="is revoked, but that is not in the journal: The disk is full"):
        await audited(api, FullJournal()).revoke(token_id)

    assert api.tokens.find(token_id) is None


async def test_a_token_that_is_revoked_twice_is_told_once(api: API) -> None:
    token_id, _ = await audited(api).create("ci", ["admin"])
    for _ in range(2):
        await audited(api).revoke(token_id)

    assert [row[0] for row in await told(api)] == ["token_created", "token_revoked"]


async def test_tokens_that_the_journal_does_not_know_are_told_once_with_their_own_times(api: API) -> None:
    began = api.clock.wall_ns()
    api.clock.advance(60)
    api.tokens.revoke(api.owner_id)  # by a process that was killed before it told
    for _ in range(2):
        await tell_tokens(api.tokens, api.journal, since_ns=0, actor="lapse")
    rows = (await api.journal.entries(domain=AUDIT))[::-1]

    assert [(row.reason, row.uid) for row in rows] == [
        ("token_created", api.owner_id),
        ("token_revoked", api.owner_id),
    ]
    assert [row.time_ns // 1_000_000 for row in rows] == [began // 1_000_000, api.clock.wall_ns() // 1_000_000]


async def test_what_is_older_than_the_journal_keeps_is_not_told_again(api: API) -> None:
    await tell_tokens(api.tokens, api.journal, since_ns=api.clock.wall_ns() + 1, actor="lapse")

    assert await told(api) == []
