"""The fixture of one case: the store under examination, empty applications in it, and time that passes.

A `StoreTarget` opens the store and says how its rules can be shown. Where its clock is exact, each case has a virtual
clock of its own, so no case waits. On servers time is real, and cases wait side by side.

Guarantees for a store that is in use. The kit works in applications drawn at random from `KIT_APPS`, and only in those
that hold nothing (the one exception, the applications 0 and 4294967295, must be empty as well). It notes each key
before it is written and removes it when the case ends, however it ends. A virtual clock on a store that others use runs
an hour ahead: nobody's cleanup takes the kit's records away, and no cleanup is ever run on that clock.

A case is written once, in blocking style, and runs on both APIs of keys. A `Handle` stands for an `AppKeys`. It drives
awaitable answers on an event loop in a thread of its own (as a user's program would have one, and not the loop that
backends may use inside), and notes every key it writes, so that the kit can remove them all.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode

from lapse.core.clock import Clock, SystemClock, VirtualClock
from lapse.core.errors import LapseError
from lapse.core.identity import secret_bytes
from lapse.keys.aio import AsyncKeys, open_keys_async
from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.case import CallStyle, Case, CaseKind, NotApplicable, TooSlow
from lapse.keys.conformance.workers import ProcessWorkers, ThreadWorkers, Workers
from lapse.keys.errors import KeysURLError
from lapse.keys.store import Keys, open_keys
from lapse.keys.url import parse_url

if TYPE_CHECKING:
    from lapse.keys.port import Backend, Capabilities
    from lapse.keys.store import AppKeys

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


T = TypeVar("T")
Note = Callable[[Prefix, int, str], None]

_PATIENCE_SECONDS: Final = 30.0
_WRITES: Final = frozenset({"insert_if_not_exists", "compare_and_swap", "put"})


class LoopThread:
    """An event loop that runs in a thread, for callers that block."""

    def __init__(self) -> None:
        """Start it."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lapse-conformance-loop", daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Wait for ``work`` on the loop; raises `TimeoutError` when it hangs."""
        return asyncio.run_coroutine_threadsafe(_wait_for(work), self._loop).result(_PATIENCE_SECONDS)

    def close(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _wait_for(work: Awaitable[T]) -> T:
    return await work


class Handle:
    """One application's keys, blocking whatever the API behind it, with every written key noted."""

    def __init__(self, keys: object, note: Note, loop: LoopThread | None) -> None:
        """Stand for ``keys``, an `AppKeys` or, with a ``loop``, an `AsyncAppKeys`."""
        self._keys = keys
        self._note = note
        self._loop = loop

    @classmethod
    def on(cls, keys: object, note: Note, loop: LoopThread | None = None) -> AppKeys:
        """Return a handle as what it stands for."""
        return cast("AppKeys", cls(keys, note, loop))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for every method of AppKeys
        """Pass on, note, and wait for the answer if it is pending."""
        meant = getattr(self._keys, name)
        if not callable(meant):
            return meant

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any operation
            for prefix, key in _written(name, args):
                self._note(prefix, self.app_id, key)
            if self._loop is None or name == "lock":
                return meant(*args, **kwargs)
            return self._loop.run(meant(*args, **kwargs))

        return call


def _written(name: str, args: tuple[Any, ...]) -> list[tuple[Prefix, str]]:
    if name in _WRITES:
        return [(Prefix.APPLICATION_TTL, args[0])]
    if name == "insert_many":
        return [(Prefix.APPLICATION_TTL, item[0]) for item in args[0]]
    if name == "lock":  # its two records; see lapse.keys.lock
        return [(Prefix.LEADER_ELECTION, f"lock:{args[0]}"), (Prefix.LEADER_ELECTION, f"fence:{args[0]}")]
    return []


class Stalled:
    """A clock whose sleepers never wake: what a holder of a lock looks like while its machine stands still."""

    def __init__(self, clock: Any) -> None:  # noqa: ANN401 - any Clock
        """Tell the time of ``clock``."""
        self._clock = clock

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any operation
        """Tell the time as the clock does."""
        return getattr(self._clock, name)

    async def sleep(self, seconds: float) -> None:
        """Sleep until cancelled."""
        await asyncio.get_running_loop().create_future()


KIT_APPS: Final = range(0xFFF0_0000, 0xFFFF_FFFF)
"""The application ids from which the kit draws: the highest million but the very last."""

LONG: Final = 600
"""A TTL in seconds that no case outlives."""

_DRAWS: Final = 20
_HOUR_NS: Final = 3_600_000_000_000
_MS_NS: Final = 1_000_000
_MARGIN_SECONDS: Final = 0.02
"""Of real time: an expiry is rounded to the millisecond, and a clock may be being slewed."""


class NoEmptyApplicationError(LapseError):
    """No application from {first} to {last} was found empty in {draws} draws, so nothing was written.

    Either this store shows one application's records to another, or another program uses that range.
    """


class Session:
    """The parts that the cases of one run share."""

    def __init__(self, target: StoreTarget) -> None:
        """Open the store on the system's clock."""
        self.target = target
        self.keys = target.open(None)
        self.drawn: set[int] = set()
        self._draw_guard = threading.Lock()
        self._open_guard = threading.RLock()
        self._loop: LoopThread | None = None
        self._awaited: AsyncKeys | None = None
        self._workers: Workers | None = None

    @property
    def loop(self) -> LoopThread:
        """The event loop of the awaitable API."""
        with self._open_guard:
            if self._loop is None:
                self._loop = LoopThread()
            return self._loop

    @property
    def awaited(self) -> AsyncKeys:
        """The store by its awaitable API, on the system's clock."""
        with self._open_guard:
            if self._awaited is None:
                self._awaited = self.loop.run(_open_awaited(self.target, None))
            return self._awaited

    @property
    def workers(self) -> Workers:
        """The workers of races: processes where the store is shared and has a URL, otherwise threads."""
        if self._workers is None:  # no guard: races have one lane, and nobody else shall wait while processes start
            target = self.target
            in_processes = target.shared and target.url is not None
            self._workers = ProcessWorkers(target.url or "") if in_processes else ThreadWorkers(self.keys)
        return self._workers

    def draw_app(self) -> int:
        """Return an application id that nobody uses."""
        for _ in range(_DRAWS):
            app_id = KIT_APPS[int.from_bytes(secret_bytes(8)) % len(KIT_APPS)]
            with self._draw_guard:
                if app_id in self.drawn:
                    continue
                self.drawn.add(app_id)
            if is_empty(self.keys.backend, app_id):
                return app_id
        raise NoEmptyApplicationError(first=KIT_APPS[0], last=KIT_APPS[-1], draws=_DRAWS)

    def close(self) -> None:
        """End the workers and close the store."""
        if self._workers is not None:
            self._workers.close()
        if self._awaited is not None:
            self.loop.run(self._awaited.close())
        if self._loop is not None:
            self._loop.close()
        self.keys.close()


class CaseFixture:
    """The parts that one case may use."""

    def __init__(self, session: Session, case: Case) -> None:
        """Set up; nothing is opened before it is asked for."""
        target = session.target
        self.session = session
        self.target = target
        self.clock = VirtualClock(_start_ns(target)) if self.is_exact(target, case) else None
        """Virtual time, or None where time is real."""
        self._style = case.style
        self._own: Keys | None = None
        self._own_awaited: AsyncKeys | None = None
        self._noted: defaultdict[tuple[Prefix, int], set[str]] = defaultdict(set)

    @staticmethod
    def is_exact(target: StoreTarget, case: Case) -> bool:
        """Whether a case runs in virtual time."""
        sweeps_alone = case.kind is CaseKind.SWEEP and not target.shared
        return target.exact_clock and (case.kind is CaseKind.PLAIN or sweeps_alone)

    @property
    def keys(self) -> Keys:
        """The store by its blocking API, on this fixture's clock."""
        if self.clock is None:
            return self.session.keys
        if self._own is None:
            self._own = self.target.open(self.clock)
        return self._own

    @property
    def awaited(self) -> AsyncKeys:
        """The store by its awaitable API, on this fixture's clock."""
        if self.clock is None:
            return self.session.awaited
        if self._own_awaited is None:
            self._own_awaited = self.session.loop.run(_open_awaited(self.target, self.clock))
        return self._own_awaited

    def app(self, app_id: int | None = None) -> AppKeys:
        """Return an empty application's keys, or those of a given id."""
        number = self.session.draw_app() if app_id is None else app_id
        if self._style is CallStyle.AWAITED:
            return Handle.on(self.awaited.app(number), self.note, self.session.loop)
        return Handle.on(self.keys.app(number), self.note)

    def note(self, prefix: Prefix, app_id: int, key: str) -> None:
        """Remember a key for removal; to be called before it is written."""
        self._noted[prefix, app_id].add(key)

    def pass_ttl(self, seconds: int) -> None:
        """Let every TTL of ``seconds`` that has begun be over: at the very instant, or in real time soon after."""
        if self.clock is not None:
            self.clock.advance(seconds)
        else:
            wait(seconds + self.target.late_by_seconds + _MARGIN_SECONDS)

    @contextmanager
    def within(self, seconds: int) -> Iterator[None]:
        """What happens in this block happens before a TTL of ``seconds`` is over, or the case is run again."""
        started_ns = now_ns()
        try:
            yield
        finally:
            if self.clock is None and now_ns() - started_ns >= seconds * 1_000_000_000:
                raise TooSlow

    def only_exact(self, instead: str) -> VirtualClock:
        """Return the virtual clock; where time is real the case does not apply."""
        if self.clock is None:
            self.not_applicable(f"a server's clock cannot be moved; {instead}")
        return self.clock

    def not_applicable(self, reason: str) -> NoReturn:
        """End the case: this store gives no occasion for it."""
        raise NotApplicable(reason)

    def leave(self) -> None:
        """Remove what the case wrote, and close what was opened for it."""
        try:
            through_others = self.clock is None or self.target.shared
            backend = self.session.keys.backend if through_others else self._own_backend()
            if backend is not None:
                self._remove(backend)
        finally:
            if self._own is not None:
                self._own.close()
            if self._own_awaited is not None:
                self.session.loop.run(self._own_awaited.close())

    def _own_backend(self) -> Backend | None:
        opened = self._own or self._own_awaited
        return opened.backend if opened is not None else None

    def _remove(self, backend: Backend) -> None:
        for (prefix, app_id), names in self._noted.items():
            space = backend.space(prefix, app_id)
            for name in names:
                with suppress(LapseError):  # the last case of the kit looks for what could not be removed, and says so
                    space.delete(name)


def is_empty(backend: Backend, app_id: int) -> bool:
    """Whether an application shows no record, neither as keys nor as locks."""
    prefixes = (Prefix.APPLICATION_TTL, Prefix.LEADER_ELECTION)
    return not any(backend.space(prefix, app_id).scan("", None, 1) for prefix in prefixes)


def wait(seconds: float) -> None:
    """Let real time pass."""
    threading.Event().wait(seconds)


def now_ns() -> int:
    """Read real time that never goes back."""
    return SystemClock().monotonic_ns()


def _start_ns(target: StoreTarget) -> int:
    # On a whole millisecond, so that an expiry is an instant which a clock that moves by seconds meets exactly.
    base = SystemClock().wall_ns() + _HOUR_NS if target.shared else VirtualClock().wall_ns()
    return base // _MS_NS * _MS_NS


async def _open_awaited(target: StoreTarget, clock: VirtualClock | None) -> AsyncKeys:
    return await target.open_awaited(clock)
