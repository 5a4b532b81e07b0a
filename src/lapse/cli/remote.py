"""Servers that commands ask, and the tokens for them.

A command asks a server if ``--server`` names one, or ``LAPSE_SERVER`` does and no flag names another place. Its token
is the first of these: ``LAPSE_TOKEN``; what ``lapse login`` has kept; and for the ``lapse up`` of this user on this
machine the owner's token, in its state folder.

The certificate of a server with TLS is believed if it is the very one that the ``lapse up`` of this user on this
machine has noted; or by the authorities that ``LAPSE_CA_FILE`` names, or that ``lapse login --ca-file`` has kept for
the server; or by those that the machine believes. A program of a workspace is told by ``LAPSE_SERVER_CERTIFICATE``
which one its server shows.

Tokens are kept by server in ``credentials.json`` beside the user's settings. Guarantees: the file has mode 0600 from
its first moment and is replaced as a whole; of two commands that change it at once both count; one that others can
read, or that is not this user's, is refused and not repaired, because somebody may have read it. The owner's token is
sent only where a program of this user, or of root, listens; where that cannot be told, it is not sent. No message holds
a token.

Not guaranteed: that a token is safe from programs of the same user, or from one that begins to listen between the look
and the request.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
from msgspec import Struct

from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterator
    from http.client import HTTPConnection

    from lapse.cli.flags import Flags
    from lapse.client import AsyncClient
    from lapse.client.transport import LapseServer
    from lapse.engine.view import ViewPage
    from lapse.settings import Settings

T = TypeVar("T")

SERVER: Final = "LAPSE_SERVER"
TOKEN: Final = "LAPSE_TOKEN"  # noqa: S105 - the name of a variable, not a token
CA_FILE: Final = "LAPSE_CA_FILE"
SERVER_CERTIFICATE: Final = "LAPSE_SERVER_CERTIFICATE"
FILE_NAME: Final = "credentials.json"
_TOKEN_INVALID: Final = "TokenInvalidError"  # noqa: S105 - the code of an error, not a token
_FORM: Final = 1
_MOST_BYTES: Final = 1 << 20
_PLACES: Final = frozenset(
    {"state_dir", "database_url", "workspaces_url", "activity_url", "kube_config", "kube_context", "lease_namespace"}
)
_PAGE: Final = 500
_LISTENS: Final = "0A"
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LOCALHOST: Final = ("127.0.0.1", "::1")
_WORD: Final = 4


class OtherFlagsError(UsageError):
    """{flags} cannot be given with --server: what they say is decided by the server. Leave them or --server out.

    LAPSE_SERVER counts as --server, unless another flag names a place of this machine, as --state-dir does.
    """


class NoTokenError(UsageError):
    """There is no token for {server}. Log in with lapse login {server}, or set LAPSE_TOKEN."""


class TokenRefusedError(LapseError):
    """{server} does not know {which}, or it was revoked. {advice}."""


class OwnerTokenNotSentError(LapseError):
    """The owner's token was not sent to {server}: {problem}. {advice}."""


class LoginFileError(LapseError):
    """The credentials {path} cannot be used: {problem}."""


class StoredToken(Struct, frozen=True, omit_defaults=True):
    """A token for one server, and whose certificates are believed there."""

    token: str
    ca_file: str = ""
    """The file with the authority; empty: as everywhere."""


class Credentials(Struct, frozen=True):
    """What is kept in the file."""

    form: int = _FORM
    servers: dict[str, StoredToken] = {}


class CredentialsFile:
    """The tokens that ``lapse login`` keeps."""

    def __init__(self, folder: Path) -> None:
        """Use the file in a folder; nothing is read or made yet."""
        self.path = folder / FILE_NAME

    def tokens(self) -> dict[str, str]:
        """Return the tokens by server; raises `LoginFileError`."""
        return {server: one.token for server, one in self._read().servers.items()}

    def ca_file(self, server: LapseServer) -> str:
        """Return the file with the authority of a server; empty where none was named."""
        kept = self._read().servers.get(str(server))
        return "" if kept is None else kept.ca_file

    def keep(self, server: LapseServer, token: str, *, ca_file: str = "") -> None:
        """Keep a token instead of the one before."""
        with self._alone():
            self._write({**self._read().servers, str(server): StoredToken(token, ca_file)})

    def forget(self, server: LapseServer) -> bool:
        """Remove the token for a server; return whether there was one."""
        if not self.path.parent.is_dir():
            return False
        with self._alone():
            servers = dict(self._read().servers)
            was_kept = servers.pop(str(server), None) is not None
            if was_kept:
                self._write(servers)
            return was_kept

    # --- inside ------------------------------------------------------------------------------------------------------

    def _read(self) -> Credentials:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return Credentials()
        except OSError as error:
            raise self._error(error.strerror or "unknown reason") from error
        with os.fdopen(descriptor, "rb") as file:
            self._demand_private(os.fstat(descriptor))
            content = file.read(_MOST_BYTES)
        try:
            found = msgspec.json.decode(content, type=Credentials)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._error("it has another form than expected; remove it, and log in again") from error
        if found.form != _FORM:
            raise self._error(f"its form is {found.form}, and this Lapse knows {_FORM}")
        return found

    def _demand_private(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise self._error("it is no file of this user; remove it, and log in again")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            advice = "revoke its tokens with lapse tokens revoke, remove it, and log in again"
            raise self._error(f"other users can read or change it (mode {found.st_mode & 0o777:o}); {advice}")

    def _write(self, servers: dict[str, StoredToken]) -> None:
        fresh = self.path.with_name(f"{FILE_NAME}.{os.getpid()}")
        try:
            fresh.unlink(missing_ok=True)  # of a process that was killed
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(Credentials(servers=servers)), indent=2) + b"\n")
                file.flush()
                os.fsync(descriptor)
            fresh.replace(self.path)
        except OSError as error:
            raise self._error(error.strerror or "unknown reason") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Enter a block in which no other command changes the file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._error(error.strerror or "unknown reason") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _error(self, problem: str) -> LoginFileError:
        return LoginFileError(path=self.path, problem=problem)


# --- which server, with which token -----------------------------------------------------------------------------------


def client_at(flags: Flags, *, cluster: bool = False) -> AsyncClient | None:
    """Return what asks the server that flags or environment name; None where another place is meant."""
    from lapse.client import AsyncClient
    from lapse.client.transport import LapseServer

    named = flags.asks_server
    if named is None and (cluster or not _PLACES.isdisjoint(flags.given)):
        return None
    named = named or os.environ.get(SERVER)
    if not named:
        return None
    others = [f"--{key.replace('_', '-')}" for key in flags.given if key not in {"state_dir", *flags.for_server}]
    if cluster or others:
        raise OtherFlagsError(flags=" and ".join([*others, *(["--cluster"] if cluster else [])]))
    return AsyncClient(named, token_for(named, flags), tls=trust_for(LapseServer.parse(named)))


def ask_server(client: AsyncClient, asked: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Wait for one call and return what it returns; where the token is refused, tell which one that was."""
    from lapse.cli.context import run_through

    try:
        return run_through(asked(client))
    except LapseError as error:
        refused = _refused(client.server) if error.code == _TOKEN_INVALID else None
        if refused is None:
            raise
        raise refused from error


def _refused(server: LapseServer) -> TokenRefusedError | None:
    """Return what tells which token a server has refused, and what to do; None for the owner's."""
    from lapse.settings import own_folder

    if os.environ.get(TOKEN) and _is_meant(server):
        return TokenRefusedError(
            server=server, which=f"the token in {TOKEN}", advice="Set it to another one, or unset it"
        )
    if str(server) not in CredentialsFile(own_folder()).tokens():
        return None
    kept, advice = "the token that lapse login has kept", f"Log in again with lapse login {server}"
    return TokenRefusedError(server=server, which=kept, advice=advice)


async def read_pages(
    page: Callable[..., Awaitable[ViewPage[T]]], *, limit: int, after: str | None = None
) -> ViewPage[T]:
    """Return the first ``limit`` items of a list, 0 for all; ``page`` takes ``limit`` and ``after`` of one page."""
    from lapse.engine.view import ViewPage

    items: list[T] = []
    while True:
        size = min(limit - len(items), _PAGE) if limit else _PAGE
        found = await page(limit=size, after=after)
        items += found.items
        after = found.next
        if after is None or (limit and len(items) >= limit):
            return ViewPage(items, after)


def token_for(named: str, flags: Flags) -> str:
    """Return the token for a server; raises `NoTokenError`, and what its file raises.

    Where no program of this machine listens, a token would not help: that is a `ServerUnreachableError`.
    """
    from lapse.client.transport import LapseServer
    from lapse.settings import own_folder

    server, own = LapseServer.parse(named), os.environ.get(TOKEN)
    if own and _is_meant(server):
        return own
    kept = CredentialsFile(own_folder()).tokens().get(str(server)) or _owner_token(server, flags)
    if kept is None:
        _demand_listener(server)
        raise NoTokenError(server=server)
    return kept


def _is_meant(server: LapseServer) -> bool:
    """Whether ``LAPSE_TOKEN`` is for a server: not if ``LAPSE_SERVER`` names another one."""
    from lapse.client.transport import LapseServer

    usual = os.environ.get(SERVER)
    return not usual or LapseServer.parse(usual) == server


def _owner_token(server: LapseServer, flags: Flags) -> str | None:
    """Return the owner's token, if the server is the ``lapse up`` of this user; None otherwise.

    Its state folder is the one that it has noted itself, or that of the settings if these have its port. Raises what
    `demand_own_program` raises.
    """
    from lapse.settings import own_folder
    from lapse.web.auth.running import noted_folder
    from lapse.web.auth.tokens import find_owner_token

    if not server.is_loopback or server.prefix:
        return None
    settings = flags.load().settings
    noted = noted_folder(own_folder(), server.port)
    folders = [*([noted] if noted else []), *([settings.state_dir] if server.port == settings.http_port else [])]
    found = next((found for one in folders if (found := find_owner_token(one)) is not None), None)
    if found is not None:
        demand_own_program(server)
    return found


def trust_for(server: LapseServer) -> ssl.SSLContext | None:
    """Return whose certificates are believed at a server; None: as the machine has it. Raises `TrustFileError`."""
    from lapse.client.transport import trust_authority, trust_certificate
    from lapse.settings import own_folder

    if server.scheme != "https":
        return None
    shown = _noted_certificate(server) or os.environ.get(SERVER_CERTIFICATE)
    if shown and server.is_loopback:
        return trust_certificate(Path(shown))
    file = os.environ.get(CA_FILE) or CredentialsFile(own_folder()).ca_file(server)
    return trust_authority(Path(file).expanduser()) if file else None


def _noted_certificate(server: LapseServer) -> Path | None:
    from lapse.settings import own_folder
    from lapse.web.auth.running import noted_server

    noted = noted_server(own_folder(), server.port) if server.is_loopback else None
    return None if noted is None else noted.certificate


def connection_to(server: LapseServer, *, seconds: float) -> HTTPConnection:
    """Return a connection for one call, not open yet; raises `TrustFileError`."""
    from http.client import HTTPConnection, HTTPSConnection

    if server.scheme == "http":
        return HTTPConnection(server.host, server.port, timeout=seconds)
    return HTTPSConnection(server.host, server.port, timeout=seconds, context=trust_for(server))


def server_of(state_dir: Path) -> str | None:
    """Return the ``lapse up`` of this user or of root that serves a state folder; None where none is known."""
    from lapse.settings import own_folder
    from lapse.web.auth.running import noted_ports, noted_server

    host, folder = _LOCALHOST[0], own_folder()
    for port in noted_ports(folder, state_dir):
        noted = noted_server(folder, port)
        if noted is not None and _is_own(listeners_on(host, port)):
            return f"{'http' if noted.certificate is None else 'https'}://{host}:{port}"
    return None


def server_at(settings: Settings) -> LapseServer:
    """Return where the ``lapse up`` of these settings listens: with TLS if it has noted so, or if they say so."""
    from lapse.client.transport import LapseServer
    from lapse.settings import own_folder
    from lapse.web.auth.running import noted_server

    noted = noted_server(own_folder(), settings.http_port)
    is_noted = noted is not None and noted.folder == settings.state_dir.absolute()
    certificate = noted.certificate if noted is not None and is_noted else settings.http_tls_certificate
    anywhere = settings.http_host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound
    host = "localhost" if anywhere else settings.http_host
    return LapseServer("https" if certificate else "http", host, settings.http_port)


def demand_own_program(server: LapseServer) -> None:
    """Refuse to give the owner's token to a server of this machine, unless a program of this user or of root listens.

    Raises `OwnerTokenNotSentError`, and `ServerUnreachableError` where no program listens.
    """
    users = _demand_listener(server)
    if users is None:
        problem = "this system does not tell whose program listens there"
        advice = f"Log in with lapse login {server}, or use the link that lapse up prints"
        raise OwnerTokenNotSentError(server=server, problem=problem, advice=advice)
    if not _is_own(users):
        problem = "a program of another user listens there"
        advice = "Start lapse up on another port, and name that one"
        raise OwnerTokenNotSentError(server=server, problem=problem, advice=advice)


def _is_own(users: set[int] | None) -> bool:
    """Whether programs listen, and none of another user than this one and root."""
    return users is not None and bool(users) and users <= {os.geteuid(), 0}


def _demand_listener(server: LapseServer) -> set[int] | None:
    """Return what `listeners_on` does for a server of this machine, None for another; raises where nobody listens."""
    from lapse.client.errors import ServerUnreachableError

    users = listeners_on(server.host, server.port) if server.is_loopback else None
    if users is not None and not users:
        raise ServerUnreachableError(server=server, problem="no program listens there")
    return users


def listeners_on(host: str, port: int) -> set[int] | None:
    """Return the users whose programs get what is sent to a port of this machine; None where that cannot be told.

    The system gives a connection to the program that listens on its very address, and only if there is none to one that
    listens on every address. A name other than localhost can be any address, so all that listen on the port count.
    """
    rows = _listening(port)
    if rows is None:
        return None
    try:
        meant = [ip_address(one) for one in (_LOCALHOST if host == "localhost" else (host,))]
    except ValueError:
        return {user for _, user in rows}
    found: set[int] = set()
    for address in map(_plain, meant):
        everywhere = {IPv6Address(0), *([IPv4Address(0)] if isinstance(address, IPv4Address) else [])}
        exact = {user for one, user in rows if one == address}
        found |= exact or {user for one, user in rows if one in everywhere}
    return found


def _listening(port: int) -> list[tuple[IPv4Address | IPv6Address, int]] | None:
    """Return address and user of all programs that listen on a port; None where the system does not tell them all."""
    found: list[tuple[IPv4Address | IPv6Address, int]] = []
    for number, table in enumerate(map(Path, _TABLES)):
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            if not number:
                return None
            continue  # a system without IPv6
        except OSError:
            return None
        for fields in map(str.split, lines):
            address, _, on = fields[1].partition(":")
            if fields[3] == _LISTENS and int(on, 16) == port:
                found.append((_address(address), int(fields[7])))
    return found


def _address(text: str) -> IPv4Address | IPv6Address:
    """Read an address as the kernel prints it: in words of four bytes, each in the byte order of the machine."""
    raw = bytes.fromhex(text)
    words = (raw[at : at + _WORD] for at in range(0, len(raw), _WORD))
    return _plain(ip_address(b"".join(int.from_bytes(one).to_bytes(_WORD, sys.byteorder) for one in words)))


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    return getattr(address, "ipv4_mapped", None) or address
