"""One struct gives JSON, its schema and the row of a table."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from msgspec import UNSET, DecodeError, Meta, Struct, UnsetType

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason, KeepReason
from lapse.engine.safety.freeze import Freeze
from lapse.engine.safety.holds import Hold
from lapse.engine.view import (
    Columns,
    Expiry,
    Moment,
    ViewPage,
    decision_rows,
    decision_view,
    decode,
    encode,
    fill,
    hold_view,
    known,
    row,
    schemas,
    to_json,
)

NOON = Moment(1_893_499_200 * 1_000_000_000)
SECOND = 1_000_000_000


class Thing(Struct, frozen=True, kw_only=True):
    """A thing."""

    name: str
    made: Annotated[Moment | None, Meta(description="When it was made")]
    secret: str | UnsetType = UNSET
    document: dict[str, Any] | None


class Things(ViewPage[Thing], frozen=True):
    """Things by name."""


ONE = Thing(name="é", made=Moment(NOON - 1), document={"n": 10**30})


def test_json_has_the_fields_in_their_order_moments_as_times_and_nothing_that_is_unset() -> None:
    told = {"name": "é", "made": "2030-01-01T12:00:00Z", "document": {"n": 10**30}}

    assert list(to_json(ONE).items()) == list(told.items())
    assert (
        encode(Things([ONE], None))
        == json.dumps({"items": [told], "next": None}, ensure_ascii=False, separators=(",", ":")).encode()
    )


def test_the_schema_names_every_field_once_and_demands_those_that_are_always_there() -> None:
    found = schemas([Things])

    assert set(found) == {"Thing", "Things"}
    assert found["Things"]["properties"]["items"]["items"] == {"$ref": "#/components/schemas/Thing"}
    assert found["Thing"]["required"] == ["name", "made", "document"]
    made = found["Thing"]["properties"]["made"]
    assert made["description"] == "When it was made"
    assert {"type": "string", "format": "date-time"} in made["anyOf"]


def test_a_row_is_made_of_fields_and_of_what_is_made_of_them() -> None:
    columns: Columns = {"name": "name", "age": lambda one, now: now - one.made, "none": lambda _one, _now: None}

    assert row(ONE, columns, NOON) == ["é", "1", "-"]


def test_a_view_is_filled_from_what_it_shows() -> None:
    class Labelled(Struct, frozen=True):
        kind: str
        source: str
        name: str

    assert fill(Labelled, ONE, kind="k", source="s") == Labelled("k", "s", "é")
    with pytest.raises(AttributeError, match="source"):
        fill(Labelled, ONE, kind="k")


def test_a_type_without_a_form_is_refused_and_not_guessed() -> None:
    with pytest.raises(NotImplementedError, match="object has no JSON form"):
        encode({"one": object()})


@pytest.mark.parametrize("made", ["5", "[]", "{}", "true", '"soon"', "[" * 5000 + "]" * 5000])
def test_what_is_no_time_is_a_field_of_another_form(made: str) -> None:
    with pytest.raises(DecodeError):
        decode(f'{{"name":"n","made":{made},"document":null}}'.encode(), Thing)


@pytest.mark.parametrize(
    ("expiry", "held", "words"),
    [
        (Expiry(NOON + 90 * SECOND), False, "in 1m30s"),
        (Expiry(NOON), False, "now"),
        (Expiry(instead="never"), False, "never"),
        (Expiry(), False, ""),
        (Expiry(NOON), True, "held"),
    ],
)
def test_when_something_goes_is_said_in_words(expiry: Expiry, words: str, *, held: bool) -> None:
    assert expiry.words(NOON, held=held) == words


def test_facts_that_tell_nothing_are_left_out() -> None:
    assert known([("a", "1"), ("b", "")]) == [("a", "1")]


@pytest.mark.parametrize(
    ("hold", "held"),
    [
        (None, None),
        (Hold("audit", None), "audit"),
        (Hold("", None), "yes"),
        (Hold("audit", UnixNs(NOON - 1)), None),
    ],
    ids=["no hold", "a hold with a reason", "a hold without a reason", "a hold that is over"],
)
def test_a_decision_is_told_with_the_hold_that_counts_now(hold: Hold | None, held: str | None) -> None:
    decided = Decision(
        Due("end", DueReason.TTL_EXPIRED, UnixNs(NOON)), anchor=UnixNs(NOON - SECOND), deadline=UnixNs(NOON)
    )

    assert list(to_json(decision_view(decided, hold, UnixNs(NOON))).items()) == [
        ("verdict", "keep" if held else "due"),
        ("reason", KeepReason.HELD.value if held else DueReason.TTL_EXPIRED.value),
        ("anchor", "2030-01-01T11:59:59Z"),
        ("deadline", "2030-01-01T12:00:00Z"),
        ("hold", held),
        ("frozen", None),
    ]


@pytest.mark.parametrize(
    ("freeze", "shown", "said"),
    [
        (None, None, None),
        (
            Freeze(UnixNs(NOON), "audit", "ann"),
            {"since": "2030-01-01T12:00:00Z", "reason": "audit", "by": "ann"},
            "since 2030-01-01T12:00:00Z by ann: audit",
        ),
        (Freeze(UnixNs(NOON), "", "ann"), {"since": "2030-01-01T12:00:00Z", "reason": "", "by": "ann"}, None),
        (Freeze(None, "the clock", ""), {"since": None, "reason": "the clock", "by": ""}, "the clock"),
        (Freeze(None, "", ""), {"since": None, "reason": "", "by": ""}, "yes"),
    ],
)
def test_a_decision_is_told_with_what_stops_its_domain(
    freeze: Freeze | None, shown: dict[str, object] | None, said: str | None
) -> None:
    decided = Decision(Due("end", DueReason.TTL_EXPIRED, UnixNs(NOON)), anchor=None, deadline=UnixNs(NOON))
    told = decision_view(decided, None, UnixNs(NOON), freeze)
    facts = dict(decision_rows(told))

    assert (to_json(told)["verdict"], to_json(told)["frozen"]) == ("due", shown)
    assert facts["deadline"] == "2030-01-01T12:00:00Z"
    assert "anchor" not in facts
    assert (("frozen" in facts), said is None or facts["frozen"] == said) == (freeze is not None, True)


def test_a_hold_is_told_with_its_end_if_it_has_one() -> None:
    where = Address("thing", None, "one")

    told = to_json(hold_view(where, "things", "1", Hold("audit", UnixNs(NOON))))
    assert told == {
        "address": "thing/one",
        "domain": "things",
        "uid": "1",
        "hold": {"reason": "audit", "until": "2030-01-01T12:00:00Z"},
    }
    assert to_json(hold_view(where, "things", "1", Hold("audit", None)))["hold"] == {"reason": "audit", "until": None}
    assert to_json(hold_view(where, "things", "1", None))["hold"] is None
