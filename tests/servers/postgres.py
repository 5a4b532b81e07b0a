"""PostgreSQL, freshly initialised, superuser `lapse`, no password, on loopback only.

Without `durable` it does not wait for the disk: a killed process loses nothing that was committed, a power cut may. As
root it runs under an unprivileged account, because it refuses to run as root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
from typing import TYPE_CHECKING

from tests.servers.cache import cache_root
from tests.servers.errors import ServerFailedError, ServerMissingError
from tests.servers.ports import LOOPBACK, reserved_port
from tests.servers.process import Account, run_command
from tests.servers.programs import find
from tests.servers.progress import Tell, tell_stderr
from tests.servers.server import Launch, Server, exchange, log_tail, private_folder, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_BODY = (196608).to_bytes(4) + b"user\0lapse\0database\0postgres\0\0"
STARTUP = (len(_BODY) + 4).to_bytes(4) + _BODY
AUTHENTICATION_OK = b"R"


@contextlib.contextmanager
def postgres_server(
    *, durable: bool = False, config: Mapping[str, str] | None = None, tell: Tell = tell_stderr
) -> Iterator[Server]:
    """A PostgreSQL of its own until the block ends; `config` holds further parameters."""
    program = find("postgres", tell)
    account = _account()
    with reserved_port() as port, private_folder("postgres", account) as folder:
        binaries = _reachable(program.path.parent, folder, account)
        data = folder / "data"
        _initialise(binaries / "initdb", data, account)
        parameters = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",
            "fsync": "on" if durable else "off",
            **(config or {}),
        }
        launch = Launch(
            program=program,
            folder=folder,
            port=port,
            url=f"postgresql://lapse@{LOOPBACK}:{port}/postgres",
            argv=[
                *(binaries / "postgres", "-D", data),
                *(word for name, value in parameters.items() for word in ("-c", f"{name}={value}")),
            ],
            answers=lambda: exchange(port, STARTUP).startswith(AUTHENTICATION_OK),
            account=account,
            stop_signal=signal.SIGINT,
            end_signal=signal.SIGINT,  # killed, it would leave its shared memory to the machine
        )
        with running(launch) as server:
            yield server


def _account() -> Account | None:
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise ServerMissingError("postgres", "it does not run as root, and there is no account 'postgres' or 'nobody'")


def _initialise(initdb: Path, data: Path, account: Account | None) -> None:
    log = data.parent / "server.log"
    argv: list[str | Path] = [
        initdb,
        "-D",
        data,
        "-U",
        "lapse",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-locale",
        "--no-sync",
    ]
    if run_command(argv, log=log, cwd=data.parent, account=account) != 0:
        raise ServerFailedError(f"postgres: initdb failed: {log_tail(log)}")


def _reachable(binaries: Path, folder: Path, account: Account | None) -> Path:
    """The binaries, or a copy of them when they lie below a folder that the account may not enter."""
    if account is None or all(parent.stat().st_mode & 0o001 for parent in binaries.parents):
        return binaries
    # From the cache all of it: the libraries of a wheel lie beside its package.
    root = cache_root().resolve()
    top = root / binaries.relative_to(root).parts[0] if binaries.is_relative_to(root) else binaries.parent
    copy = folder / "program"
    shutil.copytree(top, copy, symlinks=True, copy_function=_link_or_copy)
    copy.chmod(0o755)
    return copy / binaries.relative_to(top)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
