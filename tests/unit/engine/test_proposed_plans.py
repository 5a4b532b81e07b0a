"""Proposed plans of many items: they are kept whole, in less room than they have as documents, and in short time."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from lapse.app.record import ProcessRecord
from lapse.core.clock import SystemClock, UnixNs, VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.engine.plans.approvals import Approvals
from lapse.engine.plans.plan import FORM, Plan, PlanItem, demand_genuine, sealed
from lapse.engine.plans.proposed import ProposedPlans
from lapse.engine.plans.sqlite import SQLitePlans
from lapse.engine.view import Moment, encode
from lapse.objects.embedded import open_embedded

if TYPE_CHECKING:
    from pathlib import Path

NOW = UnixNs(1_900_000_000_000_000_000)
SECRET = b"s" * 32
ITEMS = 20_000


def item(number: int) -> PlanItem:
    return PlanItem(
        domain="history",
        address=f"history/default/record-{number}",
        uid=sha256(f"uid {number}".encode()).hexdigest()[:32],
        action="delete",
        due=True,
        due_at=Moment(NOW),
        reason="ttl_expired",
        anchor=Moment(NOW),
        deadline=Moment(NOW),
        policy="0123abcd",
        hold=None,
        takes_along=[],
        then=[],
        not_undoable=None,
        fingerprint=sha256(str(number).encode()).hexdigest(),
    )


async def test_a_plan_of_twenty_thousand_items_is_kept_whole_in_short_time(tmp_path: Path) -> None:
    made = Plan(
        form=FORM,
        id="",
        place="here",
        author="token ann",
        created_at=Moment(NOW),
        expires_at=Moment(NOW + 10**12),
        until=Moment(NOW),
        domains=["history"],
        items=[item(number) for number in range(ITEMS)],
        counts=[],
        problems={},
    )
    plan = sealed(made, SECRET)
    store = open_embedded(tmp_path / "one.db", kinds=(), clock=VirtualClock(), synchronous=Synchronous.NORMAL)
    try:
        kept = SQLitePlans(store.database)
        plans = ProposedPlans(kept, Approvals(ProcessRecord.in_folder(store).safety))
        clock = SystemClock()
        begin = clock.monotonic_ns()
        told, is_new = await plans.keep(plan, NOW)
        found = await plans.find(plan.id, NOW)
        assert clock.monotonic_ns() - begin < 10 * 10**9, "seconds, on a machine with much else to do"
        assert (told.items, told.due, is_new) == (ITEMS, ITEMS, True)
        assert found is not None
        demand_genuine(found, SECRET)
        assert len(await kept.document(plan.id, NOW) or b"") < len(encode(plan)) / 3
    finally:
        await store.close()
