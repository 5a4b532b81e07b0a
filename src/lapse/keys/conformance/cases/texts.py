"""Keys and values of any characters and of every allowed length, stored as they are."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final

from lapse.keys.conformance.case import CaseRegistry, ContractRule, expect, shown
from lapse.keys.conformance.cases.operations import expect_absent, expect_present
from lapse.keys.conformance.fixture import LONG, CaseFixture
from lapse.keys.validation import MAX_KEY_BYTES, MAX_VALUE_BYTES

if TYPE_CHECKING:
    from lapse.keys.store import AppKeys

REGISTRY: Final = CaseRegistry()
case = REGISTRY.case

_WIDTHS: Final = {1: "a", 2: "\u00e9", 3: "\u20ac", 4: "\U0001f511"}
"""A character of each length in UTF-8."""

_DIFFERENT: Final = (
    # Each line: texts that some store somewhere takes for one another.
    *(unicodedata.normalize("NFC", "caf\u00e9"), unicodedata.normalize("NFD", "caf\u00e9"), "cafe"),
    *("\u2126", "\u03a9"),  # ohm sign and omega: equal after normalisation
    *("\uac00", "\u1100\u1161"),  # a Hangul syllable and its parts
    *("\ufb01", "fi"),  # a ligature: equal after compatibility normalisation
    *("key", "Key", "KEY", "\uff4b\uff45\uff59"),
    *("stra\u00dfe", "strasse", "STRASSE"),
    *("\u0130", "\u0131", "i", "I"),  # Turkish letters
    *("x", "x ", " x", "x\t", "x\n", "x\r\n", "x\u00a0", "x\u200b", "\ufeffx"),
    *("x\0", "x\0\0", "\0x", "\0"),
    *("1", "01", "1.0", "+1", "1e0", "0x1", "\u0661"),  # numbers, to a store that has types
    *("null", "NULL", "None", "true", "nan", "inf"),
    *("a/b", "a\\b", "a%2Fb", "a:b", "a b", "a+b", "a%20b"),
    *("*", "?", "[a]", "{a}", "%", "_", "'", '"', "`", ";", "--", "$1", "\\"),
    *(".", "..", "/"),
    *("\U0001f511", "\U0001f511\ufe0f", "\ufffd", "\uffff", "\ue000", "\ud7ff", "\U0010ffff", "\U00010000"),
    *("\x7f", "\x80", "\u07ff", "\u0800"),
)


def _walk_through_a_life(keys: AppKeys, key: str, value: str, other: str) -> None:
    """Lead one key through every operation."""
    name = shown(key)
    expect(keys.insert_if_not_exists(key, value, LONG), True, f"an insert of the key {name}")
    expect(keys.insert_if_not_exists(key, other, LONG), False, f"a second insert of the key {name}")
    expect_present(keys, value, f"of the key {name}", key=key)
    expect(keys.compare_and_swap(key, other, value, LONG), False, f"a swap of the key {name} with a wrong value")
    expect(keys.compare_and_swap(key, value, other, LONG), True, f"a swap of the key {name}")
    expect(keys.touch(key, LONG), True, f"a touch of the key {name}")
    expect(keys.ttl_get(key), other, f"ttl_get of the key {name} after swap and touch")
    expect(keys.compare_and_delete(key, value), False, f"a compare-and-delete of the key {name} with a wrong value")
    expect(keys.compare_and_delete(key, other), True, f"a compare-and-delete of the key {name}")
    expect_absent(keys, f"of the key {name} after its delete", key=key)
    keys.put(key, value, LONG)
    expect(keys.ttl_get(key), value, f"ttl_get of the key {name} after a put")
    expect(keys.delete(key), True, f"a delete of the key {name}")


def _longest(width: int, limit: int) -> str:
    return _WIDTHS[width] * (limit // width) + "a" * (limit % width)


def _longest_key(fixture: CaseFixture, width: int) -> None:
    keys = fixture.app()
    key = _longest(width, MAX_KEY_BYTES)
    neighbour = key[:-1] + "b"
    keys.put(neighbour, "neighbour", LONG)
    _walk_through_a_life(keys, key, "value", "other")
    expect(keys.ttl_get(neighbour), "neighbour", "ttl_get of a key that differs in the last character only")


def _longest_value(fixture: CaseFixture, width: int) -> None:
    keys = fixture.app()
    value = _longest(width, MAX_VALUE_BYTES)
    _walk_through_a_life(keys, "k", value, value[:-1] + "b")


@case(ContractRule.LIMITS)
def longest_key_of_one_byte_characters(fixture: CaseFixture) -> None:
    """A key of 1024 bytes in 1-byte characters goes through every operation."""
    _longest_key(fixture, 1)


@case(ContractRule.LIMITS)
def longest_key_of_two_byte_characters(fixture: CaseFixture) -> None:
    """A key of 1024 bytes in 2-byte characters goes through every operation."""
    _longest_key(fixture, 2)


@case(ContractRule.LIMITS)
def longest_key_of_three_byte_characters(fixture: CaseFixture) -> None:
    """A key of 1024 bytes in 3-byte characters goes through every operation."""
    _longest_key(fixture, 3)


@case(ContractRule.LIMITS)
def longest_key_of_four_byte_characters(fixture: CaseFixture) -> None:
    """A key of 1024 bytes in 4-byte characters goes through every operation."""
    _longest_key(fixture, 4)


@case(ContractRule.LIMITS)
def longest_value_of_one_byte_characters(fixture: CaseFixture) -> None:
    """A value of 65536 bytes in 1-byte characters goes through every operation, compared to its last byte."""
    _longest_value(fixture, 1)


@case(ContractRule.LIMITS)
def longest_value_of_two_byte_characters(fixture: CaseFixture) -> None:
    """A value of 65536 bytes in 2-byte characters goes through every operation, compared to its last byte."""
    _longest_value(fixture, 2)


@case(ContractRule.LIMITS)
def longest_value_of_three_byte_characters(fixture: CaseFixture) -> None:
    """A value of 65536 bytes in 3-byte characters goes through every operation, compared to its last byte."""
    _longest_value(fixture, 3)


@case(ContractRule.LIMITS)
def longest_value_of_four_byte_characters(fixture: CaseFixture) -> None:
    """A value of 65536 bytes in 4-byte characters goes through every operation, compared to its last byte."""
    _longest_value(fixture, 4)


@case(ContractRule.LIMITS)
def longest_key_and_value_together(fixture: CaseFixture) -> None:
    """The longest key with the longest value is stored, and found by a scan."""
    keys = fixture.app()
    key, value = _longest(1, MAX_KEY_BYTES), _longest(1, MAX_VALUE_BYTES)
    expect(keys.insert_if_not_exists(key, value, LONG), True, "an insert of the longest key with the longest value")
    expect(
        [(item.key == key, item.value == value) for item in keys.scan()],
        [(True, True)],
        "a scan that finds both as they are",
    )
    expect(keys.scan(after=key), [], "a scan after the longest key")


@case(ContractRule.LIMITS)
def shortest_keys(fixture: CaseFixture) -> None:
    """A key of one character, of any width, goes through every operation."""
    keys = fixture.app()
    for key in _WIDTHS.values():
        _walk_through_a_life(keys, key, "value", "other")


@case(ContractRule.LIMITS)
def empty_value(fixture: CaseFixture) -> None:
    """The empty value is a value: it is live, blocks an insert, and can be expected by swap and delete."""
    keys = fixture.app()
    _walk_through_a_life(keys, "k", "", "other")
    _walk_through_a_life(keys, "k", "other", "")


@case(ContractRule.AS_IS)
def keys_that_look_alike_are_different(fixture: CaseFixture) -> None:
    """Keys that differ in form, case, white space, NUL or notation are different keys, and none is refused."""
    keys = fixture.app()
    for number, key in enumerate(_DIFFERENT):
        expect(
            keys.insert_if_not_exists(key, str(number), LONG),
            True,
            f"an insert of the key {shown(key)} beside others like it",
        )
    for number, key in enumerate(_DIFFERENT):
        expect(keys.ttl_get(key), str(number), f"ttl_get of the key {shown(key)}")
    expect(keys.get_many(_DIFFERENT), {key: str(n) for n, key in enumerate(_DIFFERENT)}, "get_many of all of them")
    expect([item.key for item in keys.scan()], sorted(_DIFFERENT), "a scan over all of them")


@case(ContractRule.AS_IS)
def deleting_one_key_leaves_those_that_look_alike(fixture: CaseFixture) -> None:
    """A swap, a touch or a delete of one key leaves alone the keys that look like it."""
    keys = fixture.app()
    for key in _DIFFERENT:
        keys.put(key, "v", LONG)
    for gone, key in enumerate(_DIFFERENT):
        expect(keys.compare_and_swap(key, "v", "w", LONG), True, f"a swap of the key {shown(key)}")
        expect(keys.compare_and_delete(key, "w"), True, f"a compare-and-delete of the key {shown(key)}")
        left = keys.get_many(_DIFFERENT)
        expect(left, dict.fromkeys(_DIFFERENT[gone + 1 :], "v"), f"get_many after the delete of the key {shown(key)}")


@case(ContractRule.AS_IS)
def values_come_back_as_they_are(fixture: CaseFixture) -> None:
    """A value of any characters comes back unchanged from every reader."""
    keys = fixture.app()
    for value in _DIFFERENT:
        keys.put("k", value, LONG)
        expect_present(keys, value, f"of the value {shown(value)}")


@case(ContractRule.AS_IS)
def values_that_look_alike_are_different(fixture: CaseFixture) -> None:
    """A swap or delete that expects a value of another form, case, white space or notation is refused."""
    keys = fixture.app()
    for value, wrong in zip(_DIFFERENT, (*_DIFFERENT[1:], _DIFFERENT[0]), strict=True):
        keys.put("k", value, LONG)
        what = f"expecting {shown(wrong)} where {shown(value)} is live"
        expect(keys.compare_and_swap("k", wrong, "x", LONG), False, f"a swap {what}")
        expect(keys.compare_and_delete("k", wrong), False, f"a compare-and-delete {what}")
        expect(keys.compare_and_swap("k", value, wrong, LONG), True, f"a swap from {shown(value)} to {shown(wrong)}")
        expect(keys.ttl_get("k"), wrong, f"ttl_get after a swap from {shown(value)}")
