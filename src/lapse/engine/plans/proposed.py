"""Proposed plans: plans that are kept where they were made, for others to find, approve and carry out.

A plan is kept as the document that it is, with its digest and signature: whoever approves it or carries it out checks
it as one that came in a file. It lapses at its own end. Who has approved it is not kept here: `Approvals` has that, and
what is told of a plan is read from there.

Guarantees. At most `MOST_PLANS` are kept, of one author `MOST_OF_AUTHOR`, of at most `MOST_BYTES` each; the next one is
refused, unless one of them is carried out and has nothing left. A plan that was kept stays as it is.

Not guaranteed: that it is noted of a plan that it was carried out, where the store fails just then. The journal has it.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lapse.core.errors import LapseError, UsageError
from lapse.core.log import get_logger
from lapse.engine.plans.plan import Plan
from lapse.engine.verbs.contract import ProposedPlan
from lapse.engine.view import Moment, ViewPage, decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.core.clock import UnixNs
    from lapse.engine.plans.approvals import Approvals
    from lapse.engine.verbs.contract import AppliedPlan, Approval

MOST_BYTES: Final = 64 << 20
"""As much as a request over HTTP may have."""
MOST_PLANS: Final = 100
MOST_OF_AUTHOR: Final = 20
"""So that one person cannot keep all others from proposing."""
_LEVEL: Final = 1
"""Of compression: names and fingerprints are most of a plan, so a higher one costs time and saves little."""
_LATEST_NS: Final = 2**63 - 1
"""What the stores can hold: a plan may reach farther."""
_CREATED: Final = re.compile("[0-9]{1,20}")
_log: Final = get_logger("lapse.engine.plans")


class PlanTooLargeError(UsageError):
    """The plan {plan} has {size} bytes; expected at most {most}. Plan for fewer domains, or a shorter time."""


class TooManyPlansError(LapseError):
    """{most} plans are kept already, and of each something is left to do. The next one expires at {first}."""

    status = 409


class TooManyOwnPlansError(TooManyPlansError):
    """{author} has proposed {most} plans that are kept already. The next of them expires at {first}."""


class PlanPositionError(UsageError):
    """{text!r} is not a position among plans. Expected one as an answer of the plans names it."""


class KeptPlan(NamedTuple):
    """What is kept of a plan beside its document."""

    id: str
    digest: str
    author: str
    created_ns: int
    expires_ns: int
    until_ns: int
    domains: str
    """Names with commas between them."""
    items: int
    due: int
    applied_by: str | None = None
    applied_ns: int | None = None
    ended: int | None = None
    left: int | None = None

    @property
    def position(self) -> tuple[int, str]:
        """Where it stands in the list."""
        return self.created_ns, self.id


class Application(NamedTuple):
    """What came of a plan, or of a part of it, that a person carried out."""

    id: str
    digest: str
    by: str
    at: int
    ended: int
    left: int | None
    """None: only a part was tried, so of what was left before, only what ended now is not left any more."""


class PlanStore(Protocol):
    """Where plans are kept. Raises a `LapseError` when it cannot be read or written."""

    async def keep(self, plan: KeptPlan, document: bytes, *, now: int, most: int) -> bool | None:
        """Keep a plan, and remove those that have expired; return whether it was not there before.

        Where ``most`` are kept, the oldest with nothing left gives way; None: there is none, so nothing was kept.
        """
        ...

    async def plans(self, now: int) -> Sequence[KeptPlan]:
        """Return those that have not expired, in any order."""
        ...

    async def document(self, plan: str, now: int) -> bytes | None:
        """Return the document of one by its id; None where there is none, or it has expired."""
        ...

    async def note(self, done: Application) -> None:
        """Note on a plan what came of it, if just that one is kept."""
        ...


class ProposedPlans:
    """See the module."""

    def __init__(self, store: PlanStore, approvals: Approvals) -> None:
        """Keep them in ``store``; ``approvals`` knows which are approved."""
        self._store, self._approvals = store, approvals

    async def keep(self, plan: Plan, now: UnixNs) -> tuple[ProposedPlan, bool]:
        """Keep a plan; return what is told of it, and whether it was not there before.

        Raises `PlanTooLargeError` and `TooManyPlansError`.
        """
        document = encode(plan)
        if len(document) > MOST_BYTES:
            raise PlanTooLargeError(plan=plan.id, size=len(document), most=MOST_BYTES)
        await self._demand_room(plan, now)
        packed = await asyncio.to_thread(zlib.compress, document, _LEVEL)
        is_new = await self._store.keep(_row_of(plan), packed, now=now, most=MOST_PLANS)
        rows = await self._store.plans(now)
        if is_new is None:
            first = min((one.expires_ns for one in rows), default=now)
            raise TooManyPlansError(most=MOST_PLANS, first=Moment(first))
        row = next((one for one in rows if one.id == plan.id), _row_of(plan))
        return _view(row, await self._approvals.all()), is_new

    async def _demand_room(self, plan: Plan, now: UnixNs) -> None:
        own = [one for one in await self._store.plans(now) if one.author == plan.author and one.left != 0]
        if len(own) >= MOST_OF_AUTHOR and plan.id not in {one.id for one in own}:
            first = Moment(min(one.expires_ns for one in own))
            raise TooManyOwnPlansError(author=plan.author, most=MOST_OF_AUTHOR, first=first)

    async def page(self, *, limit: int, after: str | None, now: UnixNs) -> ViewPage[ProposedPlan]:
        """Return some of them, newest first; ``after`` is the next of the page before. Raises `PlanPositionError`."""
        start = None if after is None else _position(after)
        rows = sorted(await self._store.plans(now), key=lambda one: one.position, reverse=True)
        behind = [one for one in rows if start is None or one.position < start]
        shown, approved = behind[:limit], await self._approvals.all()
        more = f"{shown[-1].created_ns}-{shown[-1].id}" if len(behind) > limit else None
        return ViewPage([_view(one, approved) for one in shown], more)

    async def find(self, plan: str, now: UnixNs) -> Plan | None:
        """Return one by its id; None where there is none, or it has expired."""
        packed = await self._store.document(plan, now)
        return None if packed is None else decode(await asyncio.to_thread(zlib.decompress, packed), Plan)

    async def note_applied(self, plan: Plan, done: AppliedPlan, *, by: str, at: UnixNs, is_whole: bool) -> None:
        """Note on a plan that it was carried out, if it is kept: never a reason to fail, because what ended has ended.

        Of one that is carried out in parts, what was gone already counts as left until all of it is tried again.
        """
        left = done.left if is_whole else None
        try:
            await self._store.note(Application(plan.id, plan.digest, by, at, done.ended, left))
        except LapseError as error:
            _log.error("plan_not_noted", plan=plan.id, error=type(error).__name__)


def _row_of(plan: Plan) -> KeptPlan:
    return KeptPlan(
        id=plan.id,
        digest=plan.digest,
        author=plan.author,
        created_ns=int(plan.created_at),
        expires_ns=int(plan.expires_at),
        until_ns=min(int(plan.until), _LATEST_NS),
        domains=",".join(plan.domains),
        items=len(plan.items),
        due=sum(one.due for one in plan.items),
    )


def _view(row: KeptPlan, approved: Mapping[str, Approval]) -> ProposedPlan:
    approval = approved.get(row.id)
    if approval is not None and approval.digest != row.digest:
        approval = None
    return ProposedPlan(
        id=row.id,
        author=row.author,
        created_at=Moment(row.created_ns),
        expires_at=Moment(row.expires_ns),
        until=Moment(row.until_ns),
        domains=row.domains.split(",") if row.domains else [],
        items=row.items,
        due=row.due,
        approved_by=None if approval is None else approval.by,
        approved_at=None if approval is None else approval.at,
        applied_by=row.applied_by,
        applied_at=Moment.of(row.applied_ns),
        ended=row.ended,
        left=row.left,
    )


def _position(text: str) -> tuple[int, str]:
    created, dash, plan = text.partition("-")
    if not dash or not _CREATED.fullmatch(created):
        raise PlanPositionError(text=text)
    return int(created), plan
