"""The rules for keys, values and TTLs, checked before any backend is touched.

The order is the contract's: key empty, key not UTF-8, key too long, value not UTF-8, value too long, TTL. Lengths are
bytes of UTF-8, because that is what every backend stores. An ASCII string is the quick path: it is
valid UTF-8 and as long in bytes as in characters, and CPython knows whether a string is ASCII without looking at it.

Numbers are taken as ``object``, because what a caller says is an int may be anything.
"""

from __future__ import annotations

from typing import Final

from lapse.keys.errors import (
    InvalidAppIdError,
    InvalidLimitError,
    InvalidTTLError,
    KeyEmptyError,
    KeyInvalidUTF8Error,
    KeyTooLongError,
    KeyTypeError,
    ValueInvalidUTF8Error,
    ValueTooLongError,
)

MAX_KEY_BYTES: Final = 1024
MAX_VALUE_BYTES: Final = 65_536
MAX_TTL_SECONDS: Final = 31_536_000
MAX_APP_ID: Final = 2**32 - 1
MAX_SCAN_LIMIT: Final = 10_000
MAX_BUCKETS: Final = 2**16


def app_number(text: str) -> int | None:
    """Read an application id as it stands in an address, a scope or a path; one spelling only, so that all mean one."""
    if text.isascii() and text.isdigit() and (text == "0" or text[0] != "0") and len(text) <= len(str(MAX_APP_ID)):
        number = int(text)
        return number if number <= MAX_APP_ID else None
    return None


def check_key(key: str) -> None:
    """Raise unless ``key`` is 1 to 1024 bytes of UTF-8."""
    if not isinstance(key, str):
        raise KeyTypeError(what="key", given=type(key).__name__, expected="str")
    if not key:
        raise KeyEmptyError
    if key.isascii():
        length = len(key)
    else:
        try:
            length = len(key.encode())
        except UnicodeEncodeError as error:
            raise KeyInvalidUTF8Error(position=error.start) from None  # the cause would show the key
    if length > MAX_KEY_BYTES:
        raise KeyTooLongError(length=length, limit=MAX_KEY_BYTES)


def check_value(value: str, what: str = "value") -> None:
    """Raise unless ``value`` is at most 65536 bytes of UTF-8; the empty value is allowed."""
    if not isinstance(value, str):
        raise KeyTypeError(what=what, given=type(value).__name__, expected="str")
    if value.isascii():
        length = len(value)
    else:
        try:
            length = len(value.encode())
        except UnicodeEncodeError as error:
            raise ValueInvalidUTF8Error(position=error.start) from None  # the cause would show the value
    if length > MAX_VALUE_BYTES:
        raise ValueTooLongError(length=length, limit=MAX_VALUE_BYTES)


def check_ttl(ttl_seconds: object) -> None:
    """Raise unless ``ttl_seconds`` is an int (bool is not one) from 1 to 365 days."""
    if not isinstance(ttl_seconds, int) or isinstance(ttl_seconds, bool):
        raise InvalidTTLError(given=f"of type {type(ttl_seconds).__name__}", limit=MAX_TTL_SECONDS)
    if not 0 < ttl_seconds <= MAX_TTL_SECONDS:
        raise InvalidTTLError(given=ttl_seconds, limit=MAX_TTL_SECONDS)


def check_app_id(app_id: object) -> None:
    """Raise unless ``app_id`` is an unsigned 32-bit integer."""
    if not isinstance(app_id, int) or isinstance(app_id, bool):
        raise InvalidAppIdError(given=f"of type {type(app_id).__name__}", limit=MAX_APP_ID)
    if not 0 <= app_id <= MAX_APP_ID:
        raise InvalidAppIdError(given=app_id, limit=MAX_APP_ID)


def check_scan(prefix: str, after: str | None, limit: object) -> None:
    """Raise unless these make a scan: both texts as keys, except that they may be empty."""
    if prefix != "":
        check_key(prefix)
    if after is not None and after != "":
        check_key(after)
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise InvalidLimitError(given=f"of type {type(limit).__name__}", limit=MAX_SCAN_LIMIT)
    if not 0 < limit <= MAX_SCAN_LIMIT:
        raise InvalidLimitError(given=limit, limit=MAX_SCAN_LIMIT)
