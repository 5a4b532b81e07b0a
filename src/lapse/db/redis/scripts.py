"""Lua scripts by name, and how a call of one is written for the wire.

A script is called by its digest (EVALSHA). A server that does not know it, because it was restarted or its scripts were
flushed, answers NOSCRIPT and has done nothing; then the same call is sent with the whole source (EVAL), which the
server remembers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hiredis import pack_command

from lapse.db.statements import load_statements

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    """One operation."""

    source: str
    digest: str
    writes: bool
    """Whether it must not be repeated when no answer came."""


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script."""

    script: Script
    keys: Sequence[str]
    arguments: Sequence[Argument]

    def by_digest(self) -> bytes:
        """Return the call for a server that knows the script."""
        return packed("EVALSHA", self.script.digest, len(self.keys), *self.keys, *self.arguments)

    def by_source(self) -> bytes:
        """Return the call for a server that does not."""
        return packed("EVAL", self.script.source, len(self.keys), *self.keys, *self.arguments)


def packed(*words: Argument) -> bytes:
    """Return a command as it goes over the wire."""
    request: bytes = pack_command(words)  # type: ignore[arg-type]  # its stub takes tuples of one
    return request


def load_scripts(package: str, file_name: str, *, repeatable: Collection[str]) -> dict[str, Script]:
    """Return the scripts of a file by name, each behind the block called ``shared``."""
    blocks = load_statements(package, file_name)
    shared = blocks.pop("shared")
    sources = {name: f"{shared}\n{body}" for name, body in blocks.items()}
    return {name: Script(source, _digest(source), name not in repeatable) for name, source in sources.items()}


def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()  # the protocol's choice
