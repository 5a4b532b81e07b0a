"""People are told once, in time, of what is going to lapse."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.address import Address
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import Decision, Unknown, UnknownReason, decide_by_ttl
from lapse.core.duration import Duration
from lapse.engine.domain import DELETE, Candidate, SimpleDomain
from lapse.engine.journal.expiring import ExpiryWarnings
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.running.coordinator import Turn
from lapse.engine.safety.holds import Hold, HoldDoubt
from tests.unit.engine.harness import NS, START, series

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lapse.core.decision import Reason
    from lapse.engine.domain import Action, Result
    from lapse.engine.journal.port import Row
    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.running.metrics import Metrics

HOUR = 3_600
TTL = 24 * HOUR


@dataclass(frozen=True)
class Cup:
    """Lapses so many seconds after it was last used."""

    used: float
    ttl: float = TTL


@dataclass
class Cups(SimpleDomain[Cup]):
    """A small domain."""

    name: str = "cups"
    reasons: tuple[Reason, ...] = ()
    cups: dict[str, Candidate[Cup]] = field(default_factory=dict)
    over: dict[str, Hold | HoldDoubt] = field(default_factory=dict)
    """Holds elsewhere that keep a cup."""
    error: Exception | None = None
    asked: list[UnixNs] = field(default_factory=list)

    @property
    def target(self) -> Cups:
        return self

    def add(self, name: str, *, lapses_in: float, ttl: float = TTL, **other: Any) -> None:  # noqa: ANN401 - fields
        cup = Cup(START + lapses_in - ttl, ttl)
        address = Address("cup", None, name)
        self.cups[name] = Candidate(address=address, uid=f"uid-{name}", version="1", state=cup, handle=None, **other)

    async def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Cup]], None]:
        self.asked.append(until)
        if self.error is not None:
            raise self.error
        for candidate in list(self.cups.values()):
            yield [candidate]

    def decide(self, candidate: Candidate[Cup], now: UnixNs) -> Decision:
        if candidate.version == "broken":
            raise ValueError
        if candidate.version == "unknown":
            return Decision(Unknown(UnknownReason.UNREADABLE_SIGNAL), deadline=UnixNs(now + 1))
        cup = candidate.state
        return decide_by_ttl(UnixNs(round(cup.used * NS)), Duration(round(cup.ttl * NS)), now, action=DELETE)

    def policy(self, candidate: Candidate[Cup]) -> str:
        return "p1"

    async def holds_over(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Hold | HoldDoubt | None]:
        return [self.over.get(action.address.name) for action in actions]

    async def apply(self, actions: Sequence[Action], *, also: object) -> Sequence[Result]:
        raise NotImplementedError


@pytest.fixture
def cups() -> Cups:
    return Cups()


class World:
    """Warnings over cups; `restart` is another process."""

    def __init__(self, cups: Cups, journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics) -> None:
        self.cups, self.journal, self.clock, self.metrics = cups, journal, clock, metrics
        self.restart()

    def restart(self, *domains: Cups, before: float = HOUR) -> None:
        self.loop = ExpiryWarnings(
            domains or [self.cups],
            before=before,
            journal=self.journal,
            clock=self.clock,
            metrics=self.metrics,
            actor="lapse",
        )
        self.loop.begin(Turn(lambda: True, lambda: None))

    async def told(self) -> list[Row]:
        """Look, and return all that was ever told, oldest first."""
        await self.loop.tick()
        return (await self.journal.entries(outcome=Outcome.EXPIRING))[::-1]

    async def names(self) -> list[str]:
        return [row.address.removeprefix("cup/") for row in await self.told()]


@pytest.fixture
def world(cups: Cups, far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics) -> World:
    metrics.expect_passes("cups", reasons=[])
    return World(cups, far_journal, clock, metrics)


async def test_a_warning_comes_the_configured_time_before_the_deadline_and_not_a_moment_earlier(
    world: World, cups: Cups
) -> None:
    cups.add("a", lapses_in=HOUR + 10)
    world.clock.advance(10, ns=-1)
    assert await world.names() == []
    world.clock.advance(ns=1)
    (row,) = await world.told()

    deadline = (START + HOUR + 10) * NS
    assert row.details == {"action": "delete", "deadline": "2023-11-14T23:13:30Z"}
    assert (row.verdict, row.reason, row.policy, row.actor, row.uid) == ("keep", "not_yet", "p1", "lapse", "uid-a")
    assert row.anchor_ns == deadline - TTL * NS


async def test_each_deadline_is_told_once_also_after_a_restart(world: World, cups: Cups) -> None:
    cups.add("a", lapses_in=HOUR / 2)
    for _ in range(3):
        assert await world.names() == ["a"]
        world.clock.advance(60)
    world.restart()
    assert await world.names() == ["a"]
    cups.add("a", lapses_in=HOUR)  # used again: another deadline
    assert await world.names() == ["a", "a"]
    world.restart()
    assert await world.names() == ["a", "a"]
    cups.add("a", lapses_in=HOUR / 2)  # as it was before
    assert await world.names() == ["a", "a"]


async def test_something_new_under_the_same_name_is_told_of(world: World, cups: Cups) -> None:
    cups.add("a", lapses_in=HOUR / 2)
    await world.loop.tick()
    cups.cups["a"] = Candidate(
        address=Address("cup", None, "a"), uid="another", version="1", state=cups.cups["a"].state, handle=None
    )
    assert [row.uid for row in await world.told()] == ["uid-a", "another"]


async def test_at_its_deadline_it_is_told_of_and_after_it_is_not(world: World, cups: Cups) -> None:
    cups.add("now", lapses_in=0)
    cups.add("over", lapses_in=-1)
    assert await world.names() == ["now"]


async def test_what_lives_shorter_than_the_warning_is_told_of_at_half_of_its_time(world: World, cups: Cups) -> None:
    cups.add("a", lapses_in=300, ttl=300)
    for _ in range(10):  # used every minute: it never comes to half of its time
        assert await world.names() == []
        world.clock.advance(60)
        cups.cups["a"] = Candidate(
            address=Address("cup", None, "a"),
            uid="uid-a",
            version="1",
            state=replace(cups.cups["a"].state, used=world.clock.wall_ns() / NS),
            handle=None,
        )
    world.clock.advance(149)
    assert await world.names() == []
    world.clock.advance(1)
    assert await world.names() == ["a"]


async def test_what_is_held_at_its_deadline_is_not_told_of(world: World, cups: Cups) -> None:
    soon, late = UnixNs((START + 600) * NS), UnixNs((START + 2 * HOUR) * NS)
    cups.add("held", lapses_in=HOUR / 2, hold=Hold("audit", None))
    cups.add("held-until-later", lapses_in=HOUR / 2, hold=Hold("audit", late))
    cups.add("held-until-before", lapses_in=HOUR / 2, hold=Hold("audit", soon))
    cups.add("kept-by-another", lapses_in=HOUR / 2)
    cups.add("kept-by-doubt", lapses_in=HOUR / 2)
    cups.add("dry", lapses_in=HOUR / 2, dry_run=True)
    cups.over = {"kept-by-another": Hold("audit", None), "kept-by-doubt": HoldDoubt("no answer")}
    assert await world.names() == ["held-until-before"]

    cups.over.clear()  # released
    assert await world.names() == ["held-until-before", "kept-by-another", "kept-by-doubt"]


async def test_what_was_extended_is_told_of_before_its_later_deadline(world: World, cups: Cups) -> None:
    cups.add("a", lapses_in=HOUR / 2, extended=UnixNs((START + 3 * HOUR) * NS))
    assert await world.names() == []
    world.clock.advance(2 * HOUR)
    (row,) = await world.told()
    assert row.details is not None
    assert row.details["deadline"] == "2023-11-15T01:13:20Z"


async def test_doubt_warns_of_nothing(world: World, cups: Cups, monkeypatch: pytest.MonkeyPatch) -> None:
    cups.add("a", lapses_in=HOUR / 2)
    cups.cups["unknown"] = Candidate(
        address=Address("cup", None, "unknown"), uid="u", version="unknown", state=Cup(0), handle=None
    )
    monkeypatch.setattr(world.clock, "in_doubt", lambda: True)
    assert await world.names() == []
    monkeypatch.setattr(world.clock, "in_doubt", lambda: False)
    assert await world.names() == ["a"]


async def test_one_that_cannot_be_decided_does_not_stop_the_rest(world: World, cups: Cups) -> None:
    cups.cups["broken"] = Candidate(
        address=Address("cup", None, "broken"), uid="u", version="broken", state=Cup(0), handle=None
    )
    cups.add("a", lapses_in=HOUR / 2)
    assert await world.names() == ["a"]
    assert series(world.metrics)['lapse_errors_total{domain="cups",kind="item"}'] == 1


async def test_a_domain_that_cannot_be_read_does_not_stop_the_others(world: World, cups: Cups) -> None:
    failing = Cups(name="other", error=ConnectionError())
    cups.add("a", lapses_in=HOUR / 2)
    world.restart(failing, cups)
    with pytest.raises(ConnectionError):
        await world.loop.tick()
    assert len(await world.journal.entries(outcome=Outcome.EXPIRING)) == 1


async def test_a_term_that_is_lost_ends_between_pages(world: World, cups: Cups) -> None:
    for number in range(5):
        cups.add(f"a{number}", lapses_in=HOUR / 2)
    left = iter([True, True, False])
    world.loop.begin(Turn(lambda: next(left), lambda: None))
    assert await world.names() == ["a0", "a1"]


async def test_only_what_is_near_is_asked_for(world: World, cups: Cups) -> None:
    await world.loop.tick()
    assert cups.asked == [(START + HOUR) * NS]


@pytest.mark.parametrize(("before", "interval"), [(10, 1), (600, 30), (HOUR, 180), (7 * 24 * HOUR, 300)])
def test_looks_are_as_far_apart_as_the_warning_allows(world: World, before: float, interval: float) -> None:
    world.restart(before=before)
    assert world.loop.interval == interval


async def test_a_warning_is_no_change_of_the_verdict(world: World, cups: Cups) -> None:
    cups.add("a", lapses_in=HOUR / 2)
    (row,) = await world.told()
    values = {name: getattr(row, name) for name in Entry.__struct_fields__}
    noted = Entry(**{**values, "outcome": Outcome.NOTED, "details": None, "time_ns": row.time_ns + 1})

    assert not await world.journal.note(noted)
    assert not await world.journal.note(noted, unless_first=True)
