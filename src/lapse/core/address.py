"""Addresses: one grammar for everything that can lapse, in the CLI, in HTTP paths, in the journal and on the dashboard.

``vcr/NAMESPACE/NAME``, ``vrr/...``, ``mcr/...``, ``history/NAMESPACE/NAME``, ``keeper/NAME``, ``workspace/NAME``,
``key/APP/NAME``, and ``KIND.GROUP/NAMESPACE/NAME`` (or ``KIND.GROUP/NAME`` when it has no namespace) for what a
retention policy selects; a kind of the core group is written without a dot, and an upper-case first letter tells a
Kubernetes kind from ours.

Odd characters are percent-encoded, so an address is one ASCII word without spaces; `str` and `Address.parse` are exact
inverses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from lapse.core.errors import UsageError

_SCOPED: Final = {"vcr": "NAMESPACE", "vrr": "NAMESPACE", "mcr": "NAMESPACE", "history": "NAMESPACE", "key": "APP"}
_UNSCOPED: Final = frozenset({"keeper", "workspace"})
_KUBERNETES_KIND: Final = re.compile(r"[A-Z][A-Za-z0-9]*(?:\.[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)?")
_PLAIN: Final = "-_.~:@+=,"  # beside letters and digits, what needs no encoding in a path segment
_ALL_PLAIN: Final = re.compile(f"[A-Za-z0-9{re.escape(_PLAIN)}]*")
_MAX_APP: Final = 2**32 - 1


class AddressError(UsageError, ValueError):
    """{text!r} is not an address: {problem}.

    Expected KIND/NAMESPACE/NAME as in vcr/default/nightly, key/APP/NAME, keeper/NAME, workspace/NAME or
    KIND.GROUP/NAMESPACE/NAME, with odd characters percent-encoded.
    """


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
    def parse(cls, text: str) -> Address:
        """Read an address; raises `AddressError`."""
        kind, *encoded = text.split("/")
        parts = [_decode(text, part) for part in encoded]
        if not all(parts):
            raise AddressError(text=text, problem="a part is empty")
        _check_shape(text, kind, len(parts))
        if kind == "key" and not _is_app_id(parts[0]):
            raise AddressError(text=text, problem=f"the application id must be a whole number from 0 to {_MAX_APP}")
        return cls(kind, parts[0] if len(parts) > 1 else None, parts[-1])


def _check_shape(text: str, kind: str, parts: int) -> None:
    if kind in _SCOPED:
        if parts != 2:  # noqa: PLR2004 - scope and name, as the message says
            raise AddressError(text=text, problem=f"{kind} takes {_SCOPED[kind]}/NAME")
    elif kind in _UNSCOPED:
        if parts != 1:
            raise AddressError(text=text, problem=f"{kind} takes one NAME")
    elif not _KUBERNETES_KIND.fullmatch(kind):
        known = ", ".join(sorted((*_SCOPED, *_UNSCOPED)))
        raise AddressError(text=text, problem=f"{kind!r} is not a kind (known: {known}, or a Kubernetes Kind.group)")
    elif parts not in {1, 2}:
        raise AddressError(
            text=text, problem="a Kubernetes kind takes NAMESPACE/NAME, or NAME when it has no namespace"
        )


def _is_app_id(text: str) -> bool:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_APP))):
        return False
    return str(int(text)) == text and int(text) <= _MAX_APP


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
