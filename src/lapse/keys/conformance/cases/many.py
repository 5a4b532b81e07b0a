"""Operations on several keys in one call."""

from __future__ import annotations

from typing import Final

from lapse.keys.conformance.case import CaseRegistry, ContractRule, expect
from lapse.keys.conformance.fixture import LONG, CaseFixture

REGISTRY: Final = CaseRegistry(both_styles=True)
case = REGISTRY.case

_MANY: Final = 120  # more than the 100 or 25 that some servers take in one request


@case(ContractRule.MANY)
def nothing_asked_nothing_answered(fixture: CaseFixture) -> None:
    """No keys are answered by no values, and no items by no answers."""
    keys = fixture.app()
    expect(keys.get_many([]), {}, "get_many of nothing")
    expect(keys.insert_many([]), [], "insert_many of nothing")


@case(ContractRule.MANY)
def get_many_of_more_than_a_server_takes_at_once(fixture: CaseFixture) -> None:
    """Many inserts and many gets work beyond a server's limit for one request, in order and completely."""
    keys = fixture.app()
    names = [f"key-{number:03}" for number in range(_MANY)]
    expect(
        keys.insert_many([(name, f"value of {name}", LONG) for name in names]),
        [True] * _MANY,
        f"insert_many of {_MANY}",
    )
    expect(keys.get_many(reversed(names)), {name: f"value of {name}" for name in names}, f"get_many of {_MANY}")
    again = [(name, "again", LONG) for name in (*names[::2], "new")]
    expect(
        keys.insert_many(again),
        [False] * (_MANY // 2) + [True],
        "insert_many of live keys and one new key at the end",
    )
    expect(keys.ttl_get(names[0]), f"value of {names[0]}", "ttl_get of a live key after insert_many")


@case(ContractRule.MANY)
def get_many_of_the_same_key(fixture: CaseFixture) -> None:
    """A key that is asked for twice is answered once."""
    keys = fixture.app()
    keys.put("a", "1", LONG)
    expect(keys.get_many(["a", "b", "a", "b"]), {"a": "1"}, "get_many of a live and an absent key, each twice")


@case(ContractRule.MANY)
def insert_many_of_the_same_key(fixture: CaseFixture) -> None:
    """Of two items with the same key in one call the first wins."""
    keys = fixture.app()
    items = [("a", "first", LONG), ("b", "only", LONG), ("a", "second", 2 * LONG), ("a", "third", LONG)]
    expect(keys.insert_many(items), [True, True, False, False], "insert_many with one key three times")
    expect(keys.get_many(["a", "b"]), {"a": "first", "b": "only"}, "get_many after that")


@case(ContractRule.MANY)
def insert_many_goes_on_after_a_refusal(fixture: CaseFixture) -> None:
    """An item that is refused does not stop those after it."""
    keys = fixture.app()
    keys.put("b", "old", LONG)
    items = [(name, "new", LONG) for name in "abcd"]
    expect(keys.insert_many(items), [True, False, True, True], "insert_many with the second key live")
    expect(
        keys.get_many("abcd"[at] for at in range(4)),
        {"a": "new", "b": "old", "c": "new", "d": "new"},
        "get_many after that",
    )


@case(ContractRule.MANY)
def many_large_values(fixture: CaseFixture) -> None:
    """Many large values are inserted and got in one call, beyond a megabyte in all."""
    keys = fixture.app()
    values = {f"key-{number:02}": chr(ord("a") + number) * 65_536 for number in range(20)}
    expect(
        keys.insert_many([(name, value, LONG) for name, value in values.items()]), [True] * len(values), "insert_many"
    )
    expect(keys.get_many(values) == values, True, "get_many gives the 20 values of 65536 bytes")
    expect([item.key for item in keys.scan()], list(values), "a scan over the same records")
