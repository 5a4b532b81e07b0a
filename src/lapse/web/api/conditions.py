"""Conditional requests: which headers and body fields ask for which operation. Pure.

| request | operation |
|---|---|
| nothing | unconditional |
| ``If-None-Match: *`` | only if the key is absent (insert) |
| ``If-Match: "tag"`` or ``*`` | only if the key has this tag, or exists |
| ``expected`` in the JSON body | only if the key has this value |

More than one of these at once is an error, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lapse.web.api.errors import ContradictoryConditionsError

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
