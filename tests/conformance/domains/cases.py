"""What the engine promises, for any domain: cases for every world, and for domains that are broken on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.engine.running.metrics import ErrorKind
from tests.conformance.domains.kit import HOUR, LIFETIME, staged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.conformance.domains.kit import Opener, Stage

    Case = Callable[[Path, Opener], Awaitable[None]]

CASES: dict[str, Case] = {}
YEAR = 365 * 24 * HOUR


def case(check: Case) -> Case:
    CASES[check.__name__] = check
    return check


@case
async def what_is_due_is_ended_once_and_not_a_moment_before(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")
        stage.kit.machine.advance(LIFETIME - 60)
        await stage.world.sweep()
        assert await stage.world.left() == {"a", "b"}
        stage.kit.machine.advance(120)
        await stage.world.sweep()
        await stage.world.sweep()
        assert await stage.world.left() == set()
        assert stage.ended() == 2


@case
async def a_dry_run_tells_what_would_be_ended_and_ends_nothing(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened, dry_run=True) as stage:
        await stage.fill("a", "b")
        assert await stage.sweep_when_due() == {"a", "b"}
        assert (await stage.outcomes("a"))[-1] == "would_end"
        assert stage.ended() == 0


@case
async def what_is_held_is_kept(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")
        await stage.world.hold("a")
        assert await stage.sweep_when_due() == {"a"}
        assert "ended" not in await stage.outcomes("a")


@case
async def what_may_be_held_is_kept(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        if not stage.world.can_doubt:
            pytest.skip("a hold stands in the thing itself, and is read with it")
        await stage.fill("a", "b")
        stage.world.doubtful = True
        assert await stage.sweep_when_due() == {"a", "b"}
        assert "ended" not in await stage.outcomes("a")


@case
async def nothing_of_a_frozen_domain_is_ended_until_it_is_resumed(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")
        await stage.freeze()
        assert await stage.sweep_when_due() == {"a", "b"}
        await stage.kit.gate.look()
        assert stage.metric("lapse_frozen") == 1
        await stage.resume()
        assert await stage.sweep_when_due() == set()


@case
async def a_budget_that_is_spent_freezes_the_domain(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened, budget="2/1h") as stage:
        await stage.fill("a", "b", "c", "d", "e")
        assert len(await stage.sweep_when_due()) == 3
        assert stage.ended() == 2
        stage.kit.machine.advance(60)
        await stage.world.sweep()
        assert len(await stage.world.left()) == 3
        await stage.kit.gate.look()
        assert stage.metric("lapse_frozen") == 1
        assert ("", "frozen", "budget_spent") in await stage.rows()


@case
async def nothing_is_ended_while_the_clock_is_in_doubt(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")
        await stage.world.sweep()
        stage.kit.machine.jump_wall(YEAR)
        await stage.world.sweep()
        await stage.kit.gate.look()
        await stage.world.sweep()
        assert await stage.world.left() == {"a", "b"}
        assert stage.metric("lapse_frozen") == 1
        assert ("", "frozen", "clock_jumped") in await stage.rows()


@case
async def what_was_changed_after_the_decision_is_kept(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")

        async def change() -> None:
            stage.world.before_act = None
            await stage.world.change("a")

        stage.world.before_act = change
        assert await stage.sweep_when_due() == {"a"}
        assert (await stage.outcomes("a"))[-1] == "changed"
        assert stage.ended() == 1


@case
async def what_somebody_else_removed_is_not_counted_as_ended(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")

        async def remove() -> None:
            stage.world.before_act = None
            await stage.world.remove("a")

        stage.world.before_act = remove
        assert await stage.sweep_when_due() == set()
        assert "ended" not in await stage.outcomes("a")
        assert stage.ended() == 1


@case
async def the_journal_tells_the_intent_and_the_outcome_or_both_in_one(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a")
        assert await stage.sweep_when_due() == set()
        about = [(outcome, reason) for name, outcome, reason in await stage.rows() if name == "a"]
        acts = [outcome for outcome, _ in about if outcome in {"intent", "ended"}]
        assert acts == (["ended"] if stage.world.shares_journal else ["intent", "ended"])
        assert about[-1][1] in set(stage.world.reasons)


@case
async def a_journal_that_fails_prevents_the_act(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b")
        stage.kit.journal.fails = True
        assert await stage.sweep_when_due() == {"a", "b"}
        assert stage.ended() == 0
        assert any(stage.metric("lapse_errors_total", kind=kind) for kind in (ErrorKind.ITEM, ErrorKind.JOURNAL))
        stage.kit.journal.fails = False
        assert await stage.sweep_when_due() == set()


@case
async def every_metric_starts_at_zero(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        reasons = list(stage.world.reasons)
        assert reasons
        assert {stage.metric("lapse_deletions_total", reason=one) for one in reasons} == {0}
        assert {stage.metric("lapse_errors_total", kind=one) for one in ErrorKind} == {0}
        assert {stage.metric("lapse_decisions_total", verdict=one) for one in ("due", "keep", "unknown")} == {0}
        assert (stage.metric("lapse_frozen"), stage.metric("lapse_held")) == (0, 0)
        await stage.fill("a")
        before = series(stage)
        await stage.sweep_when_due()
        assert series(stage) - before == set(), "a series that appears with its first event is one that no alert saw"


def series(stage: Stage) -> set[str]:
    lines = stage.kit.metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if f'domain="{stage.name}"' in line}


@case
async def one_bad_item_does_not_stop_the_rest(folder: Path, opened: Opener) -> None:
    async with staged(folder, opened) as stage:
        await stage.fill("a", "b", "c", "d", "e")
        stage.world.bad.add("c")
        assert await stage.sweep_when_due() == {"c"}
        assert stage.ended() == 4
        assert (await stage.outcomes("c"))[-1] == "failed"
        assert stage.metric("lapse_errors_total", kind=ErrorKind.ITEM)
        stage.world.bad.clear()
        assert await stage.sweep_when_due() == set()
