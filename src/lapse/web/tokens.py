"""Bearer tokens: made, listed, revoked and recognised.

A token is ``lapse_ID_SECRET`` with a secret of 256 random bits. Only its SHA-256 is stored: a slow password hash
protects what people choose and others can guess; nobody can guess 256 random bits, so a fast hash loses nothing and
costs no time per request. The id finds the row, the digests are compared in constant time.

The token of a workspace's own program is ``lapsews_WORKSPACE_SECRET`` and not stored at all: its secret is derived from
one of the state database. It is good for one thing, and as long as the state database is.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from lapse.core.clock import Clock
from lapse.core.errors import LapseError, UsageError
from lapse.core.identity import secret_bytes, secret_token
from lapse.core.log import get_logger
from lapse.web.errors import TokenInvalidError, TokenMissingError, TokensUnavailableError
from lapse.web.scopes import ADMIN, busy_scope, check_scope
from lapse.web.security import Head, Principal
from lapse.web.state import StateDatabase, StateError
from lapse.workspaces.secrets import derive

_log = get_logger("lapse.web.tokens")
_MARK: Final = "lapse"  # lets a scanner for leaked secrets recognise one
_PROGRAM: Final = "lapsews"
_PROGRAM_SECRET: Final = "workspace-busy"  # noqa: S105 - the name of a secret, not the secret
_PARTS: Final = 3
_ID_BYTES: Final = 6
_MS: Final = 1_000_000
_MAX_NAME: Final = 100


class NoScopeError(UsageError):
    """A token needs at least one scope: --scope admin, read, keys:APP or workspaces:OWNER."""


class TokenNameError(UsageError, ValueError):
    """The name of a token must be 1 to {limit} printable characters, so that you recognise it in a list."""


class NoSuchTokenError(LapseError):
    """There is no token {id}; lapse tokens list shows them."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it is listed: everything but the secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created: datetime
    revoked: datetime | None


class TokenStore:
    """The tokens of a state database. Each method is one atomic statement."""

    def __init__(self, state: StateDatabase, *, clock: Clock) -> None:
        """Use an open state database."""
        self._state = state
        self._clock = clock

    def create(self, name: str, scopes: Sequence[str]) -> tuple[str, str]:
        """Make a token; return its id and the token itself, which is not kept and cannot be shown again."""
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise TokenNameError(limit=_MAX_NAME)
        if not scopes:
            raise NoScopeError
        wanted = " ".join(dict.fromkeys(check_scope(scope) for scope in scopes))
        token_id = secret_bytes(_ID_BYTES).hex()
        token = f"{_MARK}_{token_id}_{secret_token()}"
        self._state.rows("add_token", token_id, name, wanted, _digest(token), self._clock.wall_ns() // _MS)
        return token_id, token

    def list(self) -> list[Token]:
        """Return all tokens, revoked ones included, oldest first."""
        return [
            Token(token_id, name, tuple(scopes.split()), _time(created_ms), _time(revoked_ms) if revoked_ms else None)
            for token_id, name, scopes, created_ms, revoked_ms in self._state.rows("list_tokens")
        ]

    def revoke(self, token_id: str) -> None:
        """Make a token useless, from the next request on. Idempotent; raises `NoSuchTokenError`."""
        if not self._state.rows("revoke_token", token_id, self._clock.wall_ns() // _MS):
            raise NoSuchTokenError(id=token_id)

    def principal(self, token: str) -> Principal:
        """Return who holds ``token``; raises `TokenInvalidError`."""
        parts = token.split("_", _PARTS - 1)
        if parts[0] == _PROGRAM and len(parts) == _PARTS:
            return self._program(token, parts[1])
        found = self._state.rows("find_usable_token", parts[1]) if len(parts) == _PARTS else []
        if not found or not compare_digest(found[0][1], _digest(token)):
            raise TokenInvalidError
        return Principal(parts[1], frozenset(found[0][0].split()))

    def of_program(self, workspace: str) -> str:
        """Return the token that a workspace's own program gets: it renews the lease of that workspace, nothing else."""
        return f"{_PROGRAM}_{workspace}_{derive(self._state.secret(_PROGRAM_SECRET), 'busy', workspace)}"

    def _program(self, token: str, workspace: str) -> Principal:
        if not compare_digest(self.of_program(workspace).encode(), token.encode("utf-8", "replace")):
            raise TokenInvalidError
        return Principal(f"of workspace {workspace}", frozenset({busy_scope(workspace)}))

    def any_exists(self) -> bool:
        """Whether a token was ever made, revoked ones included."""
        return bool(self._state.rows("is_any_token")[0][0])

    def any_usable(self) -> bool:
        """Whether somebody could call with a token."""
        return bool(self._state.rows("is_any_usable_token")[0][0])


class Admission:
    """Decides who is calling: an `lapse.web.security.Admit`.

    Open mode, in which everybody may do everything, holds while this server listens on loopback only and no token
    was ever made. Revoking the last token does not bring it back: closing a door must not open another.
    """

    def __init__(self, tokens: TokenStore, *, loopback_only: bool) -> None:
        """Decide by ``tokens``."""
        self._tokens = tokens
        self._loopback_only = loopback_only

    def is_open(self) -> bool:
        """Whether one may call without a token now."""
        return self._loopback_only and not self._tokens.any_exists()

    def __call__(self, head: Head) -> Principal:
        """Return who is calling; raises `TokenMissingError` or `TokenInvalidError`."""
        try:
            if "authorization" in head.headers:
                return self._tokens.principal(given_token(head))
            if not self.is_open():
                raise TokenMissingError
        except StateError as error:
            # For the log only: whoever is calling has not shown a token yet.
            _log.warning("tokens_unavailable", reason=str(error))
            raise TokensUnavailableError from error
        return Principal(None, frozenset({ADMIN}))


def given_token(head: Head) -> str:
    """Take the token out of the Authorization header.

    As a password it is accepted for reading only: that is how a browser can send it, and a browser also sends it
    when a foreign page makes it do so.
    """
    scheme, _, credentials = (head.only("authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() == "basic" and head.method in {"GET", "HEAD"}:
        try:
            return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            raise TokenInvalidError from None
    raise TokenMissingError


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()


def _time(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
