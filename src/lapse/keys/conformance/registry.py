"""The book of all cases, theme by theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.conformance.cases import (
    cleanup,
    expiry,
    isolation,
    leaving,
    locks,
    many,
    operations,
    races,
    scans,
    texts,
)

if TYPE_CHECKING:
    from lapse.keys.conformance.case import Case

CASES: Final[tuple[Case, ...]] = tuple(
    case
    for theme in (operations, expiry, many, texts, scans, isolation, cleanup, locks, races, leaving)
    for case in theme.BOOK.cases
)
BY_ID: Final = {case.id: case for case in CASES}
