"""The outbox delivers every event at least once and in order, whatever its receiver does."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import pytest

from lapse.engine.journal.outbox import (
    LONGEST_SECONDS,
    PAGE,
    WIDTH,
    WebhookPosition,
    note_of,
)
from lapse.engine.journal.port import AUDIT, AuditReason, Outcome, audit_row
from lapse.engine.journal.webhook import ATTEMPT_SECONDS
from lapse.engine.running.coordinator import Coordinator, Turn
from lapse.engine.running.election import LeaseElection
from tests.unit.engine.harness import open_journal, series
from tests.unit.engine.receivers import (
    NS,
    OK,
    PATIENCE,
    Hook,
    KilledError,
    OutboxHarness,
    babbles,
    cuts,
    entry,
    floods,
    hangs,
    listening,
    says,
    settle,
    times,
    trails_off,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from lapse.core.clock import VirtualClock
    from lapse.engine.journal.outbox import WebhookLoop
    from lapse.engine.journal.sqlite import SQLiteJournal
    from lapse.engine.running.metrics import Metrics
    from tests.unit.engine.receivers import Answer

DAY = 86_400


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    async with listening(Hook()) as hook:
        yield hook


@pytest.fixture
def place(far_journal: SQLiteJournal, clock: VirtualClock, metrics: Metrics, tmp_path: Path) -> Iterator[OutboxHarness]:
    place = OutboxHarness(far_journal, clock, metrics, tmp_path)
    yield place
    place.close()


def delivered(metrics: Metrics, result: str = "delivered") -> float:
    label = f'{{result="{result}",store="folder",webhook="ops"}}'
    return series(metrics)[f"lapse_webhook_deliveries_total{label}"]


async def tick_past(loop: WebhookLoop, clock: VirtualClock, hook: Hook, seconds: float) -> float | None:
    """Tick while a receiver does not answer, until the attempt is over."""
    before = len(hook.got)
    ticking = asyncio.create_task(loop.tick())
    await hook.came(before + 1)
    for _ in range(20):  # the head may be on its way
        await asyncio.sleep(0)  # noqa: TID251 - lets the event loop turn, and takes no time
    clock.advance(seconds)
    return await ticking


# --- what is delivered ------------------------------------------------------------------------------------------------


async def test_what_happens_after_the_first_start_is_delivered_in_its_order(place: OutboxHarness, hook: Hook) -> None:
    await place.journal.append(entry("before"))
    loop = await place.loop(place.webhook(hook))
    assert await settle(loop) is None

    await place.journal.append(*(entry("a", number=number) for number in range(300)))
    assert await settle(loop) is None

    assert [one.event["data"]["version"] for one in hook.taken] == [str(number) for number in range(300)]
    assert delivered(place.metrics) == 300
    assert hook.connections == 1


async def test_an_event_says_what_the_row_says(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("nightly", anchor_ns=1_699_999_000 * NS, details={"shelf": 7}))
    await settle(loop)

    (one,) = hook.taken
    event = one.event
    assert one.target == "/hooks/lapse?team=ops"
    assert one.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert one.headers["webhook-id"] == event.pop("id")
    assert event["data"].pop("place").endswith(f".{event['data'].pop('id')}.0")
    assert event == {
        "specversion": "1.0",
        "source": "urn:uuid:r1",
        "type": "dev.lapse.ended",
        "subject": "vcr/default/nightly",
        "time": "2023-11-14T22:13:20.000000Z",
        "datacontenttype": "application/json",
        "data": {
            "time": "2023-11-14T22:13:20Z",
            "domain": "requests",
            "address": "vcr/default/nightly",
            "uid": "uid-nightly",
            "version": "0",
            "verdict": "due",
            "reason": "ttl_expired",
            "anchor": "2023-11-14T21:56:40Z",
            "policy": "p1",
            "actor": "lapse",
            "outcome": "ended",
            "details": {"shelf": 7},
            "plan": None,
        },
    }


async def test_things_wait_for_themselves_and_not_for_each_other(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    gate = asyncio.Event()

    async def slowly(delivery: object, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await OK(delivery, writer)  # type: ignore[arg-type]  # as it came

    hook.answer = slowly
    for number in range(3):
        await place.journal.append(*(entry(f"thing-{thing}", number=number) for thing in range(20)))
    ticking = asyncio.create_task(loop.tick())
    await hook.came(WIDTH)
    assert hook.at_once == WIDTH
    assert len({one.subject for one in hook.got}) == WIDTH  # not two of the same thing
    gate.set()
    await ticking

    assert hook.most_at_once == WIDTH
    for thing in range(20):
        mine = [one.event["data"]["version"] for one in hook.got if one.subject.endswith(f"/thing-{thing}")]
        assert mine == ["0", "1", "2"]


async def test_a_webhook_is_told_of_what_it_asked_for(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook, events=["ended", "audit.token_created"], domains=["requests", AUDIT]))
    await settle(loop)
    created = audit_row(AuditReason.TOKEN_CREATED, address="", actor="ada", time_ns=5)
    await place.journal.append(
        entry("a"),
        entry("b", outcome=Outcome.FAILED),
        entry("c", domain="keepers"),
        created,
        msgspec.structs.replace(created, reason=AuditReason.TOKEN_REVOKED),
    )
    await settle(loop)

    assert sorted(one.event["type"] for one in hook.taken) == ["dev.lapse.audit.token_created", "dev.lapse.ended"]


async def test_without_a_choice_everything_is_told_but_halves_of_acts_and_the_audit(
    place: OutboxHarness, hook: Hook
) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    for outcome in Outcome:
        await place.journal.append(entry(outcome.value, outcome=outcome))
    await place.journal.append(audit_row(AuditReason.LOGIN_REFUSED, address="", actor="", time_ns=5))
    await settle(loop)

    told = {one.event["type"].removeprefix("dev.lapse.") for one in hook.taken}
    assert told == {*Outcome} - {Outcome.INTENT, Outcome.DONE, Outcome.UNDELIVERED}


async def test_rows_of_another_store_are_left_to_it(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook), without=["workspaces"])
    await settle(loop)
    await place.journal.append(entry("a", domain="workspaces"), entry("b"))
    await settle(loop)

    assert hook.subjects == ["vcr/default/b"]


# --- receivers that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (says(500), "it answered 500"),
        (says(302, "Location: http://127.0.0.1/elsewhere"), "redirections are not followed"),
        (cuts, "the connection was cut before an answer came"),
        (babbles, "its answer is not understood"),
    ],
    ids=["500", "redirect", "cut", "no-http"],
)
async def test_a_failure_is_tried_again_after_a_growing_wait_until_it_is_taken(
    place: OutboxHarness, hook: Hook, answer: Answer, problem: str
) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("a"), entry("a", number=1))
    hook.answer = answer
    waits = [await loop.tick() for _ in range(12)]

    assert [round(wait or 0) for wait in waits] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    view = loop.view()
    assert (view.state, view.attempts, view.since) == ("failing", 12, 1_700_000_000 * NS)
    assert problem in view.problem
    assert hook.url not in view.problem
    assert delivered(place.metrics, "failed") == 12

    hook.answer = OK
    assert await settle(loop) is None
    assert [one.event["data"]["version"] for one in hook.taken] == ["0", "1"]
    assert len({one.headers["webhook-id"] for one in hook.got}) == 2
    assert (loop.view().state, loop.view().problem) == ("delivering", "")


async def test_a_receiver_that_hangs_is_given_up_on_in_time(
    place: OutboxHarness, hook: Hook, clock: VirtualClock
) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("a"))
    hook.answer = hangs
    wait = await tick_past(loop, clock, hook, ATTEMPT_SECONDS)

    assert wait is not None
    assert "no answer within 15 s" in loop.view().problem
    hook.answer = OK
    await settle(loop)
    assert hook.subjects == ["vcr/default/a"]


async def test_a_receiver_that_is_down_is_tried_until_it_is_up(place: OutboxHarness, clock: VirtualClock) -> None:
    hook = Hook()
    async with listening(hook):
        pass  # its port is known, and nobody listens there
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(*(entry(f"thing-{number}") for number in range(3 * PAGE)))
    for _ in range(5):
        wait = await loop.tick()
        assert wait is not None
        clock.advance(wait)
    assert "no connection" in loop.view().problem

    async with listening(hook):
        assert await settle(loop) is None
    assert len(times(hook)) == 3 * PAGE
    assert set(times(hook).values()) == {1}


async def test_the_rest_of_an_answer_is_not_waited_for(place: OutboxHarness, hook: Hook, clock: VirtualClock) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("a"))
    hook.answers = [trails_off]
    assert await tick_past(loop, clock, hook, 1) == 0.0
    assert (loop.view().state, delivered(place.metrics)) == ("delivering", 1)

    await place.journal.append(entry("b"))
    await settle(loop)
    assert (hook.subjects, hook.connections) == (["vcr/default/b"], 2)  # its connection is not used again


@pytest.mark.parametrize(
    "answer",
    [floods, says(200, "Content-Encoding: gzip", body=gzip.compress(b"x" * 50_000_000))],
    ids=["endless", "compressed"],
)
async def test_a_huge_answer_costs_no_memory_and_no_time(place: OutboxHarness, hook: Hook, answer: Answer) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("a"))
    hook.answers = [answer]
    tracemalloc.start()
    async with asyncio.timeout(PATIENCE):
        assert await loop.tick() == 0.0
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8_000_000
    assert (loop.view().state, delivered(place.metrics)) == ("delivering", 1)


async def test_a_receiver_may_ask_for_more_time(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("a"))
    hook.answers = [says(429, "Retry-After: 120"), says(503, "Retry-After: 999999"), says(503, "Retry-After: soon")]

    assert await loop.tick() == 120
    assert await loop.tick() == 3_600
    assert round(await loop.tick() or 0) == 4


async def test_a_receiver_that_is_gone_is_asked_seldom_and_told_of(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(entry("a"))
    hook.answer = says(410)

    assert await loop.tick() == LONGEST_SECONDS
    assert loop.view().state == "gone"
    assert "gone for good" in loop.view().problem


async def test_one_that_fails_does_not_stop_another(place: OutboxHarness, hook: Hook) -> None:
    async with listening(Hook(answer=says(500))) as other:
        failing = await place.loop(place.webhook(other, name="other"))
        loop = await place.loop(place.webhook(hook))
        for one in (failing, loop):
            await settle(one)
        await place.journal.append(entry("a"))
        await failing.tick()
        await settle(loop)

    assert hook.subjects == ["vcr/default/a"]


async def test_while_it_fails_one_event_at_a_time_is_tried(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(*(entry(f"thing-{number}") for number in range(50)))
    hook.answer = says(503)
    await loop.tick()
    tried = len(hook.got)
    await loop.tick()

    assert tried <= WIDTH
    assert len(hook.got) == tried + 1
    assert hook.got[-1].subject == "vcr/default/thing-0"


async def test_a_receiver_that_takes_some_is_not_told_those_again(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    await settle(loop)
    await place.journal.append(*(entry(f"thing-{number}") for number in range(30)))
    is_down = True

    async def picky(delivery: object, writer: asyncio.StreamWriter) -> None:
        bad = is_down and delivery.subject.endswith("/thing-0")  # type: ignore[attr-defined]  # as it came
        await (says(500) if bad else OK)(delivery, writer)  # type: ignore[arg-type]

    hook.answer = picky
    while await loop.tick() == 0.0:
        pass
    is_down = False
    await settle(loop)

    ids = [one.headers["webhook-id"] for one in hook.got if not one.subject.endswith("/thing-0")]
    assert len(ids) == len(set(ids)) == 29


async def test_a_receiver_that_is_down_for_days_costs_neither_memory_nor_rows(
    place: OutboxHarness, hook: Hook, clock: VirtualClock
) -> None:
    loop = await place.loop(place.webhook(hook, give_up_after="never"))
    await settle(loop)
    hook.answer = says(500)
    for number in range(20):
        await place.journal.append(*(entry(f"thing-{number}-{one}", details={"x": "y" * 200}) for one in range(PAGE)))
    tracemalloc.start()
    sizes = []
    for _ in range(2):
        for _ in range(25):
            await loop.tick()
            clock.advance(DAY / 10)
        hook.got.clear()
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert clock.monotonic_ns() > 4 * DAY * NS
    assert sizes[1] < sizes[0] + 50_000
    assert len(await place.journal.entries(limit=10_000)) == 20 * PAGE
    assert list(place.notes.texts) == [note_of("ops")]


# --- giving up --------------------------------------------------------------------------------------------------------


async def test_an_event_that_is_never_taken_is_left_out_and_told(
    place: OutboxHarness, hook: Hook, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    loop = await place.loop(place.webhook(hook, give_up_after="1h"))
    await settle(loop)
    await place.journal.append(entry("bad"), entry("good"))

    async def picky(delivery: object, writer: asyncio.StreamWriter) -> None:
        is_bad = delivery.subject.endswith("/bad")  # type: ignore[attr-defined]  # as it came
        await (says(400) if is_bad else OK)(delivery, writer)  # type: ignore[arg-type]

    hook.answer = picky
    started_ns = clock.monotonic_ns()
    with caplog.at_level(logging.WARNING):
        while (wait := await loop.tick()) != 0.0:
            clock.advance(wait or 0)
    tried = (clock.monotonic_ns() - started_ns) / NS
    assert 3_600 <= tried <= 3_600 + LONGEST_SECONDS
    await settle(loop)

    (row,) = await place.journal.entries(outcome=Outcome.UNDELIVERED)
    assert (row.domain, row.address, row.uid) == ("webhooks", "vcr/default/bad", "uid-bad")
    assert row.details is not None
    assert row.details["webhook"] == "ops"
    assert row.details["problem"] == "The webhook ops has not taken an event: it answered 400."
    assert delivered(place.metrics, "undelivered") == 1
    assert [record.message for record in caplog.records] == ["webhook_failing", "event_undelivered"]
    assert [one.subject for one in hook.got].count("vcr/default/good") == 1
    assert loop.view().state == "delivering"


async def test_time_in_which_nobody_tried_does_not_count_nor_do_jumps_of_the_clock(
    place: OutboxHarness, hook: Hook, clock: VirtualClock
) -> None:
    webhook = place.webhook(hook, give_up_after="1h")
    loop = await place.loop(webhook)
    await settle(loop)
    await place.journal.append(entry("a"))
    hook.answer = says(500)
    for jump in (0, 400 * DAY, -800 * DAY, 0):
        clock.advance(await loop.tick() or 0)
        clock.jump_wall(jump)
    clock.reboot("another", seconds=30 * DAY)
    loop = await place.loop(webhook)  # another process, which goes on with what was stored
    for _ in range(3):
        clock.advance(await loop.tick() or 0)

    assert loop.view().attempts == 7
    assert await place.journal.entries(outcome=Outcome.UNDELIVERED) == []
    hook.answer = OK
    await settle(loop)
    assert hook.subjects == ["vcr/default/a"]


# --- restarts ---------------------------------------------------------------------------------------------------------


async def test_killed_between_delivery_and_position_it_delivers_again_under_the_same_id(
    place: OutboxHarness, hook: Hook
) -> None:
    webhook = place.webhook(hook)
    loop = await place.loop(webhook)
    await settle(loop)
    await place.journal.append(entry("a"), entry("b"))
    place.notes.broken = True
    with pytest.raises(KilledError):
        await loop.tick()
    place.notes.broken = False
    await settle(await place.loop(webhook))

    assert times(hook) == {"vcr/default/a": 2, "vcr/default/b": 2}
    assert len({one.headers["webhook-id"] for one in hook.taken}) == 2


async def test_a_restart_goes_on_where_the_last_one_stopped(place: OutboxHarness, hook: Hook) -> None:
    webhook = place.webhook(hook)
    await settle(await place.loop(webhook))
    await place.journal.append(entry("a"))
    await settle(await place.loop(webhook))
    await place.journal.append(entry("b"))
    await settle(await place.loop(webhook))

    assert hook.subjects == ["vcr/default/a", "vcr/default/b"]


async def test_a_term_that_is_lost_ends_between_two_events(place: OutboxHarness, hook: Hook) -> None:
    loop = await place.loop(place.webhook(hook))
    loop.begin(Turn(lambda: len(hook.got) < 2, lambda: None))
    await settle(loop)
    await place.journal.append(*(entry("a", number=number) for number in range(5)))
    await loop.tick()
    assert len(hook.taken) == 2

    loop.begin(Turn(lambda: True, lambda: None))
    await settle(loop)
    assert [one.event["data"]["version"] for one in hook.taken] == ["0", "1", "2", "3", "4"]


async def test_who_leads_again_goes_on_where_the_other_one_stopped(place: OutboxHarness, hook: Hook) -> None:
    webhook = place.webhook(hook)
    one, other = await place.loop(webhook), await place.loop(webhook)
    for number, loop in enumerate((one, other, one)):
        loop.begin(Turn(lambda: True, lambda: None))
        await settle(loop)
        await place.journal.append(entry("a", number=number))
        await settle(loop)

    assert [one.event["data"]["version"] for one in hook.taken] == ["0", "1", "2"]


async def test_rows_that_were_moved_to_a_database_are_delivered_from_there(
    place: OutboxHarness, hook: Hook, tmp_path: Path
) -> None:
    webhook = place.webhook(hook)
    await settle(await place.loop(webhook))
    await place.journal.append(entry("a", time_ns=1_800_000_001 * NS))
    await settle(await place.loop(webhook))
    await place.journal.append(entry("b", time_ns=1_800_000_002 * NS))

    there = open_journal(tmp_path / "there.db")
    await there.append(*(entry(f"old-{number}", time_ns=NS) for number in range(5)))  # of others
    for row in reversed(await place.journal.entries()):
        await there.append(row)
    place.journal = there
    await settle(await place.loop(webhook, record="r2"))
    there.database.close()

    assert sorted(hook.subjects) == ["vcr/default/a", "vcr/default/a", "vcr/default/b"]
    assert len({one.headers["webhook-id"] for one in hook.taken}) == 2
    position = msgspec.json.decode(place.notes.texts[note_of("ops")], type=WebhookPosition)
    assert position.record == "r2"


async def test_of_two_processes_the_leader_delivers_and_then_the_next_one(
    place: OutboxHarness, hook: Hook, clock: VirtualClock
) -> None:
    from lapse.engine.running.database_lease import SQLiteLease
    from lapse.engine.running.metrics import Metrics

    webhook = place.webhook(hook)
    processes = []
    for number in range(2):
        metrics = Metrics("test")
        place.metrics = metrics
        lease = SQLiteLease(open_lease(place.folder / "lease.db"), clock=clock)
        coordinator = Coordinator(
            clock=clock,
            metrics=metrics,
            loops=[await place.loop(webhook)],
            leadership=LeaseElection(lease, clock=clock),
        )
        processes.append((coordinator, asyncio.create_task(coordinator.run(), name=f"process-{number}")))
        await passing(clock, 2)
    await place.journal.append(entry("a"))
    await until(clock, hook, 1)
    first, running = processes[0]
    first.stop()
    await passing(clock, 2)
    await running
    await place.journal.append(entry("b"))
    await until(clock, hook, 2)
    second, running = processes[1]
    second.stop()
    await passing(clock, 2)
    await running

    assert hook.subjects == ["vcr/default/a", "vcr/default/b"]


def open_lease(path: Path):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a database for leases
    from lapse.db.sqlite.database import Database
    from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
    from lapse.engine.running.database_lease import SCHEMA_SCRIPTS

    return Database(SQLiteFile(path, synchronous=Synchronous.NORMAL), Schema(application_id=1, scripts=SCHEMA_SCRIPTS))


async def passing(clock: VirtualClock, seconds: float) -> None:
    """Let virtual time pass, and everybody take part in it."""
    for _ in range(round(seconds * 10)):
        clock.advance(0.1)
        for _ in range(5):
            await asyncio.sleep(0.001)  # noqa: TID251 - sockets and files take real time


async def until(clock: VirtualClock, hook: Hook, taken: int) -> None:
    for _ in range(200):
        if len(hook.taken) >= taken:
            return
        await passing(clock, 0.5)
    raise AssertionError(f"{len(hook.taken)} events came")


# --- secrets ----------------------------------------------------------------------------------------------------------


async def test_a_secret_that_cannot_be_read_stops_deliveries_until_it_can(place: OutboxHarness, hook: Hook) -> None:
    webhook = place.webhook(hook)
    loop = await place.loop(webhook)
    await settle(loop)
    secret = place.folder / "secret"
    kept = secret.read_text()
    secret.write_text("")
    await place.journal.append(entry("a", outcome=Outcome.INTENT), entry("a"))
    assert await loop.tick() not in {0.0, None}
    assert (loop.view().state, hook.got) == ("failing", [])

    secret.write_text(kept)
    await settle(loop)
    assert hook.subjects == ["vcr/default/a"]


def test_what_is_stored_holds_neither_a_url_nor_a_secret(place: OutboxHarness) -> None:
    stored = msgspec.json.encode(WebhookPosition("r1", "0.0.0", 5))
    assert sorted(json.loads(stored)) == ["after", "failing", "record", "time_ns"]


async def test_an_error_of_a_delivery_is_told_without_the_url(place: OutboxHarness, hook: Hook) -> None:
    webhook = place.webhook(hook, url="http://127.0.0.1:1/token-in-path")
    loop = await place.loop(webhook)
    await settle(loop)
    await place.journal.append(entry("a"))
    await loop.tick()

    assert loop.view().problem == "The webhook ops has not taken an event: no connection: Connection refused."
