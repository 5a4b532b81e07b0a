"""The port of keys: the operations that a backend implements, and the rule of expiry as arithmetic.

A `Backend` opens `Space` objects, one per application. A space receives what is already validated, and is the unit of
isolation. Atomicity is the backend's duty: each method is one atomic step that treats an expired record as absent.

Two APIs, one shape. A method *answers*; an answer is either the value itself or a `Pending` (a ticket of a shared
commit, a coroutine), which the awaitable API awaits. Embedded backends give plain values from `space` and may give
tickets from `async_space`; network backends give coroutines from `async_space`, and their `space` runs those on a
background loop. So every operation is written once, in the way that is natural to its backend, and `lapse.keys.store`
only passes answers on.

A record carries its absolute expiry in Unix milliseconds. It is gone at the instant ``now >= expiry``, whether or not
anything has swept it. The moment of writing is rounded *up* to the millisecond, so a TTL of one second lives at least
one second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lapse.core.moved import old_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lapse.keys.backends.layout import Prefix

__getattr__ = old_names(__name__)
NS_PER_MS: Final = 1_000_000
NS_PER_SECOND: Final = 1_000_000_000


def expiry_ns(now_ns: int, ttl_seconds: int) -> int:
    """Return the absolute expiry of a record that is written now: a whole millisecond, in the clock's nanoseconds."""
    return -(-(now_ns + ttl_seconds * NS_PER_SECOND) // NS_PER_MS) * NS_PER_MS


def expiry_ms(now_ns: int, ttl_seconds: int) -> int:
    """Return the same in Unix milliseconds, as it is stored."""
    return expiry_ns(now_ns, ttl_seconds) // NS_PER_MS


def is_over(expires_ns: int, now_ns: int) -> bool:
    """Whether a record with this expiry is gone."""
    return now_ns >= expires_ns


def seconds_left(expires_ns: int, now_ns: int) -> float | None:
    """Return what is left of a record's life in whole milliseconds; None when it is over.

    Counted from now as a write would count it, rounded up, so a key that was just written with a TTL of 900 shows 900
    and never more; and never 0, because a live key has something left.
    """
    if now_ns >= expires_ns:
        return None
    return max(1, (expires_ns // NS_PER_MS) + (-now_ns // NS_PER_MS)) / 1000


class Item(NamedTuple):
    """A live record."""

    key: str
    value: str
    expires_ms: int
    """Absolute expiry, Unix milliseconds: gone at this instant."""

    @property
    def expires_at(self) -> datetime:
        """The absolute expiry as an aware UTC time."""
        return datetime.fromtimestamp(self.expires_ms / 1000, UTC)


class NewItem(NamedTuple):
    """A record to be inserted."""

    key: str
    value: str
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend promises, in words for the capability table.

    Facts only: each line is held by the conformance kit or the docs.
    """

    atomicity: str
    clock: str
    precision: str
    cleanup: str
    scan: str
    multi_key: str
    shared: bool
    """Whether other processes that open the same URL see the same records: decides how the conformance kit races."""
    late_by_seconds: float = 0.0
    """How long after its expiry a record may still be seen. 0 means exact: the clock given to the opener decides, to
    the nanosecond. More than 0 means that a server's clock or a network stands in between."""


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What one slice of physical cleanup did."""

    removed: int
    more: bool
    """Whether expired records are left, so that another slice should follow soon."""
    lag_seconds: float | None = None
    """How long the oldest removed record had been over; None when nothing was removed."""
    apps: Mapping[int, int] = field(default_factory=dict, compare=False)
    """How many of the removed records were keys of each application. No names: they are secrets."""


class ExpiringCount(NamedTuple):
    """How many live records of one application expire until a moment. No names: they are secrets."""

    prefix: Prefix
    app_id: int
    number: int
    """Of records: at least 1."""
    first_ns: int
    """The earliest of their expiries, Unix nanoseconds."""
    parts: tuple[int, ...] = ()
    """Of the number: how many are over at each edge and not at the one before, and at the end; empty without edges."""


class Space(Protocol):
    """One application's records. Arguments are validated; an expired record counts as absent everywhere."""

    def get(self, key: str) -> str | None:
        """Return the live value."""
        ...

    def find(self, key: str) -> Item | None:
        """Return the live record with its expiry."""
        ...

    def ttl(self, key: str) -> float | None:
        """Return the seconds left, rounded up; None when absent."""
        ...

    def insert(self, key: str, value: str, ttl_seconds: int) -> bool:
        """Write unless a live record is there."""
        ...

    def put(self, key: str, value: str, ttl_seconds: int) -> None:
        """Write whatever is there."""
        ...

    def swap(self, key: str, expected: str, value: str, ttl_seconds: int) -> bool:
        """Replace value and TTL if the live value equals ``expected``."""
        ...

    def delete(self, key: str) -> bool:
        """Remove; whether a live record was there."""
        ...

    def delete_if(self, key: str, expected: str) -> bool:
        """Remove if the live value equals ``expected``."""
        ...

    def touch(self, key: str, ttl_seconds: int) -> bool:
        """Give a live record a new TTL, its value unchanged."""
        ...

    def get_many(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the live ones."""
        ...

    def insert_many(self, items: Sequence[NewItem]) -> list[bool]:
        """Insert each unless a live record is there; in order, not atomic together."""
        ...

    def scan(self, start: str, stop: str | None, limit: int) -> list[Item]:
        """Return live records with ``start <= key < stop`` in byte order, ``limit`` at most."""
        ...


class Backend(Protocol):
    """An opened store."""

    capabilities: Capabilities
    sweep_interval: float | None
    """Seconds between rounds of cleanup that the opener should run.

    None when the server cleans up or the URL says never.
    """

    def space(self, prefix: Prefix, app_id: int) -> Space:
        """Open one application's records for callers that wait by blocking."""
        ...

    def async_space(self, prefix: Prefix, app_id: int) -> Space:
        """Open one application's records for callers on an event loop; answers may be `Pending`."""
        ...

    def sweep(self, limit: int) -> CleanupReport:
        """Remove up to ``limit`` expired records physically. Backends whose server does that report nothing removed."""
        ...

    def counts(self) -> Iterable[tuple[Prefix, int, int]]:
        """Give the number of stored records per prefix and application, expired ones that are not swept included."""
        ...

    def expiring(self, until_ns: int, edges_ns: Sequence[int] = ()) -> Sequence[ExpiringCount] | None:
        """Count the live records that are over at ``until_ns``, by prefix and application; None: it cannot tell.

        ``edges_ns`` are earlier moments, in order, between which they are counted apart, in the same look.

        Costs what is counted, not what is stored, as far as the backend says. Blocks. Not one moment: a record that is
        written, renewed or removed meanwhile may count or not, and never twice.
        """
        ...

    def check(self) -> None:
        """Raise `BackendUnavailableError` unless the store can be read now, `BackendMisfitError` if it does not fit.

        Called once when a store is opened, and whenever somebody asks whether it is ready. Blocks.
        """
        ...

    def async_check(self) -> object:
        """Do the same for callers on an event loop; the answer may be pending."""
        ...

    def close(self) -> None:
        """Release everything. Idempotent. Blocks."""
        ...

    def async_close(self) -> object:
        """Do the same for callers on an event loop; the answer may be pending."""
        ...
