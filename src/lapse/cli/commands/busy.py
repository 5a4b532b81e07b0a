"""``lapse busy``: runs a command, and renews a lease meanwhile that keeps a workspace from lapsing.

The lease is counted by the process that serves the workspaces, so everything goes through its HTTP API. Inside a
workspace the environment says where that is, which workspace it is, and has a token for this alone. Outside,
``--workspace`` names it, and the caller's own token (``LAPSE_TOKEN``) or the state folder is the right to it.

The command is not held up: whatever goes wrong with the lease is a warning, and it is tried again. Its exit code is
that of this command (128 and the number for one that a signal ended, as shells do it), and signals are passed on to it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

from cyclopts import Parameter

from lapse.cli.flags import BusyFlags
from lapse.cli.output import message
from lapse.cli.remote import SERVER, TOKEN
from lapse.cli.usage import check_program
from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.core.clock import Clock

WORKSPACE: Final = "LAPSE_WORKSPACE"
OWN_TOKEN: Final = "LAPSE_WORKSPACE_TOKEN"  # noqa: S105 - the name of a variable, not a token
_CALL_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 5.0
_RENEWALS: Final = 3
"""In the time of a lease: two of them may fail."""
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_FROM_THE_KEYBOARD: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
_NOT_FOUND, _NOT_RUN, _BY_SIGNAL = 127, 126, 128
_NS: Final = 1_000_000_000


class NoWorkspaceError(UsageError):
    """Name the workspace to keep from lapsing: --workspace NAME. Inside a workspace the name is not needed."""


class NothingToRunError(UsageError):
    """Give the command to run after --, as in lapse busy -- python3 train.py."""


class MostError(UsageError):
    """--most is {given}; expected a duration above zero, such as 12h."""


class LeaseError(LapseError):
    """{problem}."""


def busy(
    *command: Annotated[str, Parameter(help="The command to run, after --.", allow_leading_hyphen=True)],
    workspace: Annotated[
        str | None, Parameter(metavar="NAME", help="The workspace; by default the one that the command runs in.")
    ] = None,
    server: Annotated[
        str | None,
        Parameter(metavar="URL", help="The API of lapse up; by default LAPSE_SERVER, or that of the state folder."),
    ] = None,
    most: Annotated[
        str, Parameter(metavar="DURATION", help="How long to keep it from lapsing; the command itself is not ended.")
    ] = "12h",
    flags: BusyFlags = BusyFlags(),
) -> int:
    """Run a command, and keep its workspace from lapsing meanwhile.

    Ends with the command's exit code. If the server cannot be reached, the
    command runs on, and a warning says that nothing protects it.
    """
    if not command:
        raise NothingToRunError
    check_program(command)
    seconds = _seconds(most)
    place = _place(workspace, server, flags)
    return asyncio.run(_run(command, place, seconds))


# --- where ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BusyWorkspace:
    """A workspace at a server, and the right to keep it busy."""

    server: str
    workspace: str
    token: str = field(repr=False)

    @property
    def path(self) -> str:
        """Where its leases are."""
        return f"{urlsplit(self.server).path.rstrip('/')}/api/v1/workspaces/{quote(self.workspace, safe='')}/busy"


def _seconds(most: str) -> float:
    from lapse.core.duration import Duration

    duration = Duration.parse(most)
    if duration.nanoseconds is None or duration.nanoseconds <= 0:
        raise MostError(given=most)
    return duration.seconds


def _place(workspace: str | None, server: str | None, flags: BusyFlags) -> BusyWorkspace:
    from lapse.cli.context import in_context, workspace_name
    from lapse.client.transport import LapseServer

    named = os.environ.get(SERVER) if server is None else server
    inside, own = os.environ.get(WORKSPACE), os.environ.get(OWN_TOKEN)
    name = inside if workspace is None else workspace_name(workspace)
    if not name:
        raise NoWorkspaceError
    token = own if name == inside and own else os.environ.get(TOKEN)
    if named and token:
        return BusyWorkspace(str(LapseServer.parse(named)), name, token)
    address, derived = in_context(flags, partial(_of_state_folder, name=name))
    return BusyWorkspace(str(LapseServer.parse(named or address)), name, token or derived)


async def _of_state_folder(context: Context, name: str) -> tuple[str, str]:
    """Return where the ``lapse up`` of a state folder listens, and the token of a workspace in it."""
    from lapse.cli.remote import server_at

    settings, store = context.settings, await context.workspaces()
    token = context.tokens.of_program((await store.by_name(name)).id)
    return str(server_at(settings)), token


# --- running ----------------------------------------------------------------------------------------------------------


async def _run(command: tuple[str, ...], place: BusyWorkspace, most: float) -> int:
    from lapse.core.clock import SystemClock

    try:
        child = await asyncio.create_subprocess_exec(*command)
    except FileNotFoundError:
        message(f"lapse: {command[0]}: there is no such program", style="red")
        return _NOT_FOUND
    except OSError as error:
        message(f"lapse: {command[0]}: {error.strerror}", style="red")
        return _NOT_RUN
    _pass_signals_on(child)
    lease = BusyLease(place, SystemClock())
    keeping = asyncio.create_task(lease.keep(most))
    try:
        code = await child.wait()
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await lease.end()
    return code if code >= 0 else _BY_SIGNAL - code


def _pass_signals_on(child: asyncio.subprocess.Process) -> None:
    loop = asyncio.get_running_loop()

    def send(number: signal.Signals) -> None:
        if number in _FROM_THE_KEYBOARD and _has_the_terminal():
            return  # the terminal has sent it to the child as well
        with suppress(ProcessLookupError):
            child.send_signal(number)

    for number in _PASSED_ON:
        loop.add_signal_handler(number, send, number)


def _has_the_terminal() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False


class BusyLease:
    """The lease of one run."""

    def __init__(self, place: BusyWorkspace, clock: Clock) -> None:
        """Hold none yet."""
        self._place, self._clock = place, clock
        self._id: str | None = None
        self._limit: float | None = None
        """How long the server renews it."""
        self._failed = False

    async def keep(self, most: float) -> None:
        """Renew it until the time is over; say when that fails, and when it works again."""
        begun = self._clock.monotonic_ns()
        while (spent := (self._clock.monotonic_ns() - begun) / _NS) < min(most, self._limit or most):
            pause = await self._renewed()
            await self._clock.sleep(min(pause, most - spent))
        self._say("the time is over, so the workspace may lapse from now on; the command keeps running")
        await self.end()

    async def end(self) -> None:
        """Give it back, if the server can be told."""
        lease, self._id = self._id, None
        if lease is not None:
            with suppress(LeaseError):
                await asyncio.to_thread(_call, self._place, "DELETE", f"{self._place.path}/{lease}", None)

    async def _renewed(self) -> float:
        """Renew it once; return when to do so again."""
        try:
            told = await asyncio.to_thread(_call, self._place, "POST", self._place.path, {"lease": self._id})
            self._id, seconds = str(told["lease"]), float(told["lease_seconds"])
            self._limit = float(told["most_seconds"])
        except (LeaseError, KeyError, TypeError, ValueError) as error:
            if not self._failed:
                why = str(error) if isinstance(error, LeaseError) else "the answer does not come from Lapse."
                self._say(f"nothing keeps it from lapsing now: {why} The command keeps running; lapse busy tries again")
            self._failed = True
            return _AGAIN_SECONDS
        if self._failed:
            self._say("the workspace is kept from lapsing again")
        self._failed = False
        return max(0.1, seconds / _RENEWALS)

    def _say(self, text: str) -> None:
        message(f"lapse busy: workspace/{self._place.workspace}: {text}.", style="yellow")


def _call(place: BusyWorkspace, method: str, path: str, body: dict[str, Any] | None) -> Any:  # noqa: ANN401 - JSON
    """Call the server; raises `LeaseError`, which holds no token."""
    from lapse.cli.remote import connection_to
    from lapse.client.errors import TrustFileError
    from lapse.client.transport import LapseServer

    parts = urlsplit(place.server)
    try:
        connection = connection_to(LapseServer.parse(place.server), seconds=_CALL_SECONDS)
    except TrustFileError as error:
        raise LeaseError(problem=str(error).removesuffix(".")) from error
    headers = {"Authorization": f"Bearer {place.token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read(1 << 16)
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise LeaseError(problem=f"the server {parts.scheme}://{parts.netloc} cannot be reached ({why})") from error
    finally:
        connection.close()
    try:
        told = json.loads(content) if content else None
    except ValueError:
        told = None
    if answer.status >= 400:  # noqa: PLR2004 - a status code
        detail = told.get("detail") if isinstance(told, dict) else None
        raise LeaseError(problem=f"the server answers {answer.status}: {str(detail or '').removesuffix('.')}")
    return told
