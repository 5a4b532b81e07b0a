"""The bridge to scylla-driver: its answers arrive on a thread of its own, and are handed to the loop that waits.

One session per opened store serves every loop and thread, as the driver wants it; connecting and preparing block, so
they run in a thread. What the driver raises leaves this module as one of our errors, the driver's as its cause.

Nothing that may have been applied is sent twice: the driver's retries and speculative executions are off for writes.
A write is *not done* when no server took it; everything else that is no answer leaves its outcome unknown.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from weakref import WeakKeyDictionary, ref

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    RateLimitReached,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteTimeout,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, ResponseFuture, Session
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage
from cassandra.query import BatchStatement, BatchType, PreparedStatement, tuple_factory

from lapse.db.sqlite.forks import guard_against_forks
from lapse.keys.errors import (
    BackendClosedError,
    BackendError,
    BackendMisfitError,
    BackendUnavailableError,
    OutcomeUnknownError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence

Row = tuple[Any, ...]
T = TypeVar("T")

_NOT_TAKEN: Final = (
    NoHostAvailable,
    Unavailable,
    RateLimitReached,
    Unauthorized,
    OverloadedErrorMessage,
    IsBootstrappingErrorMessage,
    UnresolvableContactPoints,
    AuthenticationFailed,
)
"""What is raised before a server has begun to work on a request."""

_RECONNECT_SECONDS: Final = (0.25, 5.0)  # the driver's own upper end, ten minutes, is longer than any restart


@dataclass(frozen=True, slots=True)
class ContactPoints:
    """Whom to connect to, and how."""

    shown: str
    """The store for messages: nothing secret in it."""
    hosts: Sequence[str]
    port: int
    username: str | None
    password: str | None = field(repr=False)
    local_datacenter: str | None
    one_datacenter: bool
    """Whether agreement within the local datacenter is enough."""
    timeout_seconds: float
    connect_timeout_seconds: float
    tls: bool
    ca_file: str | None


class _RetryReadsOnce(FallthroughRetryPolicy):  # type: ignore[misc]  # the driver has no types
    """Send a read whose connection was lost to another server, once; never anything else, and nothing that writes."""

    def on_request_error(self, query: Any, consistency: Any, error: Any, retry_num: int) -> Any:  # noqa: ANN401 - the driver's own
        if getattr(query, "is_idempotent", False) and retry_num == 0:
            return self.RETRY_NEXT_HOST, None
        return self.RETHROW, None


@dataclass(frozen=True, slots=True)
class _Opened:
    session: Session
    prepared: Mapping[str, PreparedStatement]
    pid: int


class CassandraSession:
    """A session with prepared statements, shared by all clients; connects at the first use, and anew after a fork."""

    def __init__(self, address: ContactPoints, *, reads: Mapping[str, str], writes: Mapping[str, str]) -> None:
        """Know the statements by name; nothing is connected yet."""
        self.address = address
        self._reads, self._writes = reads, writes
        self._connecting = threading.Lock()
        self._opened: _Opened | None = None
        self._closed = False
        guard_against_forks(self)

    def become_forked(self) -> list[Any]:
        """See `lapse.db.sqlite.forks`: works on with a session of its own. A thread that is gone may have the lock."""
        self._connecting = threading.Lock()
        return [self._opened]

    @property
    def opened(self) -> _Opened | None:
        """What is connected, if it is connected in this process."""
        opened = self._opened
        return opened if opened is not None and opened.pid == os.getpid() else None

    def open(self) -> _Opened:
        """Connect unless that has been done. Blocks."""
        with self._connecting:
            if self._closed:
                raise BackendClosedError
            opened = self.opened
            if opened is None:
                session = connect(self.address)
                try:
                    opened = _Opened(session, self._prepare(session), os.getpid())
                except BaseException:
                    session.cluster.shutdown()
                    raise
                self._opened = opened
            return opened

    def close(self) -> None:
        """Disconnect for good. Blocks."""
        with self._connecting:
            opened, self._opened, self._closed = self.opened, None, True
        if opened is not None:
            opened.session.cluster.shutdown()

    def _prepare(self, session: Session) -> dict[str, PreparedStatement]:
        one = self.address.one_datacenter
        serial = ConsistencyLevel.LOCAL_SERIAL if one else ConsistencyLevel.SERIAL
        quorum = ConsistencyLevel.LOCAL_QUORUM if one else ConsistencyLevel.QUORUM
        prepared = {}
        try:
            for name, text in self._reads.items():
                prepared[name] = statement = session.prepare(text)
                # SERIAL also for reads: it finishes or discards a write whose outcome was unknown, so that "read the
                # key before you decide" is good advice. QUORUM may show the old value, and the write appear later.
                statement.consistency_level = ConsistencyLevel.LOCAL_ONE if "system." in text else serial
                statement.is_idempotent = True
            for name, text in self._writes.items():
                prepared[name] = statement = session.prepare(text)
                statement.consistency_level, statement.serial_consistency_level = quorum, serial
                statement.is_idempotent = False
        except Exception as error:
            raise explain(error, self.address.shown, writing=False) from error
        return prepared


class CassandraClient:
    """Sends statements and waits for their answers on the running loop."""

    def __init__(self, connection: CassandraSession) -> None:
        """Use a connection, which may have other clients."""
        self._connection = connection

    async def open(self) -> _Opened:
        """Connect."""
        return await asyncio.to_thread(self._connection.open)

    # The first two hand out the coroutine of the exchange as it is: one more around it would cost every operation.

    def read(self, name: str, values: Sequence[object] = ()) -> Coroutine[Any, Any, list[Row]]:
        """Send a read and return its rows."""
        return self._exchange(name, values, writing=False)

    def write(self, name: str, values: Sequence[object]) -> Coroutine[Any, Any, list[Row]]:
        """Send a conditional write and return one row: whether it was applied, then what stood in its way."""
        return self._exchange(name, values, writing=True)

    async def write_together(self, name: str, many: Iterable[Sequence[object]]) -> list[Row]:
        """Send several conditional writes to one partition as one: all are applied, or the rows in the way returned."""
        opened = self._connection.opened or await self.open()
        statement = opened.prepared[name]
        batch = BatchStatement(
            BatchType.UNLOGGED,
            consistency_level=statement.consistency_level,
            serial_consistency_level=statement.serial_consistency_level,
        )
        for values in many:
            batch.add(statement, values)
        return await self._exchange(batch, None, writing=True)

    def read_later(self, name: str, then: Callable[[list[Row]], None]) -> None:
        """Send a read without waiting; ``then`` gets its rows on the driver's thread, a failure is dropped."""
        opened = self._connection.opened
        if opened is not None:
            opened.session.execute_async(opened.prepared[name]).add_callbacks(then, _drop)

    async def _exchange(
        self, statement: str | BatchStatement, values: Sequence[object] | None, *, writing: bool
    ) -> list[Row]:
        opened = self._connection.opened or await self.open()
        try:
            prepared = opened.prepared[statement] if isinstance(statement, str) else statement
            return await self._answer(opened.session.execute_async(prepared, values))
        except Exception as error:
            raise explain(error, self._connection.address.shown, writing=writing) from error

    def _answer(self, response: ResponseFuture) -> Awaitable[list[Row]]:
        return Inbox.of_running_loop().answer(response)


class BlockingClient(CassandraClient):
    """The same for callers that wait by blocking: its coroutines never suspend, so `completed` runs them as they are.

    The background loop, the usual way of a blocking API, would add two changes of threads to every operation.
    """

    async def open(self) -> _Opened:
        """See `CassandraClient`. Blocks."""
        return self._connection.open()

    async def _answer(self, response: ResponseFuture) -> list[Row]:
        rows: list[Row] = response.result().current_rows
        return rows


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise AssertionError("a coroutine of a blocking client was suspended")


def connect(address: ContactPoints) -> Session:
    """Connect and return a session; blocks. The caller shuts ``session.cluster`` down."""
    policy = TokenAwarePolicy(
        DCAwareRoundRobinPolicy(local_dc=address.local_datacenter or ""),
        shuffle_replicas=False,  # the same coordinator for the same partition: fewer ballots that collide
    )
    try:
        cluster = Cluster(
            address.hosts,
            port=address.port,
            auth_provider=_credentials(address),
            ssl_context=_tls(address),
            connect_timeout=address.connect_timeout_seconds,
            control_connection_timeout=address.connect_timeout_seconds,
            reconnection_policy=ExponentialReconnectionPolicy(*_RECONNECT_SECONDS),
            execution_profiles={
                EXEC_PROFILE_DEFAULT: ExecutionProfile(
                    load_balancing_policy=policy,
                    retry_policy=_RetryReadsOnce(),
                    request_timeout=address.timeout_seconds,
                    row_factory=tuple_factory,
                )
            },
        )
    except Exception as error:
        raise explain(error, address.shown, writing=False) from error
    try:
        return cluster.connect()
    except Exception as error:
        cluster.shutdown()
        raise explain(error, address.shown, writing=False) from error


def _credentials(address: ContactPoints) -> PlainTextAuthProvider | None:
    if address.username is None:
        return None
    return PlainTextAuthProvider(address.username, address.password or "")


def _tls(address: ContactPoints) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=address.ca_file) if address.tls else None


# --- from the driver's thread to the waiting loop --------------------------------------------------------------------


class Inbox:
    """Where answers for one loop arrive. Those that arrive together wake the loop once: waking is a system call."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Inbox]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to a loop."""
        self._loop = ref(loop)  # weak, or the register of inboxes would keep every loop alive
        self._arrived: deque[tuple[asyncio.Future[list[Row]], list[Row] | None, Exception | None]] = deque()
        self._woken = False

    @classmethod
    def of_running_loop(cls) -> Inbox:
        """Return the inbox of the running loop."""
        loop = asyncio.get_running_loop()
        inbox = cls._of_loops.get(loop)
        if inbox is None:
            inbox = cls._of_loops[loop] = cls(loop)
        return inbox

    def answer(self, response: ResponseFuture) -> asyncio.Future[list[Row]]:
        """Return what the loop can wait for."""
        future: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()
        response.add_callbacks(self._give, self._fail, callback_args=(future,), errback_args=(future,))
        return future

    def _give(self, rows: list[Row], future: asyncio.Future[list[Row]]) -> None:
        self._arrived.append((future, rows, None))
        self._wake()

    def _fail(self, error: Exception, future: asyncio.Future[list[Row]]) -> None:
        self._arrived.append((future, None, error))
        self._wake()

    def _wake(self) -> None:
        """Have the loop empty the inbox, unless that is on its way. On the driver's thread."""
        if not self._woken:
            self._woken = True
            loop = self._loop()
            if loop is not None:
                with suppress(RuntimeError):  # that loop was closed; nobody waits any more
                    loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._woken = False  # first, so that what arrives from now on wakes the loop again
        while self._arrived:
            future, rows, error = self._arrived.popleft()
            if future.done():  # the caller was cancelled meanwhile
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(rows or [])


def _drop(error: Exception) -> None:
    """Take a failure of something nobody waits for."""


# --- errors ----------------------------------------------------------------------------------------------------------


def explain(error: Exception, shown: str, *, writing: bool) -> BackendError:
    """Return our error for one of the driver's."""
    if isinstance(error, BackendError):
        return error
    if isinstance(error, InvalidRequest):
        return BackendMisfitError(backend=shown, problem=_misfit(error, shown))
    if writing and not isinstance(error, _NOT_TAKEN):
        return OutcomeUnknownError(backend=shown, problem=_problem(error))
    return BackendUnavailableError(backend=shown, problem=_problem(error))


def _misfit(error: Exception, shown: str) -> str:
    text = str(error).lower()
    if "keyspace" in text and "exist" in text:
        return f"its keyspace does not exist; make it with: lapse keys init {shown}"
    if "table" in text or "unconfigured" in text:
        return f"its tables do not exist; make them with: lapse keys init {shown}"
    return "the server does not take the statements of this backend; Cassandra 4.0 or newer is needed"


def _problem(error: Exception) -> str:
    if isinstance(error, NoHostAvailable):
        causes = list((error.errors or {}).values())
        kinds = ", ".join(sorted({type(cause).__name__ for cause in causes}))
        told = (_told(cause) for cause in causes)
        return next(filter(None, told), f"no server could be reached ({kinds or 'none is known; check dc='})")
    return _told(error) or f"{type(error).__name__} from the server"


def _told(error: object) -> str | None:
    if isinstance(error, OSError) and "SSL" in str(error):  # the driver wraps it into an OSError of another kind
        return "TLS failed; check ssl= and ca= in the URL, and the server's certificate"
    return next((words for kind, words in _WORDS.items() if isinstance(error, kind)), None)


_SLOW: Final = "the servers did not agree in time; many callers on one partition delay each other, buckets help"
_WORDS: Final[Mapping[type[Exception], str]] = {
    AuthenticationFailed: "it refused the user name or the password",
    Unauthorized: "the user lacks a permission; it needs SELECT and MODIFY on the keyspace",
    WriteTimeout: _SLOW,
    ReadTimeout: _SLOW,
    ReadFailure: "a server could not read, perhaps because too many deleted records lie in the way",
    OperationTimedOut: "it did not answer in time",
    UnresolvableContactPoints: "none of its host names can be resolved",
    Unavailable: "too few of the servers that hold the record are up",
}
