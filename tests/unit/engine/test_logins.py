from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lapse.core.clock import VirtualClock
from lapse.engine.journal.port import AUDIT, Outcome
from lapse.engine.running.logins import (
    FORGET_SECONDS,
    FREE,
    LONGEST_SECONDS,
    MOST_TOLD,
    OTHERS,
    LoginAudit,
    LoginFailures,
    LoginProof,
    source_of,
)
from lapse.engine.running.metrics import Metrics

if TYPE_CHECKING:
    from lapse.engine.journal.port import Entry
    from lapse.engine.journal.sqlite import SQLiteJournal

PEER = "192.0.2.1"


def fail(failures: LoginFailures, peer: str = PEER) -> int | None:
    return failures.failed(LoginProof.TOKEN, peer)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def failures(clock: VirtualClock) -> LoginFailures:
    return LoginFailures(clock, Metrics("test"))


# --- putting off ------------------------------------------------------------------------------------------------------


def test_a_few_failures_are_answered_as_such_and_more_are_put_off_ever_longer_up_to_a_bound(
    failures: LoginFailures, clock: VirtualClock
) -> None:
    assert [fail(failures) for _ in range(FREE)] == [None] * FREE
    waits = []
    for _ in range(12):
        seconds = fail(failures)
        assert seconds is not None
        waits.append(seconds)
        clock.advance(seconds)

    assert waits[0] == 1
    assert LONGEST_SECONDS / 2 <= waits[-1] <= LONGEST_SECONDS
    assert waits[-1] > waits[3]


def test_who_comes_back_too_soon_does_not_wait_longer_for_it(failures: LoginFailures, clock: VirtualClock) -> None:
    for _ in range(FREE + 6):
        clock.advance(fail(failures) or 0)
    asked = fail(failures)
    assert asked is not None
    again = [fail(failures) for _ in range(100)]

    assert again == [asked] * 100
    clock.advance(asked - 1)
    assert fail(failures) == 1


def test_other_sources_are_not_put_off_and_an_old_failure_is_forgotten(
    failures: LoginFailures, clock: VirtualClock
) -> None:
    for _ in range(FREE + 1):
        fail(failures)
    assert fail(failures, "192.0.2.2") is None
    assert fail(failures) is not None
    clock.advance(LONGEST_SECONDS + FORGET_SECONDS + 1)
    assert fail(failures) is None


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", "unknown"),
        ("/run/lapse.sock", "/run/lapse.sock"),
    ],
)
def test_a_source_is_an_address_or_a_network_that_one_machine_may_have_to_itself(peer: str, source: str) -> None:
    assert source_of(peer) == source


def test_very_many_sources_take_no_more_memory_than_many(failures: LoginFailures) -> None:
    for number in range(5_000):
        fail(failures, f"10.{number >> 8}.{number & 255}.1")

    assert len(failures._sources) == 1024
    assert len(failures._untold) == MOST_TOLD + 1


# --- counting and telling ---------------------------------------------------------------------------------------------


def test_failures_are_counted_by_what_was_wrong_and_stand_at_zero_from_the_start() -> None:
    metrics = Metrics("test")
    failures = LoginFailures(VirtualClock(), metrics)
    assert metrics.exposition().decode().count("lapse_login_failures_total{") == len(LoginProof)
    failures.failed(LoginProof.TICKET, PEER)
    assert 'lapse_login_failures_total{proof="ticket"} 1.0' in metrics.exposition().decode()


async def test_a_source_has_one_row_for_each_minute_with_a_count(
    failures: LoginFailures, clock: VirtualClock, journal: SQLiteJournal
) -> None:
    audit, began = LoginAudit(failures, journal, domain="requests"), clock.wall_ns()
    for _ in range(3):
        fail(failures)
        clock.advance(1)
    failures.failed(LoginProof.SESSION, PEER)
    fail(failures, "127.0.0.1")

    assert await audit.tick() == 60, "never sooner"
    rows = {row.address: row for row in await journal.entries(domain=AUDIT)}
    assert set(rows) == {"login/192.0.2.1", "login/127.0.0.1"}
    row = rows["login/192.0.2.1"]
    assert row.details == {"count": 4, "session": 1, "token": 3, "first_ns": began}
    assert (row.time_ns, row.actor, row.outcome) == (clock.wall_ns(), "peer 192.0.2.1", Outcome.REFUSED)
    assert row.reason == "login_refused"

    await audit.tick()
    assert len(await journal.entries(domain=AUDIT)) == 2, "nothing new is no row"


async def test_sources_beyond_a_number_are_told_together(failures: LoginFailures, journal: SQLiteJournal) -> None:
    for number in range(MOST_TOLD + 40):
        fail(failures, f"10.0.{number >> 8}.{number & 255}")
    await LoginAudit(failures, journal, domain="requests").tick()
    rows = {row.address: row for row in await journal.entries(limit=1_000)}

    assert len(rows) == MOST_TOLD + 1
    assert (rows[f"login/{OTHERS}"].details or {})["count"] == 40


async def test_what_could_not_be_told_is_told_with_the_next_ones_and_at_the_latest_at_the_end(
    failures: LoginFailures, journal: SQLiteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Entry) -> None:
        raise OSError

    audit = LoginAudit(failures, journal, domain="requests")
    fail(failures)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "append", full)
        with pytest.raises(OSError):  # noqa: PT011 - ours
            await audit.tick()
        await audit.close()
    fail(failures)
    await audit.close()
    (row,) = await journal.entries()

    assert (row.details or {})["count"] == 2
