"""The policy guard: what a policy that is new or changed may not do, what a restart remembers, and what it costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.address import Address
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import DueReason
from lapse.db.sqlite.file import Synchronous
from lapse.engine.domain import DELETE, Action, SignalUnavailableError
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.blast_radius import (
    MOST,
    NoSuchWaitingPolicyError,
    PolicyApprovals,
    PolicyChangedError,
    PolicyCount,
    PolicyGuard,
    PolicyStanding,
    PolicyWaitingError,
    note_name,
)
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.sqlite import SQLiteGateStore
from lapse.engine.sweep import Sweep
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import ObjectKey
from lapse.objects.config_map_gate import CONFIG_MAP, NAME, ConfigMapGateStore
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.target import ObjectTarget
from tests.policies import MemoryNotes, PolicyGate
from tests.unit.engine.harness import NS, Things, play, series

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.engine.safety.freeze import Notes

HOUR = 3_600
MUCH = PolicyCount(MOST + 1, MOST + 1, ["thing/a"])


class Counts:
    """Counts what it is told to, and how often it was asked."""

    def __init__(self, found: PolicyCount = MUCH) -> None:
        self.found, self.asked = found, 0

    async def __call__(self) -> PolicyCount:
        self.asked += 1
        return self.found


LITTLE = Counts(PolicyCount(1_000, 10))


class World:
    """A store of notes and its journal, and the processes that look at policies there."""

    def __init__(self, form: str, objects: EmbeddedStore, clock: VirtualClock) -> None:
        self.clock, self.metrics, self.journal = clock, Metrics("test"), SQLiteJournal(objects.database)
        key, domains = ObjectKey("lapse-system", NAME), ["things"]
        table = SQLiteGateStore(self.journal, budgets=Budgets(), domains=domains)
        config_map = ConfigMapGateStore(objects, key, domains=domains, clock=clock)
        self.notes: Notes = table if form == "table" else config_map
        self.approvals = PolicyApprovals([self.notes], journal=self.journal, clock=clock)

    def process(self, **how: Any) -> PolicyGuard:  # noqa: ANN401 - of the class
        return PolicyGuard(
            lambda _domain: self.notes,
            journal=self.journal,
            clock=self.clock,
            metrics=self.metrics,
            actor="lapse",
            domains=["things"],
            **how,
        )

    def standing(
        self, guard: PolicyGuard, *, ago: float = 0, name: str = "p", actor: str | None = None
    ) -> PolicyStanding:
        """Return what the guard says of a thing whose time began to count so many seconds ago."""
        now = self.clock.wall_ns()
        action = Action(
            domain="things",
            address=Address("thing", None, "a"),
            uid="u",
            version="1",
            handle=None,
            action=DELETE,
            reason=DueReason.TTL_EXPIRED,
            since=UnixNs(now),
            anchor_ns=now - round(ago * NS),
            policy="h",
            policy_name=name,
            actor=actor,
        )
        if guard.standing(action, UnixNs(now)) is PolicyStanding.WAITS:
            assert isinstance(guard.refusal(action), PolicyWaitingError)
        return guard.standing(action, UnixNs(now))

    async def told(self) -> list[str]:
        return [row.reason for row in reversed(await self.journal.entries(domain="things"))]

    def waiting(self) -> float:
        return series(self.metrics)['lapse_policies_waiting{domain="things"}']


@pytest.fixture(params=["table", "config map"])
async def world(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> AsyncIterator[World]:
    objects = open_embedded(tmp_path / "gate.db", kinds=[CONFIG_MAP], clock=clock, synchronous=Synchronous.NORMAL)
    yield World(request.param, objects, clock)
    await objects.close()


# --- the blast radius -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due", "governed", "is_too_much"),
    [
        (100, 100, False),
        (101, 101, True),
        (101, 404, False),
        (101, 403, True),
        (1_250, 5_000, False),
        (1_251, 5_000, True),
        (100, None, False),
        (101, None, True),
    ],
)
def test_more_than_a_hundred_and_more_than_a_quarter_is_too_much(
    due: int,
    governed: int | None,
    is_too_much: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert PolicyCount(governed, due).is_too_much is is_too_much


async def test_a_changed_policy_that_would_end_much_waits_over_restarts_until_it_is_approved(world: World) -> None:
    assert await world.process().judge("things", "p", "old", LITTLE)
    assert not await world.process().judge("things", "p", "new", Counts())
    first, counts = world.process(), Counts()
    for guard in (first, world.process(), world.process()):
        assert not await guard.judge("things", "p", "new", counts)
        assert world.standing(guard) is PolicyStanding.WAITS
        assert world.waiting() == 1
        world.clock.advance(HOUR)
    assert counts.asked == 0, "it was counted once"
    assert await world.told() == ["policy_waits"]

    approved = await world.approvals.approve("things/p", by="ann")
    assert (approved.hash, approved.previous_hash, approved.due, approved.sample) == ("new", "old", 101, ["thing/a"])
    for one in (first, world.process()):
        assert await one.judge("things", "p", "new", Counts())
        assert world.standing(one) is PolicyStanding.ACTS
    assert world.waiting() == 0
    assert await world.told() == ["policy_waits", "policy_approved"]
    assert await world.approvals.waiting() == []


async def test_the_old_policy_acts_again_when_it_is_back_and_the_new_one_is_counted_again(world: World) -> None:
    await world.process().judge("things", "p", "old", LITTLE)
    guard = world.process()
    assert not await guard.judge("things", "p", "new", Counts())
    counts = Counts()
    assert await guard.judge("things", "p", "old", counts)
    assert counts.asked == 0
    assert world.waiting() == 0
    assert await world.told() == ["policy_waits", "policy_restored"]
    assert not await guard.judge("things", "p", "new", counts)
    assert counts.asked == 1


async def test_what_was_approved_is_what_was_counted_and_not_what_came_after_it(world: World) -> None:
    guard = world.process()
    assert not await guard.judge("things", "p", "new", Counts())
    await world.approvals.approve("p", by="ann")
    assert not await guard.judge("things", "p", "newer", Counts())
    assert [one.hash for one in await world.approvals.waiting()] == ["newer"]


async def test_a_policy_that_has_changed_since_it_was_looked_at_is_not_approved(world: World) -> None:
    guard = world.process()
    assert not await guard.judge("things", "p", "new", Counts())
    (seen,) = await world.approvals.waiting()
    assert not await guard.judge("things", "p", "newer", Counts(PolicyCount(1_000, 990, ["thing/b"])))
    with pytest.raises(PolicyChangedError, match=r"The policy p has changed since: it would end 990 now\..* newer"):
        await world.approvals.approve("p", by="ann", only=seen.hash)
    (now,) = await world.approvals.waiting()
    assert now.hash == "newer"
    assert "policy_approved" not in await world.told()
    assert not await world.process().judge("things", "p", "newer", Counts())

    assert (await world.approvals.approve("p", by="ann", only=now.hash)).due == 990
    assert await world.process().judge("things", "p", "newer", Counts())


async def test_a_policy_that_changes_while_it_is_approved_waits_anew(world: World) -> None:
    guard, notes = world.process(), world.notes
    assert not await guard.judge("things", "p", "new", Counts())

    class Meanwhile:
        """The notes, in which the policy is seen to have changed between the look and the write."""

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method
            return getattr(notes, name)

        async def write_note(self, *what: Any) -> None:  # noqa: ANN401 - as the real one
            assert not await guard.judge("things", "p", "newer", Counts())
            await notes.write_note(*what)

    racing: Any = Meanwhile()
    await PolicyApprovals([racing], journal=world.journal, clock=world.clock).approve("p", by="ann", only="new")
    world.clock.advance(10)
    for one in (guard, world.process()):
        assert not await one.judge("things", "p", "newer", Counts())
    assert [one.hash for one in await world.approvals.waiting()] == ["newer"]


async def test_an_unchanged_policy_is_read_once_per_process_and_never_counted(world: World) -> None:
    reads, read = 0, world.notes.read_note

    async def counted(name: str) -> str | None:
        nonlocal reads
        reads += 1
        return await read(name)

    await world.process().judge("things", "p", "old", LITTLE)
    play(world.notes, read_note=counted)
    guard, counts = world.process(), Counts()
    for _ in range(100):
        assert await guard.judge("things", "p", "old", counts)
        world.clock.advance(HOUR)
    assert (reads, counts.asked) == (1, 0)


async def test_loops_that_see_a_change_at_the_same_moment_count_it_once_and_write_one_row(world: World) -> None:
    guard, counts = world.process(), Counts()
    found = await asyncio.gather(*[guard.judge("things", "p", "new", counts) for _ in range(5)])
    assert (found, counts.asked, await world.told()) == ([False] * 5, 1, ["policy_waits"])


async def test_two_processes_that_see_a_change_at_the_same_moment_both_wait(world: World) -> None:
    one, other = world.process(), world.process()
    await asyncio.gather(one.judge("things", "p", "new", Counts()), other.judge("things", "p", "new", Counts()))
    assert [world.standing(guard) for guard in (one, other)] == [PolicyStanding.WAITS] * 2


@pytest.mark.parametrize("defect", [SignalUnavailableError(problem="away"), KeyError("x")], ids=["away", "a defect"])
async def test_a_policy_that_cannot_be_counted_ends_nothing_until_it_can(world: World, defect: Exception) -> None:
    async def fails() -> PolicyCount:
        raise defect

    guard = world.process()
    assert not await guard.judge("things", "p", "new", fails)
    assert world.standing(guard) is PolicyStanding.UNKNOWN
    assert await guard.judge("things", "p", "new", LITTLE)
    assert world.standing(guard) is PolicyStanding.ACTS


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"seen_ns": "now"}'])
async def test_a_note_that_cannot_be_read_ends_nothing(world: World, text: str) -> None:
    await world.notes.write_note(note_name("things", "p"), text)
    guard = world.process()
    assert not await guard.judge("things", "p", "old", LITTLE)
    assert world.standing(guard) is PolicyStanding.UNKNOWN


async def test_a_policy_is_not_in_force_before_that_is_written(clock: VirtualClock, journal: SQLiteJournal) -> None:
    class Full(MemoryNotes):
        async def write_note(self, name: str, text: str) -> None:
            raise StoreUnavailableError(problem="full")

    gate = PolicyGate(Full(), journal=journal, clock=clock, metrics=Metrics("test"))
    assert not await gate.policies.judge("things", "p", "new", LITTLE)


async def test_who_approves_what_does_not_wait_is_told_what_does(world: World) -> None:
    with pytest.raises(NoSuchWaitingPolicyError, match="Waiting: none"):
        await world.approvals.approve("p", by="ann")
    await world.process().judge("things", "a/b", "new", Counts())
    with pytest.raises(NoSuchWaitingPolicyError, match="Waiting: things/a/b"):
        await world.approvals.approve("p", by="ann")


async def test_of_two_policies_of_one_name_the_domain_says_which_is_meant(world: World) -> None:
    guard = world.process()
    for domain in ("things", "others"):
        await guard.judge(domain, "p", "new", Counts())
    with pytest.raises(NoSuchWaitingPolicyError, match="Waiting: others/p, things/p"):
        await world.approvals.approve("p", by="ann")
    await world.approvals.approve("others/p", by="ann")
    assert [one.domain for one in await world.approvals.waiting()] == ["things"]


def test_every_name_has_a_note_of_its_own_in_letters_that_a_config_map_takes() -> None:
    names = ["a/b", "a.b", "a_b", "a_2f_b", "ä", "x" * 300, "x" * 301]
    notes = [note_name("things", name) for name in names]
    assert len(set(notes)) == len(names)
    assert all(len(note) < 240 and note.replace("_", "").replace(".", "").replace("-", "").isalnum() for note in notes)


# --- the first pass ---------------------------------------------------------------------------------------------------


async def test_what_began_before_the_policy_was_seen_is_dry_for_an_interval_over_restarts(world: World) -> None:
    first = world.process(interval_seconds=HOUR)
    for guard in (first, *(world.process(interval_seconds=HOUR) for _ in range(3))):
        await guard.judge("things", "p", "old", LITTLE)
        assert world.standing(guard, ago=2 * HOUR) is PolicyStanding.DRY
        assert world.standing(guard, ago=0) is PolicyStanding.ACTS
        assert world.standing(guard, ago=2 * HOUR, actor="ann") is PolicyStanding.ACTS, (
            "who asks for it by name knows it"
        )
        assert guard.first_pass_ends("things") is not None
        world.clock.advance(HOUR / 4)
    for one in (first, world.process(interval_seconds=HOUR)):
        await one.judge("things", "p", "old", LITTLE)
        assert world.standing(one, ago=2 * HOUR) is PolicyStanding.ACTS
        assert one.first_pass_ends("things") is None


async def test_what_began_at_the_moment_at_which_the_policy_was_seen_is_not_older(world: World) -> None:
    guard = world.process()
    await guard.judge("things", "p", "old", LITTLE)
    assert [world.standing(guard, ago=ago) for ago in (0, 1 / NS)] == [PolicyStanding.ACTS, PolicyStanding.DRY]


async def test_a_policy_of_another_name_has_a_first_pass_of_its_own(world: World) -> None:
    guard = world.process(interval_seconds=HOUR)
    await guard.judge("things", "p", "old", LITTLE)
    world.clock.advance(HOUR)
    await guard.judge("things", "q", "old", LITTLE)
    assert world.standing(guard, ago=1, name="p") is PolicyStanding.ACTS
    assert world.standing(guard, ago=1, name="q") is PolicyStanding.DRY


async def test_a_store_from_before_there_were_notes_has_no_first_pass_if_its_policies_have_acted(world: World) -> None:
    row = Entry(
        time_ns=world.clock.wall_ns(), domain="things", address="thing/x", uid="x", version="1", verdict="due",
        reason="ttl_expired", anchor_ns=None, policy="h", actor="lapse", outcome=Outcome.ENDED,
    )  # fmt: skip
    await world.journal.append(row)
    guard = world.process()
    for name in ("p", "q"):
        await guard.judge("things", name, "old", LITTLE)
    assert world.standing(guard, ago=1) is PolicyStanding.ACTS
    assert world.standing(guard, ago=1, name="q") is PolicyStanding.DRY, "one that came later has not acted"


async def test_a_moment_that_a_clock_ahead_has_written_is_taken_again(world: World) -> None:
    world.clock.jump_wall(365 * 24 * HOUR)
    await world.process().judge("things", "p", "old", LITTLE)
    world.clock.jump_wall(-365 * 24 * HOUR)
    guard = world.process(interval_seconds=HOUR)
    await guard.judge("things", "p", "old", LITTLE)
    assert world.standing(guard, ago=1) is PolicyStanding.DRY
    world.clock.advance(HOUR)
    assert world.standing(guard, ago=2 * HOUR) is PolicyStanding.ACTS


# --- sweeps -----------------------------------------------------------------------------------------------------------


def sweep_of(things: Things, notes: MemoryNotes, metrics: Metrics, **how: Any) -> Sweep[Any]:  # noqa: ANN401 - of the gate
    journal = SQLiteJournal(things.store.database)
    shared: dict[str, Any] = {"journal": journal, "clock": things.clock, "metrics": metrics}
    gate = PolicyGate(notes, **shared, **how)
    target = ObjectTarget(things.store, things.store)
    return Sweep(things, Executor(target, actor="test", gate=gate, **shared), **shared)


async def test_a_policy_that_changes_during_a_sweep_ends_nothing_more_before_it_is_counted(
    things: Things, metrics: Metrics
) -> None:
    notes = MemoryNotes()
    sweep = sweep_of(things, notes, metrics, interval_seconds=0)
    await sweep.run(proceed=lambda: True)
    for number in range(MOST + 50):
        await things.add(f"t{number}")

    def change(_name: str) -> None:
        play(things, policies=lambda: {"things": "another"})

    things.during_refresh = change
    await sweep.run(proceed=lambda: True)
    assert len(await things.left()) == MOST + 50
    assert any('"waiting"' in text for text in notes.texts.values())


async def test_five_thousand_that_are_due_by_an_unchanged_policy_go_at_once(things: Things, metrics: Metrics) -> None:
    notes = MemoryNotes()
    await sweep_of(things, notes, metrics, interval_seconds=0).run(proceed=lambda: True)
    things.covered = True
    for number in range(5_000):
        await things.add(f"t{number}")
    report = await sweep_of(things, notes, metrics, interval_seconds=0).run(proceed=lambda: True)
    assert report.ended == 5_000


async def test_a_sweep_comes_back_to_what_a_first_pass_has_kept(things: Things, metrics: Metrics) -> None:
    await things.add("a", expires=0)
    sweep = sweep_of(things, MemoryNotes(), metrics, interval_seconds=HOUR)
    assert (await sweep.run(proceed=lambda: True)).would_end == 1
    deadline = things.next_deadline()
    assert deadline == things.clock.wall_ns() + HOUR * NS
    things.clock.advance(HOUR)
    assert (await sweep.run(proceed=lambda: True)).ended == 1


async def test_a_domain_that_is_a_dry_run_tells_what_would_go(things: Things, metrics: Metrics) -> None:
    await things.add("a", expires=0)
    sweep = sweep_of(things, MemoryNotes(), metrics, interval_seconds=0, dry=("things",))
    assert (await sweep.run(proceed=lambda: True)).would_end == 1
    assert await things.left() == ["a"]
