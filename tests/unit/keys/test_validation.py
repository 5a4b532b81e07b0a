"""Every rule, at its limits, in its order, and before anything else happens."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.errors import UsageError
from lapse.keys.aio import AsyncAppKeys
from lapse.keys.errors import (
    InvalidAppIdError,
    InvalidLimitError,
    InvalidTTLError,
    KeyEmptyError,
    KeyInvalidUTF8Error,
    KeyTooLongError,
    KeyTypeError,
    TTLValidationError,
    ValueInvalidUTF8Error,
    ValueTooLongError,
)
from lapse.keys.store import AppKeys, Keys
from lapse.keys.validation import check_app_id, check_key, check_scan, check_ttl, check_value

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from lapse.keys.port import Backend, Space

CHARACTERS = {1: "k", 2: "é", 3: "€", 4: "🔑"}
SECRET = "s3cr3t-\ud800"

# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "a",
        " ",
        "\0",
        "a\0b",
        "\x1b[31m",
        "🔑",
        "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}",
        "e\u0301",
        "\u202e",
        "\ufeff",
        "\uffff",
        "\U0010ffff",
        "../../etc/passwd",
        "' OR 1=1 --",
    ],
)
def test_any_text_is_a_key(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize("size", CHARACTERS)
def test_a_key_of_1024_bytes_is_accepted_whatever_its_characters(size: int) -> None:
    check_key(CHARACTERS[size] * (1024 // size) + "k" * (1024 % size))


@pytest.mark.parametrize("size", CHARACTERS)
def test_a_key_of_1025_bytes_is_refused_with_limit_and_length(size: int) -> None:
    key = CHARACTERS[size] * (1024 // size) + "k" * (1024 % size) + "k"

    with pytest.raises(KeyTooLongError, match="1025 bytes long as UTF-8; the limit is 1024 bytes") as caught:
        check_key(key)

    assert key not in str(caught.value)


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(KeyEmptyError, match=r"The key is empty\. Expected 1 to 1024 bytes"):
        check_key("")


@pytest.mark.parametrize(("key", "position"), [("\ud800", 0), ("ab\udfff", 2), ("🔑\udc80k", 1), ("\ud83d\udd11", 0)])
def test_a_lone_surrogate_in_a_key_is_refused_with_its_position(key: str, position: int) -> None:
    with pytest.raises(KeyInvalidUTF8Error, match=f"position {position}") as caught:
        check_key(key)

    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("key", [None, 7, b"bytes", ["a"], True, 1.5])
def test_a_key_that_is_no_text_is_refused_with_its_type(key: object) -> None:
    with pytest.raises(KeyTypeError, match=f"The key is of type {type(key).__name__}; expected str"):
        check_key(cast("str", key))


def test_a_key_that_is_both_invalid_and_too_long_is_invalid_first() -> None:
    with pytest.raises(KeyInvalidUTF8Error):
        check_key("k" * 2000 + "\ud800")


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "\0", "\n", "🔑", " padded "])
def test_any_text_is_a_value_the_empty_one_too(value: str) -> None:
    check_value(value)


@pytest.mark.parametrize("size", CHARACTERS)
def test_a_value_of_65536_bytes_is_accepted_whatever_its_characters(size: int) -> None:
    check_value(CHARACTERS[size] * (65536 // size) + "v" * (65536 % size))


@pytest.mark.parametrize("size", CHARACTERS)
def test_a_value_of_65537_bytes_is_refused_with_limit_and_length_and_without_the_value(size: int) -> None:
    value = CHARACTERS[size] * (65536 // size) + "v" * (65536 % size) + "v"

    with pytest.raises(ValueTooLongError, match="65537 bytes long as UTF-8; the limit is 65536 bytes") as caught:
        check_value(value)

    assert CHARACTERS[size] * 3 not in repr(caught.value)


def test_a_lone_surrogate_in_a_value_is_refused_with_its_position_and_without_the_value() -> None:
    with pytest.raises(ValueInvalidUTF8Error, match="position 7") as caught:
        check_value(SECRET)

    assert "s3cr3t" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("value", [None, 7, b"s3cr3t", ["s3cr3t"], True])
def test_a_value_that_is_no_text_is_refused_with_its_type_and_without_the_value(value: object) -> None:
    with pytest.raises(KeyTypeError, match=f"The new value is of type {type(value).__name__}") as caught:
        check_value(cast("str", value), "new value")

    assert "s3cr3t" not in repr(caught.value)


# --- TTLs, application ids, limits -----------------------------------------------------------------------------------


class Count(IntEnum):
    TEN = 10


@pytest.mark.parametrize("ttl", [1, 2, 900, 31_535_999, 31_536_000, Count.TEN])
def test_a_ttl_is_a_whole_number_of_seconds_up_to_a_year(ttl: int) -> None:
    check_ttl(ttl)


@pytest.mark.parametrize(
    ("ttl", "given"),
    [
        (0, "0"),
        (-1, "-1"),
        (31_536_001, "31536001"),
        (2**64, str(2**64)),
        (True, "of type bool"),
        (False, "of type bool"),
        (1.0, "of type float"),
        (float("nan"), "of type float"),
        (float("inf"), "of type float"),
        ("900", "of type str"),
        (None, "of type NoneType"),
        (b"1", "of type bytes"),
    ],
)
def test_anything_else_is_no_ttl(ttl: object, given: str) -> None:
    with pytest.raises(InvalidTTLError) as caught:
        check_ttl(ttl)

    assert str(caught.value) == (
        f"The TTL is {given}; expected a whole number of seconds (an int) from 1 to 31536000 (365 days)."
    )


@pytest.mark.parametrize("app_id", [0, 1, 7, 2**31, 2**32 - 1])
def test_an_application_id_is_an_unsigned_number_of_32_bits(app_id: int) -> None:
    check_app_id(app_id)


@pytest.mark.parametrize("app_id", [-1, 2**32, True, 7.0, "7", None])
def test_anything_else_is_no_application_id(app_id: object) -> None:
    with pytest.raises(InvalidAppIdError, match=r"expected a whole number .* from 0 to 4294967295"):
        check_app_id(app_id)


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 10.0, "10", None])
def test_a_page_has_1_to_10000_keys(limit: object) -> None:
    check_scan("", None, 1)
    check_scan("", None, 10_000)

    with pytest.raises(InvalidLimitError, match="from 1 to 10000"):
        check_scan("", None, limit)


def test_prefix_and_after_follow_the_rules_of_keys_except_that_they_may_be_empty() -> None:
    check_scan("", "", 10)
    check_scan("k" * 1024, "k" * 1024, 10)

    with pytest.raises(KeyTooLongError):
        check_scan("k" * 1025, None, 10)
    with pytest.raises(KeyInvalidUTF8Error):
        check_scan("", "\ud800", 10)
    with pytest.raises(KeyTypeError):
        check_scan(cast("Any", None), None, 10)


def test_every_validation_error_is_one_category_and_a_value_error() -> None:
    for error in (KeyEmptyError, KeyInvalidUTF8Error, KeyTooLongError, ValueInvalidUTF8Error, ValueTooLongError):
        assert issubclass(error, TTLValidationError)
    assert issubclass(InvalidTTLError, TTLValidationError)
    assert issubclass(TTLValidationError, ValueError)
    assert issubclass(TTLValidationError, UsageError)


# --- before anything is touched, in every method ---------------------------------------------------------------------


class Untouchable:
    """A space and a backend that fail the test when anything is asked of them."""

    def __getattr__(self, name: str) -> NoReturn:
        pytest.fail(f"{name} was called before the arguments were checked")


BAD_KEYS = [
    ("", KeyEmptyError),
    ("\ud800", KeyInvalidUTF8Error),
    ("é" * 513, KeyTooLongError),
    (7, KeyTypeError),
    (None, KeyTypeError),
]
BAD_VALUES = [
    (SECRET, ValueInvalidUTF8Error),
    ("🔑" * 16_385, ValueTooLongError),
    ("v" * 65_537, ValueTooLongError),
    (b"v", KeyTypeError),
    (None, KeyTypeError),
]
BAD_TTLS = [(ttl, InvalidTTLError) for ttl in (0, -1, 31_536_001, True, 1.0, "1", None)]

Call = Callable[..., Any]
TAKES_KEY: dict[str, Call] = {
    "ttl_get": lambda keys, key: keys.ttl_get(key),
    "insert_if_not_exists": lambda keys, key: keys.insert_if_not_exists(key, SECRET, 0),
    "compare_and_swap": lambda keys, key: keys.compare_and_swap(key, SECRET, SECRET, 0),
    "compare_and_delete": lambda keys, key: keys.compare_and_delete(key, SECRET),
    "put": lambda keys, key: keys.put(key, SECRET, 0),
    "delete": lambda keys, key: keys.delete(key),
    "touch": lambda keys, key: keys.touch(key, 0),
    "query_ttl": lambda keys, key: keys.query_ttl(key),
    "get_item": lambda keys, key: keys.get_item(key),
    "get_many": lambda keys, key: keys.get_many(["good", key]),
    "insert_many": lambda keys, key: keys.insert_many([("good", "v", 1), (key, SECRET, 0)]),
    "lock": lambda keys, key: keys.lock(key, 0),
}
TAKES_VALUE: dict[str, Call] = {
    "insert_if_not_exists": lambda keys, value: keys.insert_if_not_exists("k", value, 0),
    "compare_and_swap (expected)": lambda keys, value: keys.compare_and_swap("k", value, SECRET, 0),
    "compare_and_swap (new)": lambda keys, value: keys.compare_and_swap("k", "good", value, 0),
    "compare_and_delete": lambda keys, value: keys.compare_and_delete("k", value),
    "put": lambda keys, value: keys.put("k", value, 0),
    "insert_many": lambda keys, value: keys.insert_many([("good", "v", 1), ("k", value, 0)]),
}
TAKES_TTL: dict[str, Call] = {
    "insert_if_not_exists": lambda keys, ttl: keys.insert_if_not_exists("k", "v", ttl),
    "compare_and_swap": lambda keys, ttl: keys.compare_and_swap("k", "v", "w", ttl),
    "put": lambda keys, ttl: keys.put("k", "v", ttl),
    "touch": lambda keys, ttl: keys.touch("k", ttl),
    "insert_many": lambda keys, ttl: keys.insert_many([("good", "v", 1), ("k", "v", ttl)]),
    "lock": lambda keys, ttl: keys.lock("k", ttl),
}
CASES = [
    pytest.param(call, bad, error, id=f"{name}({type(bad).__name__} {str(bad)[:4]!a})")
    for calls, wrong in ((TAKES_KEY, BAD_KEYS), (TAKES_VALUE, BAD_VALUES), (TAKES_TTL, BAD_TTLS))
    for name, call in calls.items()
    for bad, error in wrong
]
# The later arguments of TAKES_KEY and TAKES_VALUE are wrong as well: so these cases also hold the order of the checks.


@pytest.fixture
def untouchable() -> AppKeys:
    return AppKeys(7, cast("Space", Untouchable()), backend=cast("Backend", Untouchable()), clock=VirtualClock())


@pytest.fixture
def untouchable_async() -> AsyncAppKeys:
    return AsyncAppKeys(7, cast("Space", Untouchable()), backend=cast("Backend", Untouchable()), clock=VirtualClock())


@pytest.mark.parametrize(("call", "bad", "error"), CASES)
def test_the_first_rule_broken_is_the_error_and_nothing_is_touched(
    untouchable: AppKeys, call: Call, bad: object, error: type[TTLValidationError]
) -> None:
    with pytest.raises(error) as caught:
        call(untouchable, bad)

    assert type(caught.value) is error
    assert "s3cr3t" not in repr(caught.value)


@pytest.mark.parametrize(("call", "bad", "error"), CASES)
async def test_the_same_holds_for_the_awaitable_face(
    untouchable_async: AsyncAppKeys, call: Call, bad: object, error: type[TTLValidationError]
) -> None:
    async def attempt() -> None:
        await cast("Awaitable[object]", call(untouchable_async, bad))

    with pytest.raises(error):
        await attempt()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"prefix": "\ud800"}, KeyInvalidUTF8Error),
        ({"prefix": "k" * 1025}, KeyTooLongError),
        ({"prefix": 7}, KeyTypeError),
        ({"after": "\ud800"}, KeyInvalidUTF8Error),
        ({"after": "k" * 1025}, KeyTooLongError),
        ({"limit": 0}, InvalidLimitError),
        ({"limit": True}, InvalidLimitError),
        ({"limit": 10_001}, InvalidLimitError),
        ({"prefix": "\ud800", "limit": 0}, KeyInvalidUTF8Error),
    ],
)
def test_a_scan_is_checked_before_anything_is_touched(
    untouchable: AppKeys, arguments: dict[str, Any], error: type[TTLValidationError]
) -> None:
    with pytest.raises(error):
        untouchable.scan(**arguments)


def test_a_single_text_is_no_list_of_keys(untouchable: AppKeys) -> None:
    with pytest.raises(KeyTypeError, match="The list of keys is of type str"):
        untouchable.get_many("abc")


def test_the_cases_cover_every_public_method() -> None:
    public = {name for name in vars(AppKeys) if not name.startswith("_") and callable(getattr(AppKeys, name))}

    assert public == {*TAKES_KEY, "scan"}


@pytest.mark.parametrize("app_id", [-1, 2**32, True, "7", None])
def test_an_application_id_is_checked_before_the_backend_is_asked(app_id: object) -> None:
    keys = Keys(cast("Backend", Untouchable()), clock=VirtualClock(), sweep=False)

    with pytest.raises(InvalidAppIdError):
        keys.app(cast("int", app_id))
