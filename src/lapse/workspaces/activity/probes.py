"""Probes: asks the programs of this machine whether they work, where people want that to count as activity.

A workspace may have a probe: ``jupyter``, or a path on its port that answers ``{"has_activity": true}`` or
``{"last_activity": TIME}`` (RFC 3339, or Unix seconds). What a program answers goes where every access goes, to
``last_access_at``; that it has answered, or why not, goes beside it. The decision is made elsewhere, by the row
(`lapse.workspaces.expiry`): a program that does not answer is not known to be idle.

Only those are asked whose time is over, and only by the process that runs them: they listen on loopback. Each has
`ANSWER_SECONDS`, and `AT_ONCE` are asked at the same time.

Not guaranteed: that a program tells the truth, or that it does not begin to work right after its answer.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lapse.core.decision import Due
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp
from lapse.workspaces.expiry import standby_by_row
from lapse.workspaces.model import JUPYTER, LARGEST_PAGE, Ms, ProbeAnswer
from lapse.workspaces.runtime.port import is_at
from lapse.workspaces.runtime.program import HOST
from lapse.workspaces.tickets import FIELD as SECRET_FIELD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from lapse.core.clock import Clock
    from lapse.workspaces.model import CheckPlace, Workspace, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

    Fetch = Callable[["Reach", str], Awaitable[bytes]]

SOURCE: Final = "probe"
"""The signal, as `lapse_signal_up` names it."""
INTERVAL_SECONDS: Final = 20.0
ANSWER_SECONDS: Final = 5.0
AT_ONCE: Final = 16
_LARGEST_ANSWER: Final = 1 << 20
_MS: Final = 1_000_000
_OK: Final = "200"
_STATUS_PATH: Final = "/api/status"
_KERNELS_PATH: Final = "/api/kernels?no_track_activity=1"
"""Without its argument this question would be activity itself."""
_log = get_logger("lapse.workspaces.activity.probes")


class ProbeFailedError(LapseError):
    """{problem}."""


class Reach(NamedTuple):
    """How a program is reached, as the proxy reaches it: a program that knows the proxy answers nobody else."""

    port: int
    socket: str = ""
    """The path of its unix socket, which replaces the port; empty where it has none."""
    secret: str = ""
    """By which it knows who asks; empty for none."""


def by_port(workspace: Workspace) -> Reach:
    """Return how a program is reached that has nothing but its port."""
    return Reach(workspace.port)


class Prober:
    """Asks the programs of one node, a round at a time."""

    def __init__(
        self,
        store: WorkspaceStore,
        *,
        node: str,
        clock: Clock,
        signal: Callable[[bool], None] = lambda _up: None,
        reach: Callable[[Workspace], Reach] = by_port,
        fetch: Fetch | None = None,
    ) -> None:
        """Ask nobody yet. ``signal`` is told after each round whether all that were asked have answered."""
        self._store, self._node, self._clock, self._signal = store, node, clock, signal
        self._reach = reach
        self._fetch = fetch or get
        self._places = asyncio.Semaphore(AT_ONCE)

    async def round(self) -> None:
        """Ask all whose answer is needed, and write down what they said. Raises what the store raises."""
        up, after = True, None
        while page := await self._page(after):
            asked = [one for one in page if self._is_asked(one)]
            answers = dict(await asyncio.gather(*map(self._ask, asked)))
            # The access first: who sees the answer must see what it was.
            await self._store.flush_access({one: seen for one, (_, seen) in answers.items() if seen is not None})
            await self._store.probed({one: answer for one, (answer, _) in answers.items()})
            up = up and all(answer.problem is None for answer, _ in answers.values())
            after = page[-1].check_place
        self._signal(up)

    async def _page(self, after: CheckPlace | None) -> list[Workspace]:
        return list(await self._store.standby_candidates(_now(self._clock), limit=LARGEST_PAGE, after=after))

    def _is_asked(self, workspace: Workspace) -> bool:
        due = isinstance(standby_by_row(workspace, _now(self._clock)).verdict, Due)
        return due and workspace.probe is not None and is_at(workspace, self._node)

    async def _ask(self, workspace: Workspace) -> tuple[WorkspaceId, tuple[ProbeAnswer, Ms | None]]:
        """Return what one says, and when it was last at work."""
        probe = workspace.probe or ""
        async with self._places:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    seen = await ask(self._reach(workspace), probe, fetch=self._fetch, clock=self._clock)
            except ProbeFailedError as error:
                return workspace.id, (self._failed(workspace, str(error).removesuffix(".")), None)
            except TimeoutError:
                return workspace.id, (self._failed(workspace, f"no answer within {ANSWER_SECONDS:g} seconds"), None)
        if workspace.probe_error is not None:
            _log.info("probe_answered", workspace=workspace.id, workspace_name=workspace.name)
        return workspace.id, (ProbeAnswer(probe, _now(self._clock)), seen)

    def _failed(self, workspace: Workspace, problem: str) -> ProbeAnswer:
        if workspace.probe_error is None:  # once: the row tells that it lasts
            _log.warning(
                "probe_failed",
                workspace=workspace.id,
                workspace_name=workspace.name,
                problem=problem,
                effect="the workspace does not count as idle",
            )
        return ProbeAnswer(workspace.probe or "", None, problem)


async def ask(reach: Reach, probe: str, *, fetch: Fetch, clock: Clock) -> Ms | None:
    """Return when a program was last at work; None: it does not know of any work. Raises `ProbeFailedError`."""
    if probe != JUPYTER:
        return last_activity(await fetch(reach, probe), _now(clock))
    kernels = _decoded(await fetch(reach, _KERNELS_PATH))
    if not isinstance(kernels, list) or not all(isinstance(one, dict) for one in kernels):
        raise ProbeFailedError(problem=f"{_KERNELS_PATH} did not answer a list of kernels")
    if any(one.get("execution_state") in {"busy", "starting"} for one in kernels):
        return _now(clock)
    return last_activity(await fetch(reach, _STATUS_PATH), _now(clock))


def last_activity(body: bytes, now: Ms) -> Ms | None:
    """Read an answer: when there was activity, at the latest now; None: there is none."""
    answer = _decoded(body)
    has, last = (answer.get("has_activity"), answer.get("last_activity")) if isinstance(answer, dict) else (None, None)
    if not isinstance(has, bool | None) or (has is None and last is None):
        raise ProbeFailedError(problem='the answer has neither "has_activity": true or false nor "last_activity": TIME')
    if has:
        return now
    return None if last is None else Ms(min(now, _moment(last)))


def _moment(last: object) -> int:
    found = from_timestamp(last) if isinstance(last, str) else None
    if found is not None:
        return found // _MS
    if isinstance(last, int | float) and not isinstance(last, bool) and 0 < last < float("inf"):
        return int(last * 1000)
    raise ProbeFailedError(
        problem="last_activity is not a time; expected one such as 2030-01-31T12:00:00Z, or Unix seconds"
    )


def _decoded(body: bytes) -> Any:  # noqa: ANN401 - whatever a program says
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ProbeFailedError(problem="the answer is not JSON") from None


async def get(reach: Reach, path: str) -> bytes:
    """Return what a program of this machine answers to GET. The caller limits the time.

    By HTTP/1.0, whose answers end with their connection: nothing of HTTP is needed but a line and the end of the head.
    """
    fields = [f"Host: {HOST}:{reach.port}", "Accept: application/json"]
    if reach.secret:
        fields.append(f"{SECRET_FIELD}: {reach.secret}")
    try:
        async with _connected(reach) as (reader, writer):
            writer.write("\r\n".join((f"GET {path} HTTP/1.0", *fields, "", "")).encode())
            answer = await _read(reader)
    except OSError as error:
        where = "its socket" if reach.socket else f"port {reach.port}"
        raise ProbeFailedError(problem=f"{where} does not answer: {error.strerror or error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].decode("latin-1").split()
    if len(status) < 2 or not status[0].startswith("HTTP/1.") or status[1] != _OK:  # noqa: PLR2004 - version and status
        shown = status[1] if len(status) > 1 and status[1].isdigit() else "something that is not HTTP"
        raise ProbeFailedError(problem=f"GET {path.partition('?')[0]} is answered with {shown}, expected {_OK}")
    return body


@asynccontextmanager
async def _connected(reach: Reach) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if reach.socket:
        reader, writer = await asyncio.open_unix_connection(reach.socket)
    else:
        reader, writer = await asyncio.open_connection(HOST, reach.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while block := await reader.read(1 << 16):
        answer += block
        if len(answer) > _LARGEST_ANSWER:
            raise ProbeFailedError(problem=f"the answer is longer than {_LARGEST_ANSWER} bytes")
    return bytes(answer)


def _now(clock: Clock) -> Ms:
    return Ms(clock.wall_ns() // _MS)
