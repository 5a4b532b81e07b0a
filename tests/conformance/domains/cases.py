"""What the engine promises, for any domain: cases for every world, and for domains that are broken on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import UnixNs
from lapse.engine.running.metrics import ErrorKind
from lapse.engine.safety.blast_radius import MOST
from tests.conformance.domains.kit import FIRST_PASS, HOUR, LIFETIME, open_fixture

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.conformance.domains.kit import DomainFixture, Opener

    Case = Callable[[Path, Opener], Awaitable[None]]

CASES: dict[str, Case] = {}
YEAR = 365 * 24 * HOUR
MANY = [f"t{number}" for number in range(MOST + 1)]


def case(check: Case) -> Case:
    CASES[check.__name__] = check
    return check


@case
async def what_is_due_is_ended_once_and_not_a_moment_before(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        fixture.kit.machine.advance(LIFETIME - 60)
        await fixture.world.sweep()
        assert await fixture.world.left() == {"a", "b"}
        fixture.kit.machine.advance(120)
        await fixture.world.sweep()
        await fixture.world.sweep()
        assert await fixture.world.left() == set()
        assert fixture.ended() == 2


@case
async def a_dry_run_tells_what_would_be_ended_and_ends_nothing(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened, dry_run=True) as fixture:
        await fixture.fill("a", "b")
        assert await fixture.sweep_when_due() == {"a", "b"}
        assert (await fixture.outcomes("a"))[-1] == "would_end"
        assert fixture.ended() == 0


@case
async def what_is_held_is_kept(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        await fixture.world.hold("a")
        assert await fixture.sweep_when_due() == {"a"}
        assert "ended" not in await fixture.outcomes("a")


@case
async def what_is_held_between_the_decision_and_the_act_is_kept(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        await fixture.world.hold_late("a")
        assert await fixture.sweep_when_due() == {"a"}
        assert (await fixture.outcomes("a"))[-1] in {"held", "changed"}
        assert fixture.ended() == 1


@case
async def what_is_extended_is_kept_until_then_and_ended_after_it(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        until = UnixNs((fixture.kit.now // 10**9 + LIFETIME + HOUR) * 10**9)
        await fixture.world.extend("a", until)
        assert await fixture.sweep_when_due() == {"a"}
        assert not {"ended", "would_end"}.intersection(await fixture.outcomes("a"))
        fixture.kit.machine.advance((until - fixture.kit.now) / 10**9)
        assert fixture.kit.now == until
        await fixture.world.sweep()
        assert await fixture.world.left() == {"a"}
        fixture.kit.machine.advance(60)
        await fixture.world.sweep()
        assert await fixture.world.left() == set()


@case
async def what_has_an_extension_that_cannot_be_read_is_kept(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        await fixture.world.spoil_extension("a")
        assert await fixture.sweep_when_due() == {"a"}
        assert fixture.ended() == 1


@case
async def what_may_be_held_is_kept(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        if not fixture.world.can_doubt:
            pytest.skip("a hold stands in the thing itself, and is read with it")
        await fixture.fill("a", "b")
        fixture.world.doubtful = True
        assert await fixture.sweep_when_due() == {"a", "b"}
        assert "ended" not in await fixture.outcomes("a")


@case
async def what_has_a_time_that_means_not_set_is_kept(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        await fixture.world.forget_time("a")
        assert await fixture.sweep_when_due() == {"a"}
        assert not {"ended", "would_end"}.intersection(await fixture.outcomes("a"))
        assert fixture.ended() == 1


@case
async def nothing_of_a_frozen_domain_is_ended_until_it_is_resumed(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        await fixture.freeze()
        assert await fixture.sweep_when_due() == {"a", "b"}
        await fixture.kit.gate.look()
        assert fixture.metric("lapse_frozen") == 1
        await fixture.resume()
        assert await fixture.sweep_when_due() == set()


@case
async def a_budget_that_is_spent_freezes_the_domain(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened, budget="2/1h") as fixture:
        await fixture.fill("a", "b", "c", "d", "e")
        assert len(await fixture.sweep_when_due()) == 3
        assert fixture.ended() == 2
        fixture.kit.machine.advance(60)
        await fixture.world.sweep()
        assert len(await fixture.world.left()) == 3
        await fixture.kit.gate.look()
        assert fixture.metric("lapse_frozen") == 1
        assert ("", "frozen", "budget_spent") in await fixture.rows()


@case
async def what_people_delete_counts_for_the_budget_which_stops_nobody_but_the_engine(
    folder: Path, opened: Opener
) -> None:
    async with open_fixture(folder, opened, budget="3/10h") as fixture:
        await fixture.fill("a", "b", "c", "d", "e", "f")
        await fixture.delete_by_person("a")
        await fixture.delete_by_person("b")
        left = await fixture.sweep_when_due()
        assert len(left) == 3
        assert fixture.ended() == 1
        assert ("", "frozen", "budget_spent") in await fixture.rows()
        for name in left:
            await fixture.delete_by_person(name)
        assert await fixture.world.left() == set()


@case
async def what_is_older_than_its_policy_stays_for_an_interval(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened, is_new=False) as fixture:
        if not fixture.world.has_first_pass:
            pytest.skip("what it decides about follows the policy, and is younger")
        await fixture.fill("a", "b")
        assert await fixture.sweep_when_due() == {"a", "b"}
        assert (await fixture.outcomes("a"))[-1] == "would_end"
        fixture.kit.machine.advance(FIRST_PASS - 60)
        await fixture.world.sweep()
        assert await fixture.world.left() == {"a", "b"}
        fixture.kit.machine.advance(120)
        await fixture.world.sweep()
        assert await fixture.world.left() == set()


@case
async def a_policy_that_is_new_and_would_end_much_at_once_waits_for_a_person(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened, is_new=False) as fixture:
        await fixture.fill(*MANY)
        for _ in range(3):
            assert await fixture.sweep_when_due() == set(MANY)
        (waiting,) = await fixture.waiting()
        assert (waiting.domain, waiting.due, waiting.governed) == (fixture.name, len(MANY), len(MANY))
        assert fixture.metric("lapse_policies_waiting") == 1
        assert fixture.metric("lapse_frozen") == 0
        await fixture.approve(waiting.name)
        fixture.kit.machine.advance(60)
        await fixture.world.sweep()
        assert await fixture.world.left() == set()
        assert fixture.metric("lapse_policies_waiting") == 0
        assert [row for row in await fixture.rows() if not row[0]] == [
            ("", "frozen", "policy_waits"),
            ("", "resumed", "policy_approved"),
        ]


@case
async def much_that_is_due_at_once_by_an_unchanged_policy_goes_at_once(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill(*MANY)
        await fixture.world.sweep()
        assert await fixture.sweep_when_due() == set()
        assert await fixture.waiting() == []


@case
async def nothing_is_ended_while_the_clock_is_in_doubt(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        await fixture.world.sweep()
        fixture.kit.machine.jump_wall(YEAR)
        await fixture.world.sweep()
        await fixture.kit.gate.look()
        await fixture.world.sweep()
        assert await fixture.world.left() == {"a", "b"}
        assert fixture.metric("lapse_frozen") == 1
        assert ("", "frozen", "clock_jumped") in await fixture.rows()


@case
async def what_was_changed_after_the_decision_is_kept(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")

        async def change() -> None:
            fixture.world.before_act = None
            await fixture.world.change("a")

        fixture.world.before_act = change
        assert await fixture.sweep_when_due() == {"a"}
        assert (await fixture.outcomes("a"))[-1] == "changed"
        assert fixture.ended() == 1


@case
async def what_somebody_else_removed_is_not_counted_as_ended(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")

        async def remove() -> None:
            fixture.world.before_act = None
            await fixture.world.remove("a")

        fixture.world.before_act = remove
        assert await fixture.sweep_when_due() == set()
        assert "ended" not in await fixture.outcomes("a")
        assert fixture.ended() == 1


@case
async def the_journal_tells_the_intent_and_the_outcome_or_both_in_one(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a")
        assert await fixture.sweep_when_due() == set()
        about = [(outcome, reason) for name, outcome, reason in await fixture.rows() if name == "a"]
        acts = [outcome for outcome, _ in about if outcome in {"intent", "ended"}]
        assert acts == (["ended"] if fixture.world.shares_journal else ["intent", "ended"])
        assert about[-1][1] in set(fixture.world.reasons)


@case
async def a_journal_that_fails_prevents_the_act(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b")
        fixture.kit.journal.fails = True
        assert await fixture.sweep_when_due() == {"a", "b"}
        assert fixture.ended() == 0
        assert any(fixture.metric("lapse_errors_total", kind=kind) for kind in (ErrorKind.ITEM, ErrorKind.JOURNAL))
        fixture.kit.journal.fails = False
        assert await fixture.sweep_when_due() == set()


@case
async def every_metric_starts_at_zero(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        reasons = list(fixture.world.reasons)
        assert reasons
        assert {fixture.metric("lapse_deletions_total", reason=one) for one in reasons} == {0}
        assert {fixture.metric("lapse_errors_total", kind=one) for one in ErrorKind} == {0}
        assert {fixture.metric("lapse_decisions_total", verdict=one) for one in ("due", "keep", "unknown")} == {0}
        assert (fixture.metric("lapse_frozen"), fixture.metric("lapse_held")) == (0, 0)
        await fixture.fill("a")
        before = series(fixture)
        await fixture.sweep_when_due()
        assert series(fixture) - before == set(), "a series that appears with its first event is one that no alert saw"


def series(fixture: DomainFixture) -> set[str]:
    lines = fixture.kit.metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if f'domain="{fixture.name}"' in line}


@case
async def one_bad_item_does_not_stop_the_rest(folder: Path, opened: Opener) -> None:
    async with open_fixture(folder, opened) as fixture:
        await fixture.fill("a", "b", "c", "d", "e")
        fixture.world.bad.add("c")
        assert await fixture.sweep_when_due() == {"c"}
        assert fixture.ended() == 4
        assert (await fixture.outcomes("c"))[-1] == "failed"
        assert fixture.metric("lapse_errors_total", kind=ErrorKind.ITEM)
        fixture.world.bad.clear()
        assert await fixture.sweep_when_due() == set()
