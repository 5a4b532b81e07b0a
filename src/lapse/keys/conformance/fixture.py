"""The fixture of one case: empty applications, and time that passes.

On a store with an exact clock each case has a virtual clock of its own, so no case waits. On servers time is real,
and cases wait side by side.

Guarantees for a store that is in use. The kit works in applications drawn at random from `KIT_APPS`, and only in those
that hold nothing (the one exception, the applications 0 and 4294967295, must be empty as well). It notes each key
before it is written and removes it when the case ends, however it ends. A virtual clock on a store that others use runs
an hour ahead: nobody's cleanup takes the kit's records away, and no cleanup is ever run on that clock.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NoReturn

from lapse.core.clock import SystemClock, VirtualClock
from lapse.core.errors import LapseError
from lapse.core.identity import secret_bytes
from lapse.keys.backends.layout import Prefix
from lapse.keys.conformance.adapters import Handle, LoopThread
from lapse.keys.conformance.case import CallStyle, Case, CaseKind, NotApplicable, TooSlow
from lapse.keys.conformance.workers import ProcessWorkers, ThreadWorkers, Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.keys.aio import AsyncKeys
    from lapse.keys.conformance.target import StoreTarget
    from lapse.keys.port import Backend
    from lapse.keys.store import AppKeys, Keys

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
