"""Exec credential plugins (client.authentication.k8s.io, v1 and v1beta1): a command that prints who we are.

The command is run when credentials are needed and none are kept, by one caller while the others wait; what it printed
is kept until it ends, or until the server refuses it. It gets no terminal and a limited time, and its whole process
group is ended after that. What it writes never becomes part of a message, because it may be the secret itself: a
message says which command failed and how, and to run it by hand.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.core.log import get_logger
from lapse.core.timestamps import read_timestamp
from lapse.kube.auth.credentials import Credential
from lapse.kube.errors import CredentialsError
from lapse.kube.resources import Json, Struct

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.kube.auth.config import Cluster, ExecConfig

EXEC_SECONDS: Final = 60.0
"""How long a command may take: it may have to talk to a distant service, but nobody is there to answer it."""
EARLY_SECONDS: Final = 10
"""Credentials are renewed so long before their end, because a request takes its time as well."""
PAUSE_SECONDS: Final = 5
"""A command is not run again sooner after it failed, or after the server refused what it printed."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.kube.auth.exec_credentials")


class _Status(Struct, frozen=True):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _Printed(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


class ExecCredentials:
    """A `lapse.kube.auth.credentials.CredentialSource` that runs a command. Belongs to one event loop."""

    def __init__(
        self,
        config: ExecConfig,
        cluster: Cluster,
        *,
        clock: Clock,
        environ: Mapping[str, str],
        timeout: float = EXEC_SECONDS,
    ) -> None:
        """Run nothing yet. The command sees ``environ`` and what the plugin adds to it."""
        self._config, self._clock, self._timeout = config, clock, timeout
        self._environ = {**environ, **config.env, "KUBERNETES_EXEC_INFO": _info(config, cluster)}
        self._running = asyncio.Lock()
        self._kept: Credential | None = None
        self._ends_ns: int | None = None
        self._failure: CredentialsError | None = None
        self._rest_until_ns = 0

    async def current(self) -> Credential:
        """See `Source`."""
        if (kept := self._good()) is not None:
            return kept
        async with self._running:
            if (kept := self._good()) is not None:
                return kept
            if self._failure is not None and self._clock.monotonic_ns() < self._rest_until_ns:
                raise self._failure
            try:
                self._kept, self._ends_ns = self._read(await self._run())
            except CredentialsError as error:
                self._failure, self._kept = error, None
                raise
            finally:
                self._rest_until_ns = self._clock.monotonic_ns() + PAUSE_SECONDS * _NS
            self._failure = None
            _log.debug("credentials_renewed", command=self._config.command)
            return self._kept

    def refused(self, credential: Credential) -> None:
        """See `Source`. Only what is kept now can be given up, and not sooner than a while after it was printed."""
        kept = self._kept
        if kept is not None and _same(kept, credential) and self._clock.monotonic_ns() >= self._rest_until_ns:
            self._kept = None

    def _good(self) -> Credential | None:
        if self._ends_ns is not None and self._clock.wall_ns() >= self._ends_ns:
            self._kept = None
        return self._kept

    async def _run(self) -> bytes:
        config = self._config
        command = _found(config.command, self._environ.get("PATH", os.defpath))
        if command is None:
            raise self._problem(f"cannot be started (No such file in the folders of PATH){_hint(config)}")
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                *config.args,
                env=self._environ,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise self._problem(f"cannot be started ({error.strerror}){_hint(config)}") from None
        printed = None
        try:
            async with asyncio.timeout(self._timeout):
                printed, _ = await process.communicate()
        except TimeoutError:
            raise self._problem(f"did not end within {self._timeout:g} s") from None
        finally:
            if printed is None:
                await _end(process)
        if process.returncode != 0:
            raise self._problem(f"ended with code {process.returncode}; run it by hand to see why")
        return printed

    def _read(self, printed: bytes) -> tuple[Credential, int | None]:
        """Return the credential and when it must be renewed."""
        try:
            found = msgspec.json.decode(printed, type=_Printed)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self._problem("printed no ExecCredential") from None
        if found.kind != "ExecCredential" or found.api_version != self._config.api_version:
            raise self._problem(f"printed no ExecCredential of {self._config.api_version}")
        status = found.status or _Status()
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise self._problem("printed a certificate without its key, or a key without its certificate")
        if not status.token and not status.client_certificate_data:
            raise self._problem("printed neither a token nor a certificate")
        if not status.token.isascii() or not status.token.isprintable() or " " in status.token:
            raise self._problem("printed a token with characters that no token has")
        pair = (status.client_certificate_data.encode(), status.client_key_data.encode())
        credential = Credential(f"Bearer {status.token}" if status.token else "", pair if any(pair) else None)
        return credential, self._renewal(status.expiration_timestamp)

    def _renewal(self, ends: str | None) -> int | None:
        if not ends:
            return None
        ends_ns, now_ns = read_timestamp(ends), self._clock.wall_ns()
        if ends_ns is None:
            raise self._problem("printed an expirationTimestamp that is not an RFC 3339 time")
        if ends_ns <= now_ns:
            raise self._problem("printed credentials that have expired already")
        early_ns = EARLY_SECONDS * _NS
        return ends_ns - early_ns if ends_ns - now_ns > 2 * early_ns else ends_ns

    def _problem(self, what: str) -> CredentialsError:
        return CredentialsError(problem=f"the credential plugin {Path(self._config.command).name} {what}")


def _found(command: str, path: str) -> str | None:
    """Return where a command is. Entries of PATH that depend on the working directory do not count."""
    if "/" in command:
        return command
    folders = [folder for folder in path.split(os.pathsep) if Path(folder).is_absolute()]
    return shutil.which(command, path=os.pathsep.join(folders)) if folders else None


def _hint(config: ExecConfig) -> str:
    return f". {config.install_hint}" if config.install_hint else ""


def _same(kept: Credential, shown: Credential) -> bool:
    """Whether the one shown is the one kept; its certificate may have been another's."""
    return kept.authorization == shown.authorization and kept.certificate in {None, shown.certificate}


def _info(config: ExecConfig, cluster: Cluster) -> str:
    spec: Json = {"interactive": False}
    if config.wants_cluster:
        ca = cluster.ca.read_bytes() if isinstance(cluster.ca, Path) else cluster.ca
        told = {
            "server": cluster.server,
            "tls-server-name": cluster.server_name,
            "insecure-skip-tls-verify": cluster.insecure or None,
            "certificate-authority-data": None if ca is None else b64encode(ca).decode(),
            "proxy-url": cluster.proxy,
            "config": cluster.exec_extension,
        }
        spec["cluster"] = {name: value for name, value in told.items() if value is not None}
    return msgspec.json.encode({"apiVersion": config.api_version, "kind": "ExecCredential", "spec": spec}).decode()


async def _end(process: Process) -> None:
    """Leave nothing behind, also when the caller was cancelled: the command may have started others."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
