"""Addresses: one grammar for everything that can lapse, in the CLI, in HTTP paths, in the journal and on the dashboard.

``KIND/SCOPE/NAME``, or ``KIND/NAME`` for a kind whose things have no scope: ``vcr/NAMESPACE/NAME``, ``keeper/NAME``,
``key/APP/NAME``. Which kinds there are, domains say (`AddressKind`). And ``KIND.GROUP/NAMESPACE/NAME`` (or
``KIND.GROUP/NAME`` when it has no namespace) for any object of Kubernetes; a kind of the core group is written without
a dot, and an upper-case first letter tells a Kubernetes kind from ours.

Odd characters are percent-encoded, so an address is one ASCII word without spaces; `str` and `Address.parse` are exact
inverses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KUBERNETES_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]*(?:\.[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)?")
_PLAIN: Final = "-_.~:@+=,"  # beside letters and digits, what needs no encoding in a path segment
_ALL_PLAIN: Final = re.compile(f"[A-Za-z0-9{re.escape(_PLAIN)}]*")


class AddressError(UsageError, ValueError):
    """{text!r} is not an address: {problem}.

    Expected KIND/NAMESPACE/NAME as in vcr/default/nightly, key/APP/NAME, keeper/NAME, workspace/NAME or
    KIND.GROUP/NAMESPACE/NAME, with odd characters percent-encoded.
    """


@dataclass(frozen=True, slots=True)
class AddressKind:
    """A kind of our own."""

    name: str
    scope: str | None = None
    """What its scope is called, in capitals; None: its things have none."""
    problem_of: Callable[[str], str | None] | None = None
    """Says what is wrong with a scope, if anything is; None: every scope is right."""
    also: tuple[str, ...] = ()
    """Other words that mean the same, as Kubernetes and people write them; never printed."""


NO_KINDS: Final[Mapping[str, AddressKind]] = {}


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a thing that lapses is found; ``scope`` is a namespace, an application id, or None where there is none."""

    kind: str
    scope: str | None
    name: str

    def __str__(self) -> str:
        """Print the canonical form."""
        parts = (self.name,) if self.scope is None else (self.scope, self.name)
        return "/".join((self.kind, *map(_encode, parts)))

    @classmethod
    def parse(cls, text: str, kinds: Mapping[str, AddressKind] = NO_KINDS) -> Address:
        """Read an address of one of ``kinds``, by name, or of a kind of Kubernetes; raises `AddressError`."""
        word, *encoded = text.split("/")
        kind = next((known.name for known in kinds.values() if word in known.also), word)
        parts = [_decode(text, part) for part in encoded]
        if not all(parts):
            raise AddressError(text=text, problem="a part is empty")
        _check_shape(text, kind, parts, kinds)
        return cls(kind, parts[0] if len(parts) > 1 else None, parts[-1])


def _check_shape(text: str, kind: str, parts: list[str], kinds: Mapping[str, AddressKind]) -> None:
    known = kinds.get(kind)
    if known is not None:
        if len(parts) != (1 if known.scope is None else 2):
            takes = "one NAME" if known.scope is None else f"{known.scope}/NAME"
            raise AddressError(text=text, problem=f"{kind} takes {takes}")
        problem = None if known.problem_of is None else known.problem_of(parts[0])
        if problem is not None:
            raise AddressError(text=text, problem=problem)
    elif not _KUBERNETES_KIND.fullmatch(kind):
        listed = ", ".join([*sorted(kinds), "or a Kubernetes Kind.group"])
        raise AddressError(text=text, problem=f"{kind!r} is not a kind (known: {listed})")
    elif len(parts) not in {1, 2}:
        raise AddressError(
            text=text, problem="a Kubernetes kind takes NAMESPACE/NAME, or NAME when it has no namespace"
        )


def _encode(part: str) -> str:
    # A bare "." or ".." would be eaten by URL normalisation before any server sees it.
    if part in {".", ".."}:
        return part.replace(".", "%2E")
    # Names are nearly always plain, and whatever lapses is written with its address.
    return part if _ALL_PLAIN.fullmatch(part) else quote(part, safe=_PLAIN)


def _decode(text: str, part: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", part):
        raise AddressError(text=text, problem="% must be followed by two hexadecimal digits")
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeError as error:  # lone surrogates cannot be encoded, percent-encoded bytes may not decode
        raise AddressError(text=text, problem="it is not valid UTF-8") from error
