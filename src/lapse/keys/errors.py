"""Errors of keys: before a backend is touched, while it works, while a lock is held.

Messages name limits and lengths, never a key's value, and never a key's name: both are secrets (device codes, tokens).
"""

from __future__ import annotations

from lapse.core.errors import LapseError, UsageError

# --- before any backend is touched ---------------------------------------------------------------------------------


class TTLValidationError(UsageError, ValueError):
    """The key, the value or the TTL breaks a rule; nothing was touched."""


class KeyEmptyError(TTLValidationError):
    """The key is empty. Expected 1 to 1024 bytes of UTF-8."""


class KeyInvalidUTF8Error(TTLValidationError):
    """The key is not valid UTF-8: it breaks at position {position} (a lone surrogate, or a stray byte).

    Decode it properly where it enters your program.
    """


class KeyTooLongError(TTLValidationError):
    """The key is {length} bytes long as UTF-8; the limit is {limit} bytes.

    Shorten it, or use a hash of it as the key.
    """


class ValueInvalidUTF8Error(TTLValidationError):
    """The value is not valid UTF-8: it breaks at position {position} (a lone surrogate, or a stray byte).

    Encode binary data, for example as base64.
    """


class ValueTooLongError(TTLValidationError):
    """The value is {length} bytes long as UTF-8; the limit is {limit} bytes. Store a reference to it instead."""


class InvalidTTLError(TTLValidationError):
    """The TTL is {given}; expected a whole number of seconds (an int) from 1 to {limit} (365 days)."""


class KeyTypeError(TTLValidationError, TypeError):
    """The {what} is of type {given}; expected {expected}."""


class InvalidAppIdError(TTLValidationError):
    """The application id is {given}; expected a whole number (an int) from 0 to {limit}."""


class InvalidLimitError(TTLValidationError):
    """The limit is {given}; expected a whole number (an int) from 1 to {limit}."""


class KeysURLError(UsageError, ValueError):
    """The keys URL {url} cannot be used: {problem}."""


# --- while a backend works -------------------------------------------------------------------------------------------


class BackendError(LapseError):
    """The keys backend failed: {problem}."""


class BackendUnavailableError(BackendError):
    """The keys backend {backend} cannot be used now: {problem}. Nothing was changed by this call."""

    status = 503


class OutcomeUnknownError(BackendError):
    """The keys backend {backend} did not say whether the write was applied: {problem}.

    Read the key before you decide.
    """

    status = 504


class BackendClosedError(BackendError):
    """This keys store is closed; open it again with open_keys."""

    status = 503


class BackendMisfitError(BackendError):
    """The keys store {backend} does not fit: {problem}."""


# --- while a lock is held --------------------------------------------------------------------------------------------


class LockHeldError(LapseError):
    """The lock is held by another holder. Try again later, or pass wait_seconds."""


class LockEnteredError(UsageError):
    """This lock object is entered already, and that block keeps the lock. Call lock() once for each block."""


class LockLostError(LapseError):
    """The lock was lost: {problem}. Stop the protected work; another holder may have the lock now."""
