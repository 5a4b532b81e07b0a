"""Every operation on a live, an absent and an expired key, and those on several keys in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.conformance.case import CaseRegistry, ContractRule, Violation, expect, expect_that
from lapse.keys.conformance.fixture import LONG, CaseFixture

if TYPE_CHECKING:
    from lapse.keys.port import Item
    from lapse.keys.store import AppKeys

REGISTRY: Final = CaseRegistry(both_styles=True)
case = REGISTRY.case

_MANY: Final = 120  # more than the 100 or 25 that some servers take in one request


def live(fixture: CaseFixture, value: str = "v") -> AppKeys:
    """Return keys in which "k" is live."""
    keys = fixture.app()
    expect(keys.insert_if_not_exists("k", value, LONG), True, "the first insert of a key")
    return keys


def expired(fixture: CaseFixture) -> AppKeys:
    """Return keys in which "k" was live and is over."""
    keys = fixture.app()
    expect(keys.insert_if_not_exists("k", "v", 1), True, "the first insert of a key")
    fixture.pass_ttl(1)
    return keys


def record(keys: AppKeys, key: str = "k") -> Item:
    """Return a record that must be there."""
    item = keys.get_item(key)
    if item is None:
        raise Violation("get_item of a live key: expected the record, saw None")
    return item


def expect_absent(keys: AppKeys, what: str, key: str = "k") -> None:
    """Every reader agrees that there is no such key."""
    expect(keys.ttl_get(key), None, f"ttl_get {what}")
    expect(keys.get_item(key), None, f"get_item {what}")
    expect(keys.query_ttl(key), None, f"query_ttl {what}")
    expect(keys.get_many([key]), {}, f"get_many {what}")
    expect([item.key for item in keys.scan(key)], [], f"scan {what}")


def expect_present(keys: AppKeys, value: str, what: str, key: str = "k") -> None:
    """Every reader agrees on this value."""
    expect(keys.ttl_get(key), value, f"ttl_get {what}")
    item = record(keys, key)
    expect((item.key, item.value), (key, value), f"get_item {what}")
    expect(keys.get_many([key]), {key: value}, f"get_many {what}")
    expect([(item.key, item.value) for item in keys.scan(key)], [(key, value)], f"scan {what}")
    left = keys.query_ttl(key)
    expect_that(left is not None and left > 0, f"query_ttl {what}", wanted="more than 0", saw=left)


def expect_lives(keys: AppKeys, seconds: int, what: str, *, at_least: int) -> None:
    """The record has a fresh TTL of ``seconds``, not an older one of less than ``at_least``."""
    left = keys.query_ttl("k")
    fits = left is not None and at_least < left <= seconds + 1
    expect_that(fits, f"query_ttl {what}", wanted=f"at most {seconds} and more than {at_least} seconds", saw=left)


# --- insert_if_not_exists --------------------------------------------------------------------------------------------


@case(ContractRule.OPERATIONS)
def insert_absent(fixture: CaseFixture) -> None:
    """An insert on an absent key answers True, and every reader sees the record."""
    keys = fixture.app()
    expect(keys.insert_if_not_exists("k", "v", LONG), True, "an insert on an absent key")
    expect_present(keys, "v", "after an insert")
    expect_lives(keys, LONG, "after an insert", at_least=LONG // 2)


@case(ContractRule.OPERATIONS)
def insert_live(fixture: CaseFixture) -> None:
    """An insert on a live key answers False and changes nothing."""
    keys = live(fixture)
    before = record(keys)
    expect(keys.insert_if_not_exists("k", "other", 2 * LONG), False, "an insert on a live key")
    expect(keys.insert_if_not_exists("k", "v", 2 * LONG), False, "an insert of the same value on a live key")
    expect(record(keys), before, "the record after a refused insert")


@case(ContractRule.OPERATIONS)
def insert_expired(fixture: CaseFixture) -> None:
    """An insert on an expired key answers True and stores the new value with its own TTL."""
    keys = expired(fixture)
    expect(keys.insert_if_not_exists("k", "new", LONG), True, "an insert on an expired key")
    expect_present(keys, "new", "after an insert on an expired key")
    expect_lives(keys, LONG, "after an insert on an expired key", at_least=LONG // 2)


# --- the readers -----------------------------------------------------------------------------------------------------


@case(ContractRule.OPERATIONS)
def get_live(fixture: CaseFixture) -> None:
    """A get of a live key returns its value, as often as it is asked."""
    keys = live(fixture)
    expect([keys.ttl_get("k") for _ in range(3)], ["v"] * 3, "ttl_get of a live key")


@case(ContractRule.OPERATIONS)
def get_absent(fixture: CaseFixture) -> None:
    """A get of an absent key returns None, and does not make the key."""
    keys = fixture.app()
    expect(keys.ttl_get("k"), None, "ttl_get of an absent key")
    expect(keys.insert_if_not_exists("k", "v", LONG), True, "an insert after a get of an absent key")
    expect(keys.ttl_get("k"), "v", "ttl_get after that insert")


@case(ContractRule.OPERATIONS)
def get_expired(fixture: CaseFixture) -> None:
    """A get of an expired key returns None."""
    expect(expired(fixture).ttl_get("k"), None, "ttl_get of an expired key")


@case(ContractRule.OPERATIONS)
def get_item_live(fixture: CaseFixture) -> None:
    """The item of a live key has its key, its value and its expiry."""
    item = record(live(fixture))
    expect((item.key, item.value), ("k", "v"), "get_item of a live key")
    expect(item.expires_at.timestamp(), item.expires_ms / 1000, "expires_at of an item, as a time")


@case(ContractRule.OPERATIONS)
def get_item_absent(fixture: CaseFixture) -> None:
    """There is no item of an absent key."""
    expect(fixture.app().get_item("k"), None, "get_item of an absent key")


@case(ContractRule.OPERATIONS)
def get_item_expired(fixture: CaseFixture) -> None:
    """There is no item of an expired key."""
    expect(expired(fixture).get_item("k"), None, "get_item of an expired key")


@case(ContractRule.OPERATIONS)
def query_ttl_live(fixture: CaseFixture) -> None:
    """The TTL of a live key is what is left of it."""
    expect_lives(live(fixture), LONG, "of a live key", at_least=LONG // 2)


@case(ContractRule.OPERATIONS)
def query_ttl_absent(fixture: CaseFixture) -> None:
    """An absent key has no TTL."""
    expect(fixture.app().query_ttl("k"), None, "query_ttl of an absent key")


@case(ContractRule.OPERATIONS)
def query_ttl_expired(fixture: CaseFixture) -> None:
    """An expired key has no TTL."""
    expect(expired(fixture).query_ttl("k"), None, "query_ttl of an expired key")


# --- compare_and_swap ------------------------------------------------------------------------------------------------


@case(ContractRule.OPERATIONS)
def swap_live_with_the_right_value(fixture: CaseFixture) -> None:
    """A swap that expects the live value answers True and replaces it."""
    keys = live(fixture)
    expect(keys.compare_and_swap("k", "v", "new", LONG), True, "a swap with the right value")
    expect_present(keys, "new", "after a swap")


@case(ContractRule.OPERATIONS)
def swap_live_with_a_wrong_value(fixture: CaseFixture) -> None:
    """A swap that expects another value answers False and changes nothing."""
    keys = live(fixture)
    before = record(keys)
    for wrong in ("w", "", "V", "v ", "vv"):
        expect(
            keys.compare_and_swap("k", wrong, "new", 2 * LONG), False, f"a swap expecting {wrong!r} where 'v' is live"
        )
    expect(record(keys), before, "the record after refused swaps")


@case(ContractRule.OPERATIONS)
def swap_live_for_itself(fixture: CaseFixture) -> None:
    """A swap of a value for itself answers True and renews the TTL."""
    keys = fixture.app()
    keys.insert_if_not_exists("k", "v", LONG)
    expect(keys.compare_and_swap("k", "v", "v", 2 * LONG), True, "a swap of a value for itself")
    expect_lives(keys, 2 * LONG, "after a swap of a value for itself", at_least=LONG + LONG // 2)


@case(ContractRule.OPERATIONS)
def swap_absent(fixture: CaseFixture) -> None:
    """A swap of an absent key answers False, also when it expects the empty value, and makes no record."""
    keys = fixture.app()
    expect(keys.compare_and_swap("k", "v", "new", LONG), False, "a swap of an absent key")
    expect(keys.compare_and_swap("k", "", "new", LONG), False, "a swap of an absent key expecting the empty value")
    expect_absent(keys, "after swaps of an absent key")


@case(ContractRule.OPERATIONS)
def swap_expired(fixture: CaseFixture) -> None:
    """A swap of an expired key answers False although the old value is expected, and does not revive it."""
    keys = expired(fixture)
    expect(keys.compare_and_swap("k", "v", "new", LONG), False, "a swap of an expired key")
    expect_absent(keys, "after a swap of an expired key")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after a swap of an expired key")


# --- compare_and_delete ----------------------------------------------------------------------------------------------


@case(ContractRule.OPERATIONS)
def delete_if_live_with_the_right_value(fixture: CaseFixture) -> None:
    """A compare-and-delete that expects the live value answers True, and the key can be inserted again."""
    keys = live(fixture)
    expect(keys.compare_and_delete("k", "v"), True, "a compare-and-delete with the right value")
    expect_absent(keys, "after a compare-and-delete")
    expect(keys.compare_and_delete("k", "v"), False, "the same compare-and-delete again")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after a compare-and-delete")


@case(ContractRule.OPERATIONS)
def delete_if_live_with_a_wrong_value(fixture: CaseFixture) -> None:
    """A compare-and-delete that expects another value answers False; the record stays and still blocks an insert."""
    keys = live(fixture)
    before = record(keys)
    for wrong in ("w", "", "V", "v ", "vv"):
        expect(
            keys.compare_and_delete("k", wrong), False, f"a compare-and-delete expecting {wrong!r} where 'v' is live"
        )
    expect(record(keys), before, "the record after refused compare-and-deletes")
    expect(keys.insert_if_not_exists("k", "other", LONG), False, "an insert after a refused compare-and-delete")


@case(ContractRule.OPERATIONS)
def delete_if_absent(fixture: CaseFixture) -> None:
    """A compare-and-delete of an absent key answers False, also when it expects the empty value."""
    keys = fixture.app()
    expect(keys.compare_and_delete("k", "v"), False, "a compare-and-delete of an absent key")
    expect(keys.compare_and_delete("k", ""), False, "a compare-and-delete of an absent key expecting the empty value")


@case(ContractRule.OPERATIONS)
def delete_if_expired(fixture: CaseFixture) -> None:
    """A compare-and-delete of an expired key answers False although the old value is expected."""
    expect(expired(fixture).compare_and_delete("k", "v"), False, "a compare-and-delete of an expired key")


# --- put, delete, touch ----------------------------------------------------------------------------------------------


@case(ContractRule.OPERATIONS)
def put_absent(fixture: CaseFixture) -> None:
    """A put on an absent key makes the record, which then blocks an insert."""
    keys = fixture.app()
    expect(keys.put("k", "v", LONG), None, "a put")  # type: ignore[func-returns-value]  # the point
    expect_present(keys, "v", "after a put")
    expect(keys.insert_if_not_exists("k", "other", LONG), False, "an insert after a put")


@case(ContractRule.OPERATIONS)
def put_live(fixture: CaseFixture) -> None:
    """A put on a live key replaces its value and its TTL."""
    keys = live(fixture)
    keys.put("k", "new", 3 * LONG)
    expect_present(keys, "new", "after a put on a live key")
    expect_lives(keys, 3 * LONG, "after a put with a longer TTL", at_least=2 * LONG)
    keys.put("k", "newer", LONG)
    expect_lives(keys, LONG, "after a put with a shorter TTL", at_least=LONG // 2)


@case(ContractRule.OPERATIONS)
def put_expired(fixture: CaseFixture) -> None:
    """A put on an expired key makes a new record with its own TTL."""
    keys = expired(fixture)
    keys.put("k", "new", LONG)
    expect_present(keys, "new", "after a put on an expired key")
    expect_lives(keys, LONG, "after a put on an expired key", at_least=LONG // 2)


@case(ContractRule.OPERATIONS)
def delete_live(fixture: CaseFixture) -> None:
    """A delete of a live key answers True once, and the key can be inserted again."""
    keys = live(fixture)
    expect(keys.delete("k"), True, "a delete of a live key")
    expect_absent(keys, "after a delete")
    expect(keys.delete("k"), False, "a second delete")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after a delete")
    expect_present(keys, "next", "after a delete and an insert")


@case(ContractRule.OPERATIONS)
def delete_absent(fixture: CaseFixture) -> None:
    """A delete of an absent key answers False."""
    expect(fixture.app().delete("k"), False, "a delete of an absent key")


@case(ContractRule.OPERATIONS)
def delete_expired(fixture: CaseFixture) -> None:
    """A delete of an expired key answers False."""
    expect(expired(fixture).delete("k"), False, "a delete of an expired key")


@case(ContractRule.OPERATIONS)
def touch_live(fixture: CaseFixture) -> None:
    """A touch of a live key answers True, restarts its TTL (longer or shorter) and keeps its value."""
    keys = live(fixture)
    expect(keys.touch("k", 3 * LONG), True, "a touch of a live key")
    expect_lives(keys, 3 * LONG, "after a touch with a longer TTL", at_least=2 * LONG)
    expect(keys.touch("k", LONG), True, "a second touch")
    expect_lives(keys, LONG, "after a touch with a shorter TTL", at_least=LONG // 2)
    expect_present(keys, "v", "after touches")


@case(ContractRule.OPERATIONS)
def touch_absent(fixture: CaseFixture) -> None:
    """A touch of an absent key answers False and makes no record."""
    keys = fixture.app()
    expect(keys.touch("k", LONG), False, "a touch of an absent key")
    expect_absent(keys, "after a touch of an absent key")


@case(ContractRule.OPERATIONS)
def touch_expired(fixture: CaseFixture) -> None:
    """A touch of an expired key answers False and does not revive it."""
    keys = expired(fixture)
    expect(keys.touch("k", LONG), False, "a touch of an expired key")
    expect_absent(keys, "after a touch of an expired key")
    expect(keys.insert_if_not_exists("k", "next", LONG), True, "an insert after a touch of an expired key")
    expect_present(keys, "next", "after that insert")


# --- scan, get_many, insert_many -------------------------------------------------------------------------------------


@case(ContractRule.OPERATIONS)
def scan_live_absent_and_expired(fixture: CaseFixture) -> None:
    """A scan shows live keys only: no expired, no deleted, no absent ones."""
    keys = fixture.app()
    expect(keys.scan(), [], "a scan of an empty application")
    keys.put("expired", "v", 1)
    keys.put("deleted", "v", LONG)
    keys.put("live", "v", LONG)
    keys.delete("deleted")
    fixture.pass_ttl(1)
    expect([(item.key, item.value) for item in keys.scan()], [("live", "v")], "a scan")


@case(ContractRule.OPERATIONS)
def get_many_live_absent_and_expired(fixture: CaseFixture) -> None:
    """Of many keys the live ones are returned, with their values."""
    keys = fixture.app()
    keys.put("expired", "v", 1)
    keys.put("deleted", "v", LONG)
    keys.put("live", "v1", LONG)
    keys.put("empty", "", LONG)
    keys.delete("deleted")
    fixture.pass_ttl(1)
    wanted = ["absent", "expired", "live", "deleted", "empty"]
    expect(keys.get_many(wanted), {"live": "v1", "empty": ""}, "get_many of live, absent, expired and deleted keys")


@case(ContractRule.OPERATIONS)
def insert_many_live_absent_and_expired(fixture: CaseFixture) -> None:
    """Of many inserts each answers for itself, in order: False on live keys, True on absent and expired ones."""
    keys = fixture.app()
    keys.put("expired", "old", 1)
    keys.put("live", "old", LONG)
    before = record(keys, "live")
    fixture.pass_ttl(1)
    items = [(name, "new", LONG) for name in ("live", "absent", "expired", "last")]
    expect(
        keys.insert_many(items),
        [False, True, True, True],
        "insert_many on a live, an absent, an expired and an absent key",
    )
    found = keys.get_many(["live", "absent", "expired", "last"])
    expect(found, {"live": "old", "absent": "new", "expired": "new", "last": "new"}, "get_many after insert_many")
    expect(record(keys, "live"), before, "the live record after insert_many")


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
