"""The connections of one event loop to one server: a bounded number, kept open, each used by one caller at a time.

The driver's `Connection` is used as it is, without the driver's client and pool around it: those repeat what they
should not (a write that may have been applied), and cannot say whether a request was sent before something broke. Here
that is the whole point. Nothing was sent: it was *unavailable*. Something was sent and no answer came: a read is
repeated once on a new connection, unless it was the time that ran out; of a write the *outcome is unknown*.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from redis import exceptions as driver

from lapse.db.redis.failures import is_answer, refused, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.core.errors import LapseError
    from lapse.db.redis.failures import Errors


class Wire(Protocol):
    """What is used of `redis.asyncio.Connection`."""

    async def connect(self) -> None:
        """Open and greet."""
        ...

    async def send_packed_command(self, command: bytes, check_health: bool) -> None:  # noqa: FBT001 - the driver's
        """Send."""
        ...

    async def read_response(self) -> Any:  # noqa: ANN401 - an answer of any shape
        """Wait for one answer; an error answer is raised."""
        ...

    async def can_read(self) -> bool:
        """Whether something came that nobody asked for: leftovers, or the end of the connection."""
        ...

    async def disconnect(self, nowait: bool) -> None:  # noqa: FBT001 - the driver's
        """Close."""
        ...


class _LostError(Exception):
    """No answer came to what was sent; the cause says why."""


class RedisConnections:
    """See the module."""

    def __init__(
        self,
        make: Callable[[], Wire],
        *,
        backend: str,
        errors: Errors,
        limit: int,
        timeout: float,
        connect_timeout: float,
    ) -> None:
        """Open nothing yet. ``backend`` is for error messages."""
        self._make = make
        self._backend, self._errors = backend, errors
        self._limit, self._timeout, self._connect_timeout = limit, timeout, connect_timeout
        # A server that expects no TLS waits for the rest of what looks to it like half a command.
        is_tls = backend.startswith("rediss:")
        self._hint = "; a server without TLS does not answer either, and needs redis://" if is_tls else ""
        self._idle: list[Wire] = []
        self._slots = asyncio.Semaphore(limit)
        self._closed = False

    async def exchange(self, request: bytes, answers: int, *, writes: bool) -> list[Any]:
        """Send a request of one command or more, and return their answers; errors of the server stand among them."""
        try:
            return await self._attempt(request, answers)
        except _LostError as error:
            cause = error.__cause__
            if writes:
                raise self._errors.outcome_unknown(backend=self._backend, problem=self._why_lost(cause)) from cause
            if isinstance(cause, TimeoutError):
                raise self._unavailable(self._why_lost(cause)) from cause
        try:
            return await self._attempt(request, answers)
        except _LostError as error:
            cause = error.__cause__
            raise self._unavailable(self._why_lost(cause)) from cause

    async def close(self) -> None:
        """Close what is idle now, and the rest when its caller is done. Idempotent."""
        self._closed = True
        while self._idle:
            await _end(self._idle.pop(), nowait=False)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _attempt(self, request: bytes, answers: int) -> list[Any]:
        await self._wait_for_slot()
        try:
            connection = await self._connected()
            try:
                async with asyncio.timeout(self._timeout):
                    await connection.send_packed_command(request, check_health=False)
                    received = [await _answer(connection) for _ in range(answers)]
            except BaseException as error:
                await self._give_up(connection)
                if isinstance(error, driver.RedisError) and is_answer(error):
                    raise refused(error, self._backend, self._errors) from error
                if isinstance(error, driver.RedisError | TimeoutError | OSError):
                    raise _LostError from error
                raise
            if self._closed:
                await _end(connection)
            else:
                self._idle.append(connection)
            return received
        finally:
            self._slots.release()

    async def _wait_for_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._slots.acquire()
        except TimeoutError as error:
            problem = f"all {self._limit} connections were busy for {self._timeout:g} s; allow more with ?connections="
            raise self._unavailable(problem) from error

    async def _connected(self) -> Wire:
        if self._closed:
            raise self._errors.closed
        while self._idle:
            connection = self._idle.pop()
            with suppress(driver.ConnectionError):  # that it was closed meanwhile costs nobody an unknown outcome
                if not await connection.can_read():
                    return connection
            await _end(connection)
        return await self._open()

    async def _open(self) -> Wire:
        connection = self._make()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.connect()
        except BaseException as error:
            await _end(connection)
            if isinstance(error, TimeoutError | driver.TimeoutError):
                problem = f"no connection came about within {self._connect_timeout:g} s{self._hint}"
            elif isinstance(error, driver.RedisError) and is_answer(error):
                raise refused(error, self._backend, self._errors) from error
            elif isinstance(error, driver.RedisError | OSError):
                problem = unreachable(error)
            else:
                raise
            raise self._unavailable(problem) from error
        return connection

    async def _give_up(self, connection: Wire) -> None:
        """Close this connection, and the idle ones: what broke it has most likely broken them as well."""
        await _end(connection)
        while self._idle:
            await _end(self._idle.pop())

    def _unavailable(self, problem: str) -> LapseError:
        return self._errors.unavailable(backend=self._backend, problem=problem)

    def _why_lost(self, error: BaseException | None) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer came within {self._timeout:g} s"
        return "the connection was lost before the answer came"


async def _answer(connection: Wire) -> Any:  # noqa: ANN401 - whatever the server says
    try:
        return await connection.read_response()
    except driver.ResponseError as error:
        return error


async def _end(connection: Wire, *, nowait: bool = True) -> None:
    with suppress(driver.RedisError, OSError):  # it is given up in any case
        await connection.disconnect(nowait=nowait)
