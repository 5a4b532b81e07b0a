from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from lapse.core.decision import DueReason
from lapse.engine.journal.log import LogHasNoTransactionsError, LogJournal
from lapse.engine.journal.port import Entry, Outcome
from lapse.engine.running.logs import configure_logs

ENTRY = Entry(
    time_ns=1_700_000_000_000_000_000,
    domain="requests",
    address="vcr/default/nightly",
    uid="uid-1",
    version="41",
    verdict="due",
    reason=DueReason.TTL_EXPIRED,
    anchor_ns=1_699_999_000_000_000_000,
    policy="a1b2c3",
    actor="lapse",
    outcome=Outcome.ENDED,
    details={"handle": "vol-7"},
    tick="tick-1",
    attempt="attempt-1",
)
HELD = replace(ENTRY, verdict="keep", outcome=Outcome.HELD)


class Log:
    """What was logged."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def configure(self, level: str = "info") -> None:
        configure_logs(form="json", level=level, stream=self.stream)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def log() -> Log:
    made = Log()
    made.configure()
    return made


async def test_a_row_is_one_event_with_the_keys_of_an_entry(log: Log) -> None:
    await LogJournal().append(ENTRY, replace(ENTRY, uid="uid-2"))

    first, second = log.rows
    assert (first["event"], first["logger"], second["uid"]) == ("journal", "lapse.journal", "uid-2")
    assert {key: first[key] for key in asdict(ENTRY)} == asdict(ENTRY)


async def test_rows_are_written_at_any_log_level(log: Log) -> None:
    journal = LogJournal()
    log.configure(level="error")
    await journal.append(ENTRY)
    assert len(log.rows) == 1


async def test_the_same_news_is_told_once(log: Log) -> None:
    journal = LogJournal()
    assert await journal.note(HELD)
    assert not await journal.note(replace(HELD, time_ns=HELD.time_ns + 1))
    assert await journal.note(replace(HELD, uid="uid-2"))
    assert await journal.note(replace(HELD, outcome=Outcome.NOTED))
    assert [row["outcome"] for row in log.rows] == ["held", "held", "noted"]


async def test_what_goes_without_saying_is_news_only_after_something_else(log: Log) -> None:
    journal = LogJournal()
    assert not await journal.note(HELD, unless_first=True)
    await journal.append(replace(ENTRY, outcome=Outcome.FAILED))
    assert await journal.note(HELD, unless_first=True)
    assert [row["outcome"] for row in log.rows] == ["failed", "held"]


@pytest.mark.usefixtures("log")
async def test_what_is_gone_is_forgotten_and_the_rest_is_bounded() -> None:
    journal = LogJournal(remembered=2)
    await journal.note(HELD)
    await journal.append(ENTRY)
    assert await journal.note(HELD)
    await journal.note(replace(HELD, uid="uid-2"))
    await journal.note(replace(HELD, uid="uid-3"))
    assert await journal.note(HELD)  # the oldest of three was dropped, so it is told again
    assert not await journal.note(replace(HELD, uid="uid-3"))


@pytest.mark.usefixtures("log")
async def test_nothing_shares_a_database_with_it() -> None:
    class Store:
        database = None

    journal = LogJournal()
    await journal.append(ENTRY)
    assert not journal.shares(Store())
    with pytest.raises(LogHasNoTransactionsError):
        journal.writer(ENTRY)


async def test_a_row_looks_the_same_whoever_else_listens_to_the_log(log: Log) -> None:
    log.configure()  # once more, because the test runner listens as well
    await LogJournal().append(ENTRY)
    logging.getLogger().addHandler(logging.NullHandler())
    await LogJournal().append(ENTRY)

    alone, beside = log.rows
    assert {**alone, "timestamp": ""} == {**beside, "timestamp": ""}
    assert list(alone) == list(beside)


async def test_a_row_that_cannot_be_written_is_an_error_and_not_a_row_less(log: Log) -> None:
    log.configure()  # once more, because the test runner listens as well
    log.stream.close()

    with pytest.raises(ValueError, match="closed file"):
        await LogJournal().append(replace(ENTRY, outcome=Outcome.INTENT))


@pytest.mark.parametrize("text", ["Grüße", "\ud800", 'a "quoted" line\nand another'])
async def test_a_row_is_written_whatever_its_texts_hold(log: Log, text: str) -> None:
    await LogJournal().append(replace(ENTRY, details={"problem": text}))

    assert [row["details"] for row in log.rows] == [{"problem": text}]
    assert log.stream.getvalue().isascii()
