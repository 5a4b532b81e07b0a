"""One request to DynamoDB and its answer: time-out, back-off, the check of the clock, and errors in our words.

Guarantees. A request is one HTTP exchange. It is sent again only if it was certainly not applied (the server was busy),
or if it is a read; with growing pauses, and only within ``timeout``. The moment of a write is read anew each time, so
waiting does not shorten a TTL. Nothing is sent while this machine's clock is proven to be wrong, and no answer is
passed on that shows it to have been wrong.

Not guaranteed: that a request whose caller gave up is not applied later; that is what `OutcomeUnknownError` says.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from lapse.core.jitter import backoff
from lapse.keys.backends.dynamodb.failures import Failure, Kind, check_origin, date_of, understand
from lapse.keys.backends.dynamodb.links import Link, Links
from lapse.keys.backends.dynamodb.server_clock import ServerClock
from lapse.keys.errors import BackendError, BackendMisfitError, BackendUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lapse.core.clock import Clock
    from lapse.keys.backends.dynamodb.items import Request
    from lapse.keys.backends.dynamodb.links import Settings

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0

INIT_COMMAND: Final = "run: lapse keys init URL, with the same URL"


class _Manner(Enum):
    """How a request is treated."""

    PLAIN = auto()
    READ = auto()
    WRITE = auto()


class _Attempt:
    """How far a request has come, for whoever must explain why it went no further."""

    __slots__ = ("failure", "in_turn", "under_way")

    def __init__(self) -> None:
        self.in_turn = False
        self.under_way = False
        self.failure: Failure | None = None


class Calls:
    """Sends requests for one store."""

    def __init__(self, settings: Settings, clock: Clock, probe: Request) -> None:
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

    async def ask(self, operation: str, request: Request, *accepted: Kind) -> Any:  # noqa: ANN401 - as the driver has it
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
        self, operation: str, request: Callable[[int], Request], manner: _Manner, accepted: Sequence[Kind] = ()
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
                    if not isinstance(answer, Failure) or answer.kind is Kind.CONDITION:
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
        if failure.kind is Kind.NO_TABLE:
            problem = f"there is no table {settings.table} in {settings.region}; {INIT_COMMAND}"
            return BackendMisfitError(backend=settings.name, problem=problem)
        if failure.kind is Kind.MISFIT:
            return BackendMisfitError(backend=settings.name, problem=failure.problem)
        if failure.kind is Kind.DOUBTFUL and manner is _Manner.WRITE:
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


def _may_repeat(kind: Kind, manner: _Manner) -> bool:
    return kind is Kind.BUSY or (kind is Kind.DOUBTFUL and manner is not _Manner.WRITE)
