"""Scans: the order, the pages, and where they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.keys.conformance.case import CaseRegistry, ContractRule, expect, shown
from lapse.keys.conformance.fixture import LONG, CaseFixture
from lapse.keys.validation import MAX_SCAN_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.keys.store import AppKeys

REGISTRY: Final = CaseRegistry(both_styles=True)
case = REGISTRY.case

_ORDERED: Final = (
    *(
        "\0",
        "\0\0",
        "\x01",
        " ",
        "!",
        "0",
        "00",
        "1",
        "10",
        "2",
        "A",
        "AA",
        "Z",
        "_",
        "a",
        "a\0",
        "a\0b",
        "a\x01",
        "a ",
        "a/",
        "aa",
    ),
    *(
        "ab",
        "b",
        "ba",
        "z",
        "\x7f",
        "\x80",
        "\u00e9",
        "\u00ff",
        "\u0100",
        "\u07ff",
        "\u0800",
        "\u20ac",
        "\ud7ff",
        "\ue000",
    ),
    *(
        "\uf8ff",
        "\ufeff",
        "\uff5e",
        "\ufffd",
        "\uffff",
        "\U00010000",
        "\U0001f511",
        "\U0010ffff",
        "\U0010ffff\U0010ffff",
    ),
)
"""In the order of their bytes. In the order of UTF-16 those above U+FFFF would stand before U+E000."""

_LAST: Final = chr(0x10FFFF)


def _filled(fixture: CaseFixture, names: tuple[str, ...] | list[str], ttl: int = LONG) -> AppKeys:
    """Return keys with these names, written in an order that is not the one to be found."""
    keys = fixture.app()
    mixed = [*names[1::2], *reversed(names[::2])]
    expect(
        keys.insert_many([(name, f"value of {name}", ttl) for name in mixed]),
        [True] * len(names),
        "the inserts for a scan",
    )
    return keys


def _names(keys: AppKeys, prefix: str = "", after: str | None = None, limit: int = 1000) -> list[str]:
    return [item.key for item in keys.scan(prefix, after, limit)]


def _pages(keys: AppKeys, prefix: str, limit: int, between: Callable[[str], object] = lambda _: None) -> list[str]:
    """Collect all pages as a caller would: a page shorter than its limit is the last."""
    found: list[str] = []
    after = None
    while True:
        page = _names(keys, prefix, after, limit)
        found += page
        if len(page) < limit:
            return found
        after = page[-1]
        expect(len(found) <= len(set(found)), True, "pages have no duplicates")
        between(after)


@case(ContractRule.SCAN)
def scan_in_byte_order(fixture: CaseFixture) -> None:
    """A scan gives keys in the order of their UTF-8 bytes, whatever order they were written in."""
    keys = _filled(fixture, _ORDERED)
    expect(_names(keys), list(_ORDERED), "a scan")
    expect([item.value for item in keys.scan()], [f"value of {name}" for name in _ORDERED], "the values of a scan")


@case(ContractRule.SCAN)
def scan_pages_are_complete(fixture: CaseFixture) -> None:
    """Pages of any size, put together, give every key once and in order."""
    keys = _filled(fixture, _ORDERED)
    for limit in (1, 2, 3, 7, len(_ORDERED) - 1, len(_ORDERED), len(_ORDERED) + 1):
        expect(_pages(keys, "", limit), list(_ORDERED), f"all pages of {limit}")


@case(ContractRule.SCAN)
def scan_limit(fixture: CaseFixture) -> None:
    """A page holds as many keys as its limit says, and the first ones."""
    keys = _filled(fixture, _ORDERED)
    for limit in (1, 5, len(_ORDERED)):
        expect(_names(keys, limit=limit), list(_ORDERED[:limit]), f"a scan with a limit of {limit}")
    expect(_names(keys, limit=MAX_SCAN_LIMIT), list(_ORDERED), "a scan with the highest limit")


@case(ContractRule.SCAN)
def scan_after(fixture: CaseFixture) -> None:
    """A scan goes on right after a given key, whether or not that key exists."""
    keys = _filled(fixture, ("a", "b", "b\0", "ba", "c"))
    expect(_names(keys, after="b"), ["b\0", "ba", "c"], "a scan after 'b', which exists")
    expect(_names(keys, after="az"), ["b", "b\0", "ba", "c"], "a scan after 'az', which does not exist")
    expect(_names(keys, after=""), ["a", "b", "b\0", "ba", "c"], "a scan after the empty text")
    expect(_names(keys, after="c"), [], "a scan after the last key")
    expect(_names(keys, after="z"), [], "a scan after a text greater than every key")


@case(ContractRule.SCAN)
def scan_after_with_prefix(fixture: CaseFixture) -> None:
    """A scan after a key keeps to its prefix, wherever that key lies."""
    keys = _filled(fixture, ("a:1", "b:1", "b:2", "b:3", "c:1"))
    expect(_names(keys, "b:", "b:1"), ["b:2", "b:3"], "a scan of the prefix after a key in it")
    expect(_names(keys, "b:", "a:1"), ["b:1", "b:2", "b:3"], "a scan of the prefix after a key before it")
    expect(_names(keys, "b:", "c:1"), [], "a scan of the prefix after a key behind it")
    expect(_names(keys, "b:", "b:3"), [], "a scan of the prefix after its last key")


@case(ContractRule.SCAN)
def scan_prefix_has_a_right_bound(fixture: CaseFixture) -> None:
    """A scan of a prefix gives every key that starts with it and no other, not even the next one."""
    keys = _filled(fixture, _ORDERED)
    for prefix in (
        "a",
        "a\0",
        "0",
        "1",
        "_",
        "\0",
        "b",
        "\u00e9",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U0010ffff",
        "nothing",
    ):
        wanted = [name for name in _ORDERED if name.startswith(prefix)]
        expect(_names(keys, prefix), wanted, f"a scan of the prefix {shown(prefix)}")


@case(ContractRule.SCAN)
def scan_prefix_of_last_characters(fixture: CaseFixture) -> None:
    """The right bound is right where a character has no plain successor: U+D7FF, U+10FFFF and their neighbours."""
    endings = (
        "",
        _LAST,
        f"{_LAST}a",
        f"{_LAST}{_LAST}",
        f"{_LAST}{_LAST}a",
        "\ud7ff",
        "\ud7ffa",
        "\ue000",
        "\uffff",
        "\uffffa",
    )
    others = ("x\U00010000", "y", "\x7f", "\x7fa", "\x80", "\u07ff", "\u07ffa", "\u0800", _LAST, f"{_LAST}a")
    names = sorted([*(f"x{ending}" for ending in endings), *others])
    keys = _filled(fixture, names)
    for prefix in (f"x{_LAST}", f"x{_LAST}{_LAST}", "x\ud7ff", "x\uffff", "\x7f", "\u07ff", _LAST, "x"):
        wanted = [name for name in names if name.startswith(prefix)]
        expect(_names(keys, prefix), wanted, f"a scan of the prefix {shown(prefix)}")
        expect(_pages(keys, prefix, 1), wanted, f"all pages of 1 of the prefix {shown(prefix)}")


@case(ContractRule.SCAN)
def scan_prefix_is_taken_literally(fixture: CaseFixture) -> None:
    """A prefix is text, not a pattern: no wildcards, no case folding."""
    keys = _filled(fixture, ("*", "*a", "A", "_", "_a", "a", "a%", "a%b", "ab", "[a]", "?", "?a", "\\", "\\a", "{a}"))
    for prefix in ("*", "?", "[a]", "[", "_", "a%", "A", "\\", "{a", "%"):
        wanted = sorted(item.key for item in keys.scan() if item.key.startswith(prefix))
        expect(_names(keys, prefix), wanted, f"a scan of the prefix {shown(prefix)}")


@case(ContractRule.SCAN)
def scan_pages_are_full_beside_expired_keys(fixture: CaseFixture) -> None:
    """Expired and deleted keys take no place in a page: a page shorter than its limit is the last."""
    keys = fixture.app()
    for number in range(12):
        keys.put(f"{number:02}:deleted", "v", LONG)
        keys.put(f"{number:02}:expired", "v", 1)
        keys.put(f"{number:02}:live", "v", LONG)
    for number in range(12):
        keys.delete(f"{number:02}:deleted")
    fixture.pass_ttl(1)
    wanted = [f"{number:02}:live" for number in range(12)]
    expect(_names(keys, limit=5), wanted[:5], "a page of 5 among expired and deleted keys")
    expect(_pages(keys, "", 5), wanted, "all pages of 5 among expired and deleted keys")


@case(ContractRule.SCAN)
def scan_shows_a_key_again_after_it_came_back(fixture: CaseFixture) -> None:
    """A key that expired or was deleted and was written again is scanned once, with its new value and expiry."""
    keys = fixture.app()
    keys.put("expired", "old", 1)
    keys.put("deleted", "old", LONG)
    keys.put("swapped", "old", LONG)
    keys.delete("deleted")
    fixture.pass_ttl(1)
    keys.insert_if_not_exists("expired", "new", LONG)
    keys.insert_if_not_exists("deleted", "new", LONG)
    keys.compare_and_swap("swapped", "old", "new", LONG)
    found = [(item.key, item.value) for item in keys.scan()]
    expect(found, [("deleted", "new"), ("expired", "new"), ("swapped", "new")], "a scan after keys came back")


@case(ContractRule.SCAN)
def scan_needs_no_cursor(fixture: CaseFixture) -> None:
    """Pages go on rightly when the last key of a page is deleted, and others come and go, between two pages."""
    names = [f"{number:02}" for number in range(20)]
    keys = _filled(fixture, names)

    def disturb(last: str) -> None:
        keys.delete(last)
        keys.put("00:late", "v", LONG)  # before the page to come, so it is not seen

    expect(_pages(keys, "", 3, disturb), names, "all pages of 3 while others delete and insert")


@case(ContractRule.SCAN)
def scan_of_many(fixture: CaseFixture) -> None:
    """Several hundred keys are scanned in order, in one page or in many."""
    names = sorted(f"{(number * 7919) % 1000:03}:{number}" for number in range(300))
    keys = _filled(fixture, names)
    expect(_names(keys), names, "a scan of 300 keys")
    expect(_pages(keys, "", 64), names, "all pages of 64 of 300 keys")
    expect(_pages(keys, "5", 10), [name for name in names if name.startswith("5")], "all pages of 10 of the prefix '5'")
