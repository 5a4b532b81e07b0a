"""Conditional requests and ETags of keys. Pure.

| request | operation |
|---|---|
| nothing | unconditional |
| ``If-None-Match: *`` | only if the key is absent (insert) |
| ``If-Match: "tag"`` or ``*`` | only if the key has this tag, or exists |
| ``expected`` in the JSON body | only if the key has this value |

More than one of these at once is an error, not a guess.

A tag stands for the value, so a swap by tag is a swap by value: a value that was changed and changed back matches
again, and renewing the TTL does not change the tag. It is a keyed hash with a secret that stays in the state
database. An unkeyed hash would tell short values (PINs, device codes) to anyone who can guess and hash.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from lapse.web.api.errors import ContradictoryConditionsError

_DIGEST_BYTES: Final = 16


class Tagger:
    """Makes tags with one secret. Two servers on one state database make the same tags."""

    def __init__(self, secret: bytes) -> None:
        """Use ``secret``, 16 to 64 bytes of it."""
        self._secret = secret

    def tag(self, app_id: int, key: str, value: str) -> str:
        """Return the tag, with the quotes that HTTP wants."""
        name = key.encode()
        # Length first: without it a key's end and a value's start could be moved against each other.
        head = app_id.to_bytes(4, "big") + len(name).to_bytes(2, "big")
        digest = blake2b(
            head + name + value.encode(), digest_size=_DIGEST_BYTES, key=self._secret, person=b"lapse-etag"
        ).digest()
        return f'"{base64.urlsafe_b64encode(digest).decode().rstrip("=")}"'


_TAG: Final = r'(?:W/)?"[\x21\x23-\x7e]*"'
_TAG_LIST: Final = re.compile(rf"\s*{_TAG}(?:\s*,\s*{_TAG})*\s*")


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the headers of a request ask for."""

    absent: bool = False
    tags: frozenset[str] | None = None
    """Tags of which one must match; an empty set is ``*``, anything that exists; None is no condition."""

    def matches(self, tag: str) -> bool:
        """Whether a key with this tag fulfils ``If-Match``. A weak tag never does: RFC 9110 wants strong comparison."""
        return self.tags is not None and (not self.tags or tag in self.tags)


def read_conditions(if_match: Sequence[str], if_none_match: Sequence[str], *, expected: bool) -> Conditions:
    """Read the headers, given as all their lines; ``expected`` says whether the body has a condition of its own."""
    match, none_match = ", ".join(if_match), ", ".join(if_none_match)
    given = [bool(if_match), bool(if_none_match), expected]
    if sum(given) > 1:
        raise ContradictoryConditionsError(problem="give one of If-Match, If-None-Match and expected")
    if if_none_match:
        if none_match.strip() != "*":
            raise ContradictoryConditionsError(problem="If-None-Match must be * when something is written")
        return Conditions(absent=True)
    if not if_match:
        return Conditions()
    if match.strip() == "*":
        return Conditions(tags=frozenset())
    if not _TAG_LIST.fullmatch(match):
        raise ContradictoryConditionsError(problem='If-Match must be * or tags in double quotes, as in "abc"')
    return Conditions(tags=frozenset(re.findall(_TAG, match)))
