"""Requests to DynamoDB: time-out, back-off, several at once, the check of the clock, and errors of keys.

Guarantees of `Calls`. A request is one HTTP exchange. It is sent again only if it was certainly not applied (the server
was busy), or if it is a read; with growing pauses, and only within ``timeout``. The moment of a write is read anew each
time, so waiting does not shorten a TTL. Nothing is sent while this machine's clock is proven to be wrong, and no answer
is passed on that shows it to have been wrong. Not guaranteed: that a request whose caller gave up is not applied later;
that is what `OutcomeUnknownError` says.

`ServerClock` knows how far this machine's clock, which decides about expiry, is from the server's. Every answer carries
the server's time in whole seconds, as a ``Date`` header. One such header says little: the server wrote it somewhere
between our sending and our receiving, and somewhere within its second. So each answer gives an interval in which the
distance must lie, and the intervals of several answers are intersected; soon the distance is known to a few
milliseconds, without a request of its own. The server is compared with this machine's boottime clock, which never
jumps: when somebody sets the wall clock, that is seen before the next request is sent. Guarantee: a clock is refused
only when it is proven to be further off than allowed. Not guaranteed: that two machines agree. Each may be off by the
bound, and before a few answers came by up to one second more.
"""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError
from lapse.core.jitter import backoff
from lapse.keys.backends.dynamodb.failures import Failure, FailureKind, check_origin, date_of, understand
from lapse.keys.backends.dynamodb.links import Link, Links
from lapse.keys.errors import BackendError, BackendMisfitError, BackendUnavailableError, OutcomeUnknownError
from lapse.keys.port import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from lapse.core.clock import Clock
    from lapse.keys.backends.dynamodb.items import Request
    from lapse.keys.backends.dynamodb.links import TableSettings

INIT_COMMAND: Final = "run: lapse keys init URL, with the same URL"

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

RESOLUTION_SECONDS: Final = 1
"""Of a ``Date`` header, which the server rounds down."""
_DRIFT: Final = 1000
"""An old interval grows by a thousandth of its age: twice as much as NTP may slew a clock."""


class _Manner(Enum):
    """How a request is treated."""

    PLAIN = auto()
    READ = auto()
    WRITE = auto()


class _Attempt:
    """The progress of a request, for the error that explains why it went no further."""

    __slots__ = ("failure", "in_turn", "under_way")

    def __init__(self) -> None:
        self.in_turn = False
        self.under_way = False
        self.failure: Failure | None = None


class Calls:
    """Sends requests for one store."""

    def __init__(self, settings: TableSettings, clock: Clock, probe: Request) -> None:
        """``probe`` is a GetItem that is sent when the server's time is needed and nothing else is to be asked."""
        self.settings = settings
        self._clock = clock
        self._wall_ns, self._boottime_ns = clock.wall_ns, clock.boottime_ns
        self._probe = probe
        self._links = Links(settings)
        self._server_clock = ServerClock(settings.max_skew_ns)

    async def read(self, operation: str, request: Callable[[int], Request]) -> Any:  # noqa: ANN401 - as the driver has it
        """Ask; ``request`` makes the parameters for a given time. Raises `BackendUnavailableError`."""
        return await self._call(operation, request, _Manner.READ)

    async def write(self, operation: str, request: Callable[[int], Request]) -> bool:
        """Change; whether the condition held. Raises `OutcomeUnknownError` if that is not known."""
        return await self._call(operation, request, _Manner.WRITE) is not None

    async def ask(self, operation: str, request: Request, *accepted: FailureKind) -> Any:  # noqa: ANN401 - as the driver has it
        """Send what may be repeated and needs no clock; None for a failure of an ``accepted`` kind."""
        return await self._call(operation, lambda _: request, _Manner.PLAIN, accepted)

    async def probe(self) -> Any:  # noqa: ANN401 - as the driver has it
        """Send the probe, and raise `BackendUnavailableError` unless this machine's clock may decide."""
        answer = await self.ask("get_item", self._probe)
        if not self._server_clock.is_known:
            raise self._unavailable("its answers have no Date header, so the clock of this machine cannot be checked")
        return answer

    async def pause(self, attempt: int) -> None:
        """Wait before asking again what the server was too busy to answer."""
        await self._clock.sleep(backoff(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))

    async def close(self) -> None:
        """Close the connections."""
        await self._links.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _call(
        self, operation: str, request: Callable[[int], Request], manner: _Manner, accepted: Sequence[FailureKind] = ()
    ) -> Any:  # noqa: ANN401 - as the driver has it
        link = await self._link()
        attempt = _Attempt()
        try:
            async with asyncio.timeout(self.settings.timeout), link.slots:
                attempt.in_turn = True
                for number in count():
                    now_ns = 0 if manner is _Manner.PLAIN else await self._now_ns(link)
                    attempt.under_way = True
                    answer = await self._exchange(link, operation, request(now_ns))
                    attempt.under_way = False
                    if not isinstance(answer, Failure) or answer.kind is FailureKind.CONDITION:
                        self._check_clock_after(manner)
                        return None if isinstance(answer, Failure) else answer
                    if answer.kind in accepted:
                        return None
                    attempt.failure = answer
                    if not _may_repeat(answer.kind, manner):
                        raise self._told(answer, manner) from answer.cause
                    await self.pause(number)
        except TimeoutError as error:
            raise self._gave_up(attempt, manner) from (attempt.failure.cause if attempt.failure else error)

    async def _link(self) -> Link:
        try:
            return await self._links.get()
        except BackendError:
            raise
        except TimeoutError as error:
            raise self._unavailable("no AWS credentials could be had in time") from error
        except Exception as error:
            raise self._unavailable(understand(error).problem) from error

    async def _exchange(self, link: Link, operation: str, request: Request) -> Any:  # noqa: ANN401 - an answer or a Failure
        sent_ns = self._boottime_ns()
        try:
            answer = await getattr(link.client, operation)(**request)
            check_origin(answer)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises, its request may be on its way
            answered = getattr(error, "response", None)
            if isinstance(answered, dict):
                self._note(date_of(answered), sent_ns)
            return understand(error)
        self._note(date_of(answer), sent_ns)
        return answer

    def _note(self, date: str | None, sent_ns: int) -> None:
        self._server_clock.note(date, sent_ns=sent_ns, received_ns=self._boottime_ns())

    # --- the clock ---------------------------------------------------------------------------------------------------

    async def _now_ns(self, link: Link) -> int:
        """Return the time, which decides. When it is in doubt, the server is asked for its own first."""
        if self._server_clock.is_known and self._refusal() is None:
            return self._wall_ns()
        answer = await self._exchange(link, "get_item", self._probe)
        if isinstance(answer, Failure):
            raise self._told(answer, _Manner.READ) from answer.cause
        self._check_clock_after(_Manner.READ)
        return self._wall_ns()

    def _check_clock_after(self, manner: _Manner) -> None:
        """Raise if the answer at hand has shown that it was decided by a wrong clock."""
        refusal = self._refusal()
        if refusal is None:
            return
        if manner is _Manner.WRITE:
            raise OutcomeUnknownError(backend=self.settings.name, problem=f"it was decided by a wrong clock: {refusal}")
        raise self._unavailable(refusal)

    def _refusal(self) -> str | None:
        return self._server_clock.refusal(self._wall_ns(), self._boottime_ns())

    # --- errors ------------------------------------------------------------------------------------------------------

    def _told(self, failure: Failure, manner: _Manner) -> BackendError:
        settings = self.settings
        if failure.kind is FailureKind.NO_TABLE:
            problem = f"there is no table {settings.table} in {settings.region}; {INIT_COMMAND}"
            return BackendMisfitError(backend=settings.name, problem=problem)
        if failure.kind is FailureKind.MISFIT:
            return BackendMisfitError(backend=settings.name, problem=failure.problem)
        if failure.kind is FailureKind.DOUBTFUL and manner is _Manner.WRITE:
            return OutcomeUnknownError(backend=settings.name, problem=failure.problem)
        return self._unavailable(failure.problem)

    def _gave_up(self, attempt: _Attempt, manner: _Manner) -> BackendError:
        waited = f"the timeout of {self.settings.timeout:g} s is over"
        if attempt.under_way and manner is _Manner.WRITE:
            return OutcomeUnknownError(backend=self.settings.name, problem=f"no answer came, and {waited}")
        if attempt.failure is not None:
            return self._unavailable(f"{attempt.failure.problem}, and {waited}")
        if attempt.in_turn:
            return self._unavailable(f"no answer came, and {waited}")
        return self._unavailable(f"all {self.settings.connections} connections are in use, and {waited}")

    def _unavailable(self, problem: str) -> BackendUnavailableError:
        return BackendUnavailableError(backend=self.settings.name, problem=problem)


def _may_repeat(kind: FailureKind, manner: _Manner) -> bool:
    return kind is FailureKind.BUSY or (kind is FailureKind.DOUBTFUL and manner is not _Manner.WRITE)


@lru_cache(maxsize=8)
def server_seconds(date: str) -> int | None:
    """Return the Unix time of a ``Date`` header; None when it is none. Remembered, as it changes once a second."""
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except ValueError:
        return None


class ServerClock:
    """What is known about the server's clock. Safe to use from any thread: it is replaced as a whole."""

    def __init__(self, max_skew_ns: int) -> None:
        """Allow the wall clock to be off by ``max_skew_ns``, in either direction."""
        self._max_skew_ns = max_skew_ns
        self._known: tuple[int, int, int] | None = None
        """Least and most of the server's clock minus our boottime clock, and the boottime of the last answer."""

    @property
    def is_known(self) -> bool:
        """Whether the server has told its time at least once."""
        return self._known is not None

    def note(self, date: str | None, *, sent_ns: int, received_ns: int) -> None:
        """Take in an answer's ``Date``; the boottime clock showed these when we sent and when we received."""
        seconds = server_seconds(date) if date is not None else None
        if seconds is None:
            return
        least = seconds * NS_PER_SECOND - received_ns
        most = (seconds + RESOLUTION_SECONDS) * NS_PER_SECOND - sent_ns
        if self._known is not None:
            old_least, old_most, then_ns = self._known
            grown = max(0, received_ns - then_ns) // _DRIFT
            both = max(least, old_least - grown), min(most, old_most + grown)
            if both[0] <= both[1]:  # else one of the clocks made a leap, and only the new interval counts
                least, most = both
        self._known = least, most, received_ns

    def refusal(self, wall_ns: int, boottime_ns: int) -> str | None:
        """Say in words how wrong the wall clock is; None when it is not proven to be further off than allowed."""
        if self._known is None:
            return None
        least, most, _ = self._known
        distance = wall_ns - boottime_ns
        if distance - most > self._max_skew_ns:
            off_ns, direction = distance - most, "ahead of"
        elif least - distance > self._max_skew_ns:
            off_ns, direction = least - distance, "behind"
        else:
            return None
        return (
            f"the clock of this machine is {off_ns / NS_PER_SECOND:.1f} s {direction} the server's, and max_skew "
            f"allows {self._max_skew_ns / NS_PER_SECOND:g} s; set the clock, or let NTP do it"
        )


async def run_together(jobs: Sequence[Callable[[], Awaitable[None]]], width: int) -> list[LapseError]:
    """Run the jobs, ``width`` at a time, and return the errors.

    After an error no further job is started; those that run are awaited, because a write that is cancelled half-way
    leaves the caller in doubt for no reason.
    """
    failures: list[LapseError] = []
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            try:
                await job()
            except LapseError as error:
                failures.append(error)
            if failures:
                return

    if len(jobs) == 1:
        await work()
        return failures
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(width, len(jobs))):
            workers.create_task(work())
    return failures
