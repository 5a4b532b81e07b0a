"""The client's clock decides, so a wrong one is refused before it can misjudge anything."""

from __future__ import annotations

import pytest

import lapse
from lapse.core.clock import SystemClock
from lapse.keys.errors import BackendUnavailableError, OutcomeUnknownError
from tests.integration.keys_dynamodb.conftest import Raw, url_of
from tests.integration.keys_dynamodb.injector import Injector, refuse

FIVE_MINUTES = 300.0


class ShiftedClock(SystemClock):
    """A machine whose wall clock somebody has set wrongly."""

    def __init__(self, seconds: float = 0) -> None:
        self.seconds = seconds
        self.wall_ns = self._shifted_ns

    def _shifted_ns(self) -> int:
        return SystemClock.wall_ns() + round(self.seconds * 1_000_000_000)


@pytest.mark.parametrize(("seconds", "words"), [(FIVE_MINUTES, "ahead of"), (-FIVE_MINUTES, "behind")])
def test_a_clock_five_minutes_off_is_refused_when_a_store_is_opened(url: str, seconds: float, words: str) -> None:
    with pytest.raises(
        BackendUnavailableError, match=rf"(298|299|300|301)\.\d s {words} the server's, and max_skew allows 1 s"
    ):
        lapse.open_keys(url, clock=ShiftedClock(seconds))


async def test_a_clock_five_minutes_off_is_refused_without_an_open_check(url: str, table: str, raw: Raw) -> None:
    keys = lapse.open_keys_async(url, clock=ShiftedClock(FIVE_MINUTES))
    try:
        with pytest.raises(BackendUnavailableError, match="Nothing was changed"):
            await keys.app(7).put("k", "v", 600)
    finally:
        await keys.close()


@pytest.mark.parametrize("seconds", [FIVE_MINUTES, -FIVE_MINUTES])
def test_a_clock_that_jumps_is_refused_before_anything_is_sent_and_taken_back_when_it_is_right(
    injector: Injector, table: str, raw: Raw, seconds: float
) -> None:
    clock = ShiftedClock()
    with lapse.open_keys(url_of(injector.endpoint, table), clock=clock) as keys:
        app = keys.app(7)
        app.put("live", "v", 60)
        stored = raw.items(table)

        clock.seconds = seconds
        injector.forget()
        for operation in (
            lambda: app.ttl_get("live"),
            lambda: app.insert_if_not_exists("live", "w", 600),
            lambda: app.compare_and_swap("live", "v", "w", 600),
            lambda: app.compare_and_delete("live", "v"),
            lambda: app.delete("live"),
            lambda: app.touch("live", 600),
            lambda: app.put("new", "v", 600),
            app.scan,
            lambda: app.get_many(["live"]),
            lambda: app.insert_many([("new", "v", 600)]),
        ):
            with pytest.raises(BackendUnavailableError, match="set the clock"):
                operation()
        assert set(injector.requests) == {"GetItem"}  # nothing but questions for the server's time
        assert raw.items(table) == stored

        clock.seconds = 0
        assert app.ttl_get("live") == "v"


def test_a_clock_within_the_bound_is_taken(url: str) -> None:
    with lapse.open_keys(url + "&max_skew=10s", clock=ShiftedClock(5)) as keys:
        assert keys.app(7).insert_if_not_exists("k", "v", 600)


def test_an_answer_that_shows_a_wrong_clock_is_not_passed_on(injector: Injector, table: str) -> None:
    """As after a pause of a virtual machine: all clocks of this machine stood still, the server's did not."""
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        app = keys.app(7)
        app.put("k", "v", 600)
        injector.shift_date(FIVE_MINUTES)

        with pytest.raises(OutcomeUnknownError, match=r"decided by a wrong clock.* behind the server's"):
            app.put("k", "w", 600)
        injector.forget()
        with pytest.raises(BackendUnavailableError, match="behind the server's"):
            app.put("k", "x", 600)
        with pytest.raises(BackendUnavailableError, match="behind the server's"):
            app.ttl_get("k")
        assert injector.requests["PutItem"] == 0

        injector.shift_date(0)
        assert app.ttl_get("k") == "w"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("RequestTimeTooSkewed", "The difference between the request time and the current time is too large."),
        ("InvalidSignatureException", "Signature expired: 20261115T100000Z is now earlier than 20261115T101000Z"),
        ("InvalidSignatureException", "Signature not yet current: 20261115T102000Z is still later than 20261115T1010"),
    ],
)
def test_a_signature_that_is_refused_for_its_time_is_told_as_a_wrong_clock(
    injector: Injector, table: str, raw: Raw, code: str, message: str
) -> None:
    with lapse.open_keys(url_of(injector.endpoint, table)) as keys:
        injector.spoil("PutItem", refuse(code, message=message))

        with pytest.raises(BackendUnavailableError, match="clock of this machine is minutes off; set the clock"):
            keys.app(7).put("k", "v", 600)

    assert raw.items(table) == []


def test_the_instant_of_expiry_is_that_of_the_clock_while_the_item_is_still_there(
    url: str, table: str, raw: Raw
) -> None:
    clock = ShiftedClock()
    with lapse.open_keys(url + "&max_skew=5s", clock=clock) as keys:
        app = keys.app(7)
        app.put("k", "v", 1)
        item = app.get_item("k")
        assert item is not None

        clock.seconds = (item.expires_ms * 1_000_000 - clock.wall_ns()) / 1_000_000_000

        assert app.ttl_get("k") is None
        assert app.query_ttl("k") is None
        assert app.get_many(["k"]) == {}
        assert app.scan() == []
        assert not app.touch("k", 600)
        assert not app.compare_and_swap("k", "v", "w", 600)
        assert not app.delete("k")
        assert [stored["val"]["B"] for stored in raw.items(table)] == [b"v"]
        assert app.insert_if_not_exists("k", "next", 600)
