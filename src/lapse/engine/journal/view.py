"""Views of the journal: a row for people and programs, and pages of rows in both orders.

Pages of those who follow tell where to go on also when they are empty, so that nothing is looked through twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Unpack

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from lapse.core.timestamps import to_timestamp
from lapse.engine.journal.port import RowPosition
from lapse.engine.view import Moment, ViewPage

if TYPE_CHECKING:
    from lapse.engine.journal.port import Journal, Row, RowFilters
    from lapse.engine.view import Columns

END: Final = "end"
"""Instead of a place: behind all rows that there are."""
PLAN: Final = "plan"
"""What the details of a row name the plan that was carried out."""


class JournalRowView(Struct, frozen=True, kw_only=True):
    """One row of the journal."""

    time: Moment
    domain: Annotated[str, Meta(description="Whose thing it is; audit for what was done beside ending things")]
    address: str
    uid: str
    version: str
    verdict: Annotated[str, Meta(description="due, keep or unknown; empty where nothing was decided")]
    reason: str
    anchor: Annotated[Moment | None, Meta(description="What the time was counted from")]
    policy: Annotated[str, Meta(description="A short hash of the policy that decided")]
    actor: str
    outcome: str
    details: dict[str, Any] | None
    details_hidden: Annotated[
        bool | UnsetType, Meta(description="true where there are details, which the token does not show; absent else")
    ] = UNSET
    plan: Annotated[str | None, Meta(description="The plan that was carried out; null for none")]
    id: int
    place: Annotated[str, Meta(description="Where it stands: before or after, in a question for rows beside it")]


def row_view(row: Row) -> JournalRowView:
    """Return the view of a row."""
    plan = (row.details or {}).get(PLAN)
    rest = dict(_shown(name, value) for name, value in (row.details or {}).items() if name != PLAN)
    return JournalRowView(
        time=Moment(row.time_ns),
        domain=row.domain,
        address=row.address,
        uid=row.uid,
        version=row.version,
        verdict=row.verdict,
        reason=row.reason,
        anchor=Moment.of(row.anchor_ns),
        policy=row.policy,
        actor=row.actor,
        outcome=row.outcome.value,
        details=rest or None,
        plan=None if plan is None else str(plan),
        id=row.id,
        place=str(row.place),
    )


async def read_page(
    journal: Journal,
    *,
    limit: int,
    before: str | None = None,
    after: str | None = None,
    **asked: Unpack[RowFilters],
) -> ViewPage[JournalRowView]:
    """Return rows newest first or, with ``after``, behind that place as they were committed; `END` is the last place.

    ``next`` is what the next page is asked for with: as ``before``, None after the oldest row; or as ``after``, always.
    Raises `RowPositionError`, and what the journal raises.
    """
    place = None if before is None else RowPosition.parse(before)
    if after is None:
        rows = await journal.entries(limit=limit + 1, before=place, **asked)
        shown = rows[:limit]
        return ViewPage([row_view(row) for row in shown], str(shown[-1].place) if len(rows) > limit else None)
    # Before the rows are read: what is committed in between is among them, or comes later.
    end = await journal.end()
    behind = end if after == END else RowPosition.parse(after)
    rows = await journal.entries(limit=limit, before=place, after=behind, **asked)
    return ViewPage([row_view(row) for row in rows], str(rows[-1].place if rows else end))


def without_details(row: JournalRowView) -> JournalRowView:
    """Return a row as those see it who see no values: whether it has details, and not which."""
    return row if row.details is None else replace(row, details=None, details_hidden=True)


def details_in_words(row: JournalRowView) -> str:
    """Print the details of a row."""
    if row.details_hidden:
        return "details hidden"
    return ", ".join(f"{name} {value}" for name, value in (row.details or {}).items() if value is not None)


def _shown(name: str, value: object) -> tuple[str, object]:
    """Return a detail as it is shown: a row counts in nanoseconds since 1970, and times have one form everywhere."""
    return (
        (name.removesuffix("_ns"), to_timestamp(value))
        if name.endswith("_ns") and isinstance(value, int)
        else (name, value)
    )


def row_line(row: JournalRowView, *, names: bool = True) -> str:
    """Return a row as one line of text; without ``names`` it does not say what it is about."""
    about = f" {row.domain} {row.address}".rstrip() if names else ""
    facts = ", ".join(filter(None, (row.reason, row.policy, details_in_words(row))))
    return f"{row.time} {row.outcome}{about} ({facts}) by {row.actor}"


COLUMNS: Final[Columns] = {
    "time": "time",
    "outcome": "outcome",
    "domain": "domain",
    "address": "address",
    "reason": "reason",
    "actor": "actor",
    "plan": "plan",
    "details": lambda view, _: details_in_words(view) or None,
}
