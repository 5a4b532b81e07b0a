"""The book of all cases, theme by theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.conformance.cases import cleanup
from lapse.keys.conformance.cases import expiry
from lapse.keys.conformance.cases import isolation
from lapse.keys.conformance.cases import leaving
from lapse.keys.conformance.cases import locks
from lapse.keys.conformance.cases import many
from lapse.keys.conformance.cases import operations
from lapse.keys.conformance.cases import races
from lapse.keys.conformance.cases import scans
from lapse.keys.conformance.cases import texts

if TYPE_CHECKING:
    from lapse.keys.conformance.case import Case

CASES: Final[tuple[Case, ...]] = tuple(
    case
    for theme in (operations, expiry, many, texts, scans, isolation, cleanup, locks, races, leaving)
    for case in theme.BOOK.cases
)
BY_ID: Final = {case.id: case for case in CASES}
