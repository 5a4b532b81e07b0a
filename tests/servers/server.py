"""A running server: where it is, and what a test may do to it.

`Server` is what tests get. Those shared by a whole run have no control: a test that wants to kill, pause or restart one
starts its own. Methods block; none is meant for an event loop in use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tests.servers.errors import ServerFailedError
from tests.servers.ports import LOOPBACK
from tests.servers.process import Account, Supervised, check_interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.servers.programs import Program

START_SECONDS = 150  # Cassandra on two busy cores; on idle ones it takes five


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How one server is started, and how one sees that it answers."""

    program: Program
    folder: Path
    port: int
    url: str
    argv: Sequence[str | Path]
    answers: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    account: Account | None = None
    password: str | None = None
    ca_file: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    # What is left when the run is over is thrown away, so most need not end in order then.
    end_signal: signal.Signals = signal.SIGKILL
    log_name: str = "server.log"  # several processes of one server share the folder, each with a log of its own


@dataclass(frozen=True)
class Control:
    """The hold on a server that this process started."""

    launch: Launch
    process: Supervised


@dataclass(eq=False, kw_only=True)
class Server:
    """One server on loopback. `url` is what its usual drivers take; `keys_url` is what Lapse takes."""

    name: str
    version: str
    source: str
    host: str
    port: int
    url: str
    pid: int
    folder: Path
    log: Path
    start_seconds: float
    password: str | None = None
    ca_file: Path | None = None
    control: Control | None = field(default=None, repr=False)
    PATHS: ClassVar[tuple[str, ...]] = ("folder", "log", "ca_file")

    def keys_url(self, space: str = "lapse", *, port: int | None = None) -> str:
        """The URL for `lapse.open_keys`; `space` is a database number, keyspace or table; `port` a relay's."""
        address = f"{self.host}:{port or self.port}"
        if self.name in {"redis", "valkey"}:
            scheme = "redis" if self.ca_file is None else "rediss"
            login = "" if self.password is None else f":{self.password}@"
            return f"{scheme}://{login}{address}/{space if space.isdigit() else 0}"
        if self.name == "cassandra":
            login = "" if self.password is None else f"cassandra:{self.password}@"
            return f"cassandra://{login}{address}/{space}"
        if self.name == "dynamodb":
            return f"dynamodb://eu-west-1/{space}?endpoint=http://{address}"
        raise ValueError(f"{self.name} holds no keys: redis, valkey, cassandra and dynamodb do")

    def shared(self) -> Self:
        """The same server without the means to end it."""
        return dataclasses.replace(self, control=None)

    def to_json(self) -> dict[str, Any]:
        """Everything but the control, for another process."""
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "control"}
        return {name: str(value) if isinstance(value, Path) else value for name, value in facts.items()}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        """The reverse of `to_json`."""
        paths = {name: Path(facts[name]) for name in cls.PATHS if facts[name] is not None}
        return cls(**{**facts, **paths})

    def _held(self) -> Control:
        if self.control is None:
            raise RuntimeError(f"this {self.name} is shared by the whole run: start a private one to do this to it")
        return self.control

    def kill(self) -> None:
        """End it as a crash would; returns when it is dead."""
        self._held().process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; returns when it is gone."""
        control = self._held()
        control.process.stop(control.launch.stop_signal)

    def start(self) -> None:
        """Start it again, on the same port and folder; returns when it answers."""
        control = self._held()
        self.pid, self.start_seconds = _start(control.launch, control.process, self.log)

    def restart(self) -> None:
        """Stop it in order and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it: connections stay open and are even accepted, nothing is answered."""
        self._held().process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._held().process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Frozen inside the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def is_running(self) -> bool:
        """Whether its process is there, answering or not."""
        return self._held().process.exit_code() is None


def _start(launch: Launch, process: Supervised, log: Path) -> tuple[int, float]:
    begun = time.monotonic()
    pid = process.start()
    while not _answers(launch):
        code = process.exit_code()
        if code is not None:
            raise ServerFailedError(f"{launch.program.name} ended with code {code}: {log_tail(log)}")
        if time.monotonic() - begun > START_SECONDS:
            raise ServerFailedError(f"{launch.program.name} did not answer in {START_SECONDS} s: {log_tail(log)}")
        check_interrupted()
        time.sleep(0.02)
    return pid, round(time.monotonic() - begun, 3)


def _answers(launch: Launch) -> bool:
    try:
        return launch.answers()
    except OSError:
        return False


def log_tail(log: Path, lines: int = 20) -> str:
    """The end of a log, for an error message."""
    return "\n".join(["", *log.read_text(errors="replace").splitlines()[-lines:]])


@contextlib.contextmanager
def private_folder(name: str, account: Account | None = None) -> Iterator[Path]:
    """A new folder for one server; `running` takes over its removal."""
    folder = Path(tempfile.mkdtemp(prefix=f"lapse-{name}-"))
    try:
        if account is not None:
            shutil.chown(folder, account.uid, account.gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(launch: Launch) -> Iterator[Server]:
    """The server, answering, until the block ends. Ends it also when this process is killed."""
    program, log = launch.program, launch.folder / launch.log_name
    process = Supervised(
        launch.argv,
        log=log,
        cwd=launch.folder,
        env={**program.env, **launch.env},
        account=launch.account,
        remove=launch.folder,
        end_signal=launch.end_signal,
    )
    with process:
        pid, seconds = _start(launch, process, log)
        yield Server(
            name=program.name,
            version=program.version,
            source=program.source,
            host=LOOPBACK,
            port=launch.port,
            url=launch.url,
            pid=pid,
            folder=launch.folder,
            log=log,
            start_seconds=seconds,
            password=launch.password,
            ca_file=launch.ca_file,
            control=Control(launch, process),
        )


def exchange(port: int, request: bytes, *, then: bytes = b"", seconds: float = 2) -> bytes:
    """Send something to a port, and something more after the answer; returns the last answer. Raises `OSError`."""
    with socket.create_connection((LOOPBACK, port), timeout=seconds) as connection:
        connection.sendall(request)
        answer = connection.recv(65536)
        if then:
            connection.sendall(then)
            answer = connection.recv(65536)
        return answer
