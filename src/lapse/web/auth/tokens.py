"""Bearer tokens: made, listed, revoked and recognised; those of people and programs, and the owner's.

People and programs have tokens with names. Such a token is ``lapse_ID_SECRET`` with a secret of 256 random bits. Only
its SHA-256 is stored: a slow password hash protects what people choose and others can guess; nobody can guess 256
random bits, so a fast hash loses nothing and costs no time per request. The id finds the row, the digests are compared
in constant time.

The token of a workspace's own program is ``lapsews_WORKSPACE_SECRET`` and not stored at all: its secret is derived from
one of the state database. It is good for one thing, and as long as the state database is.

The owner's token lies in a file of the state folder that only the user of ``lapse up`` can read. ``lapse up`` makes it,
and the commands of the same user find it without being told. It may do everything. A file that others can read or
write, a link, or a token that was revoked or is of another database is replaced, not trusted.

Guarantees: the file has mode 0600 from its first moment and is never written through a link. Of several processes that
begin at once one makes it, and the others read it: the database's lock is held meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final
from unicodedata import category, normalize

from msgspec import Struct

from lapse.core.clock import Clock
from lapse.core.errors import LapseError, UsageError
from lapse.core.identity import secret_bytes, secret_token
from lapse.engine.view import Moment
from lapse.web.api.errors import TokenInvalidError
from lapse.web.auth.scopes import ADMIN, busy_scope, check_scope
from lapse.web.auth.state import StateDatabase
from lapse.web.server.security import Principal
from lapse.workspaces.tickets import derive

OWNER: Final = "owner"
"""The name of the owner's token."""
_MARK: Final = "lapse"  # lets a scanner for leaked secrets recognise one
_PROGRAM: Final = "lapsews"
_PROGRAM_SECRET: Final = "workspace-busy"  # noqa: S105 - the name of a secret, not the secret
_PARTS: Final = 3
_ID_BYTES: Final = 6
_MS: Final = 1_000_000
_MAX_NAME: Final = 100
# Letters of other scripts that look like Latin ones, and letters that have no look.
_LOOKS: Final = str.maketrans(
    "авеіјкмнорсѕтухһԁԛԝαεικνορτυχ", "abeijkmhopcstyxhdqwaeikvoptux", "\u115f\u1160\u3164\uffa0"
)


class NoScopeError(UsageError):
    """A token needs at least one scope, such as --scope admin, read, monitor, keys:APP or workspaces:OWNER."""


class TokenNameError(UsageError, ValueError):
    """The name of a token must be 1 to {limit} printable characters, with no space at its ends, nor begin with 'user'.

    People recognise it by that in lists, and it says who somebody is where two persons are needed.
    """


class SimilarTokenNameError(UsageError, ValueError):
    """{name!r} looks like {other!r}, the name of another token. Names are persons: take {other!r}, or another name."""


class NoSuchTokenError(LapseError):
    """There is no token {id}; lapse tokens list shows them."""


class Token(Struct, frozen=True):
    """A token as it is listed: everything but the secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    created_at: Moment
    revoked_at: Moment | None


class TokenStore:
    """The tokens of a state database. Each method is atomic."""

    def __init__(self, state: StateDatabase, *, clock: Clock) -> None:
        """Use an open state database."""
        self._state = state
        self._clock = clock

    def create(self, name: str, scopes: Sequence[str]) -> tuple[str, str]:
        """Make a token; return its id and the token itself, which is not kept and cannot be shown again.

        Tokens of one name are one person, so a name that only looks like another one is refused.
        """
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or name != name.strip():
            raise TokenNameError(limit=_MAX_NAME)
        look = _look_of(name)
        if not look or look.partition(" ")[0] == "user":
            raise TokenNameError(limit=_MAX_NAME)
        if not scopes:
            raise NoScopeError
        wanted = " ".join(dict.fromkeys(check_scope(scope) for scope in scopes))
        with self._state.exclusively():
            others = dict.fromkeys(one.name for one in self.list())  # revoked ones, too: the journal has their names
            similar = None if name in others else next((one for one in others if _look_of(one) == look), None)
            if similar is not None:
                raise SimilarTokenNameError(name=name, other=similar)
            return self._add(name, wanted)

    def create_owner(self) -> tuple[str, str]:
        """Make the owner's token, which may do everything, instead of the one before; return its id and the token."""
        self._state.rows("revoke_owner_tokens", self._now())
        return self._add(OWNER, ADMIN, is_owner=True)

    def list(self) -> list[Token]:
        """Return all tokens, revoked ones included, oldest first."""
        return [
            Token(
                token_id,
                name,
                tuple(scopes.split()),
                Moment(created_ms * _MS),
                Moment(revoked_ms * _MS) if revoked_ms else None,
            )
            for token_id, name, scopes, created_ms, revoked_ms in self._state.rows("list_tokens")
        ]

    def get(self, token_id: str) -> Token:
        """Return one token; raises `NoSuchTokenError`."""
        for token in self.list():
            if token.id == token_id:
                return token
        raise NoSuchTokenError(id=token_id)

    def revoke(self, token_id: str) -> None:
        """Make a token useless, and its sessions and tickets with it, from the next request on.

        Idempotent; raises `NoSuchTokenError`.
        """
        if not self._state.rows("revoke_token", token_id, self._now()):
            raise NoSuchTokenError(id=token_id)

    def principal(self, token: str) -> Principal:
        """Return who holds ``token``; raises `TokenInvalidError`."""
        parts = token.split("_", _PARTS - 1)
        if parts[0] == _PROGRAM and len(parts) == _PARTS:
            return self._program(token, parts[1])
        found = self._state.rows("find_usable_token", parts[1]) if len(parts) == _PARTS else []
        if not found or not compare_digest(found[0][1], _digest(token)):
            raise TokenInvalidError
        return _principal(parts[1], found[0])

    def of_program(self, workspace: str) -> str:
        """Return the token that a workspace's own program gets: it renews the lease of that workspace, nothing else."""
        return f"{_PROGRAM}_{workspace}_{derive(self._state.secret(_PROGRAM_SECRET), 'busy', workspace)}"

    def _program(self, token: str, workspace: str) -> Principal:
        if not compare_digest(self.of_program(workspace).encode(), token.encode("utf-8", "replace")):
            raise TokenInvalidError
        return Principal(f"of workspace {workspace}", frozenset({busy_scope(workspace)}))

    def find(self, token_id: str) -> Principal | None:
        """Return the holder of a token by its id, for sessions; None when there is none, or it was revoked."""
        found = self._state.rows("find_usable_token", token_id)
        return _principal(token_id, found[0]) if found else None

    def persons(self, scope: str) -> set[str]:
        """Return the names of usable tokens that may do what a scope allows; the owner's does not count."""
        rows = self._state.rows("named_tokens")
        return {name for name, scopes in rows if not {scope, ADMIN}.isdisjoint(scopes.split())}

    def any_named(self) -> bool:
        """Whether a person could call with a token; the owner's does not count."""
        return bool(self._state.rows("is_any_named_token")[0][0])

    def _add(self, name: str, scopes: str, *, is_owner: bool = False) -> tuple[str, str]:
        token_id = secret_bytes(_ID_BYTES).hex()
        token = f"{_MARK}_{token_id}_{secret_token()}"
        self._state.rows("add_token", token_id, name, scopes, _digest(token), self._now(), int(is_owner))
        return token_id, token

    def _now(self) -> int:
        return self._clock.wall_ns() // _MS


def _principal(token_id: str, row: tuple[str, bytes, str, int]) -> Principal:
    scopes, _, name, is_owner = row
    return Principal(token_id, frozenset(scopes.split()), name, bool(is_owner))


def _look_of(name: str) -> str:
    """Return what two names have in common that people take for one: without case, marks, and doubled spaces.

    Not complete: of letters of other scripts, only the plainest are known.
    """
    letters = "".join(one for one in normalize("NFKD", name.casefold()) if category(one) != "Mn")
    return " ".join(letters.casefold().translate(_LOOKS).split())


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "replace")).digest()


FILE_NAME: Final = "owner-token"
_LONGEST: Final = 200


class OwnerTokenError(LapseError):
    """The owner's token {path} cannot be used: {problem}. Set state_dir to a folder that this user may write."""


def owner_of(folder: Path, state: StateDatabase, tokens: TokenStore) -> tuple[str, str]:
    """Return id and text of the owner's token of a state folder; make it if need be."""
    path = folder / FILE_NAME
    try:
        with state.exclusively():
            text = _read(path)
            found = None if text is None else _holder(text, tokens)
            if text is not None and found is not None:
                return found.token_id, text
            path.unlink(missing_ok=True)
            made = tokens.create_owner()
            _write(path, made[1])
            return made
    except OSError as error:
        raise OwnerTokenError(path=path, problem=error.strerror or "unknown reason") from error


def find_owner_token(folder: Path) -> str | None:
    """Return the owner's token of a state folder, as its file has it; None where there is none to be trusted."""
    return _read(folder / FILE_NAME)


def _holder(text: str, tokens: TokenStore) -> Principal | None:
    try:
        return tokens.principal(text)
    except TokenInvalidError:
        return None


def _read(path: Path) -> str | None:
    """Return what is in the file; None where there is none that this user alone can read and write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if not private or found.st_uid != os.geteuid():
            return None
        return file.read(_LONGEST).decode("ascii", "replace").strip()


def _write(path: Path, token: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
