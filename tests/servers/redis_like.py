"""Redis and Valkey: the same server for our purposes, told apart by their programs.

Nothing is kept on disk unless `durable` asks for it: then every write is on disk before it is answered, and both
`restart` and `kill` followed by `start` lose nothing.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, TypedDict, Unpack

from tests.servers.certificate import make_certificate
from tests.servers.errors import ServerMissingError
from tests.servers.ports import LOOPBACK, reserved_port
from tests.servers.programs import find
from tests.servers.progress import Tell, tell_stderr
from tests.servers.server import Launch, Server, private_folder, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.servers.certificate import Certificate
    from tests.servers.programs import Program


class RedisOptions(TypedDict, total=False):
    """What a private instance may be asked for."""

    requirepass: str
    tls: bool  # only TLS: the port then speaks nothing else; `Server.ca_file` is what clients trust
    maxmemory: str  # such as "4mb"; writes beyond it are refused, nothing is evicted
    replicaof: Server  # a read-only replica of that one, in step with it when the block begins
    durable: bool
    cluster: bool  # a cluster of this one node, which owns all slots
    config: Mapping[str, str]  # any other lines of redis.conf
    tell: Tell


@contextlib.contextmanager
def redis_server(**options: Unpack[RedisOptions]) -> Iterator[Server]:
    """A Redis of its own until the block ends."""
    with _redis_like("redis", options) as server:
        yield server


@contextlib.contextmanager
def valkey_server(**options: Unpack[RedisOptions]) -> Iterator[Server]:
    """A Valkey of its own until the block ends."""
    with _redis_like("valkey", options) as server:
        yield server


@contextlib.contextmanager
def _redis_like(name: str, options: RedisOptions) -> Iterator[Server]:
    tell = options.get("tell", tell_stderr)
    program = find(name, tell)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        folder = stack.enter_context(private_folder(name))
        certificate = None
        if options.get("tls"):
            _check_tls(program)
            certificate = make_certificate(folder / "tls", tell)
        lines = _config(options, folder, port=port, certificate=certificate)
        if options.get("cluster"):
            lines["cluster-port"] = str(stack.enter_context(reserved_port()))
        config = folder / "server.conf"
        config.write_text("".join(f"{word} {value}\n" for word, value in lines.items()), encoding="utf-8")
        config.chmod(0o600)
        yield stack.enter_context(running(_launch(program, config, options, port=port, certificate=certificate)))


def _check_tls(program: Program) -> None:
    if program.name == "valkey" and program.source.startswith("PyPI"):
        raise ServerMissingError("valkey with TLS", "the one from PyPI is built without it; use redis_server(tls=True)")


def _config(options: RedisOptions, folder: Path, *, port: int, certificate: Certificate | None) -> dict[str, str]:
    durable = options.get("durable", False)
    lines = {
        "bind": LOOPBACK,
        "dir": str(folder),
        "save": '""',
        "appendonly": "yes" if durable else "no",
        "appendfsync": "always",
        "maxmemory": options.get("maxmemory", "0"),
        "maxmemory-policy": "noeviction",
        "repl-diskless-sync-delay": "0",
        "port": str(port),
    }
    if certificate is not None:
        lines |= {
            "port": "0",
            "tls-port": str(port),
            "tls-cert-file": str(certificate.certificate_file),
            "tls-key-file": str(certificate.key_file),
            "tls-ca-cert-file": str(certificate.ca_file),
            "tls-auth-clients": "no",
        }
    if "requirepass" in options:
        lines["requirepass"] = f'"{options["requirepass"]}"'
    if options.get("cluster"):
        lines["cluster-enabled"] = "yes"
    primary = options.get("replicaof")
    if primary is not None:
        lines |= _replication(primary)
    return lines | dict(options.get("config", {}))


def _replication(primary: Server) -> dict[str, str]:
    lines = {"replicaof": f"{primary.host} {primary.port}"}
    if primary.password is not None:
        lines["masterauth"] = f'"{primary.password}"'
    if primary.ca_file is not None:
        lines |= {"tls-replication": "yes", "tls-ca-cert-file": str(primary.ca_file)}
    return lines


def _launch(
    program: Program, config: Path, options: RedisOptions, *, port: int, certificate: Certificate | None
) -> Launch:
    password = options.get("requirepass")
    ca_file = None if certificate is None else certificate.ca_file

    def answers() -> bool:
        return _is_ready(_Talk(port, password=password, ca_file=ca_file), options)

    login = "" if password is None else f":{password}@"
    return Launch(
        program=program,
        folder=config.parent,
        port=port,
        url=f"{'redis' if ca_file is None else 'rediss'}://{login}{LOOPBACK}:{port}/0",
        argv=[program.path, config],
        answers=answers,
        password=password,
        ca_file=ca_file,
    )


class _Talk:
    """Enough of the protocol to see whether a server is ready, so that the harness needs no driver."""

    def __init__(self, port: int, *, password: str | None, ca_file: Path | None) -> None:
        self._port, self._password, self._ca_file = port, password, ca_file

    def ask(self, *words: str) -> bytes:
        """The first piece of the answer. Raises `OSError`."""
        with socket.create_connection((LOOPBACK, self._port), timeout=2) as plain:
            if self._ca_file is None:
                return self._ask(plain, words)
            context = ssl.create_default_context(cafile=str(self._ca_file))
            with context.wrap_socket(plain, server_hostname="localhost") as encrypted:
                return self._ask(encrypted, words)

    def _ask(self, connection: socket.socket, words: tuple[str, ...]) -> bytes:
        if self._password is not None:
            connection.sendall(_command("AUTH", self._password))
            connection.recv(4096)
        connection.sendall(_command(*words))
        return connection.recv(65536)


def _command(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _is_ready(talk: _Talk, options: RedisOptions) -> bool:
    if not talk.ask("PING").startswith(b"+PONG"):
        return False
    if options.get("replicaof") is not None:
        return b"master_link_status:up" in talk.ask("INFO", "replication")
    if options.get("cluster"):
        if b"cluster_slots_assigned:0" in talk.ask("CLUSTER", "INFO"):
            talk.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        return b"cluster_state:ok" in talk.ask("CLUSTER", "INFO")
    return True
