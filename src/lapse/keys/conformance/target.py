"""The store under examination: a way to open it, and the facts that decide how its rules can be shown."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from lapse.core.clock import Clock, SystemClock
from lapse.keys.aio import AsyncKeys, open_keys_async
from lapse.keys.errors import KeysURLError
from lapse.keys.store import Keys, open_keys
from lapse.keys.url import parse_url

if TYPE_CHECKING:
    from lapse.keys.port import Capabilities

Fresh = Callable[[int], AbstractContextManager["StoreTarget"]]


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """A store to be examined. Users make one with `from_url`; the fields are for backends that no URL names."""

    open: Callable[[Clock | None], Keys]
    """Opens the store, with the system's clock or the one given, without a background sweep."""
    exact_clock: bool
    """Whether the given clock decides expiry, so that a virtual one shows the very instant."""
    shared: bool
    """Whether everybody who opens it sees the same records; otherwise each opening is a new, empty store."""
    url: str | None = field(default=None, repr=False)
    """How other processes open it. May hold a password: it is never printed."""
    late_by_seconds: float = 0.0
    """How late an expired record may still be seen."""
    fresh: Fresh | None = None
    """Makes a new, empty store with a given number of buckets, for as long as the block lasts."""

    @classmethod
    def from_url(cls, url: str) -> StoreTarget:
        """Open the store once to learn what it promises; raises what `open_keys` raises when it cannot be used."""
        promises = _capabilities(url)
        return cls(
            open=lambda clock: open_keys(url, clock=clock, sweep=False),
            exact_clock=promises.late_by_seconds == 0,
            shared=promises.shared,
            url=url,
            late_by_seconds=promises.late_by_seconds,
            fresh=_fresh(url, promises),
        )

    def capabilities(self) -> Capabilities:
        """Return what the backend promises: the capability table."""
        with self.open(None) as keys:
            return keys.backend.capabilities

    def open_awaited(self, clock: Clock | None) -> AsyncKeys:
        """Open the awaitable API. To be called on the event loop that will use it."""
        if self.url is not None:
            return open_keys_async(self.url, clock=clock, sweep=False)
        return AsyncKeys(self.open(clock).backend, clock=clock or SystemClock(), sweep=False)

    def without_secrets(self, text: str) -> str:
        """Return ``text`` without the URL's password, which a driver may have put into its message."""
        password = None
        with suppress(KeysURLError):  # a URL that nobody can use
            password = parse_url(self.url).password if self.url is not None else None
        return text.replace(password, "***").replace(quote(password, safe=""), "***") if password else text


def with_option(url: str, name: str, value: object) -> str:
    """Return the URL with one of its options replaced or added."""
    base, _, query = url.partition("?")
    options = [(key, text) for key, text in parse_qsl(query, keep_blank_values=True) if key != name]
    return f"{base}?{urlencode([*options, (name, value)])}"


def _capabilities(url: str) -> Capabilities:
    with open_keys(url, sweep=False) as keys:
        return keys.backend.capabilities


def _fresh(url: str, promises: Capabilities) -> Fresh | None:
    if not promises.shared:
        return lambda buckets: _same_place(with_option(url, "buckets", buckets))
    if parse_url(url).scheme == "file":
        return lambda buckets: _scratch_file(url, buckets)
    return None  # nobody may create databases, keyspaces or tables on somebody's server just to look at them


@contextmanager
def _same_place(url: str) -> Iterator[StoreTarget]:
    yield StoreTarget.from_url(url)


@contextmanager
def _scratch_file(url: str, buckets: int) -> Iterator[StoreTarget]:
    query = url.partition("?")[2]
    with tempfile.TemporaryDirectory(prefix="lapse-conformance-") as folder:
        path = quote(str(Path(folder) / "keys.db"))
        yield StoreTarget.from_url(with_option(f"file://{path}?{query}", "buckets", buckets))
