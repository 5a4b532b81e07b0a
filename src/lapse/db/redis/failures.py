"""Failures of Redis and Valkey: the errors that a user wants raised, and what a driver's error means, in plain words.

A domain has errors of its own, which say what its callers may believe. They are handed down (`Errors`), not translated
on the way up: the driver's error stays the direct ``__cause__``, and an exchange, which is the hot path, has no layer
more. The server's own texts are not passed on: they may name keys, and key names can be secrets. Certain is that a
command was not applied when the server answered it with an error; a lost connection and a missing answer say nothing.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from redis import exceptions as driver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.errors import LapseError

_TOO_OLD: Final = "it lacks a command that is needed; Redis 7.0 or Valkey 7.2 is the oldest that will do"
_CLUSTER: Final = (
    "it is part of a Redis Cluster and holds only some of the keys; Lapse talks to one server, so name one "
    "that is not in a cluster, or a proxy that hides the cluster"
)
_FORBIDDEN: Final = "its access rules do not let this user"
_COMMAND: Final = re.compile(r"'([a-z|]+)' command")

_BY_CODE: Final = {
    "OOM": "the server is out of memory (maxmemory); nothing was written",
    "READONLY": "the server is a read-only replica; name the primary",
    "LOADING": "the server is still loading its data; try again in a moment",
    "MASTERDOWN": "the server is a replica that lost its primary",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write asks for, and takes no writes",
    "MISCONF": "the server cannot save its data to disk, and takes no writes",
    "BUSY": "the server is busy with a long script of another client",
    "NOAUTH": "the server wants a password, and the URL has none",
    "WRONGPASS": "the server refused the user name or the password",
}
_MISFITS: Final = {
    "MOVED": _CLUSTER,
    "ASK": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "TRYAGAIN": _CLUSTER,
    "CLUSTERDOWN": _CLUSTER,
}
# What the server has no code for.
_MISFIT_TEXTS: Final = {
    "unknown command": _TOO_OLD,
    "Unknown Redis command": _TOO_OLD,
    "Unknown command called from script": _TOO_OLD,
    "DB index is out of range": "it has no database of this number",
}
_TEXTS: Final = {"max number of clients": "the server has no room for more clients (maxclients)"}


@dataclass(frozen=True, slots=True)
class Errors:
    """Four classes of errors. All but ``closed`` are called with the places ``backend`` and ``problem``."""

    unavailable: type[LapseError]
    """Nothing was done."""
    outcome_unknown: type[LapseError]
    """A write was sent, and no answer came."""
    misfit: type[LapseError]
    """The server is there, and is not what is needed."""
    closed: type[LapseError]
    """The user closed it; takes no places."""
    foreign: str
    """What is wrong, and what to do, when a name that is used here holds something else; the problem of a misfit."""


def refused(error: driver.RedisError, backend: str, errors: Errors, *, in_script: bool = False) -> LapseError:
    """Translate an error that the server answered with: what it was asked was not done.

    Except that a script which writes can be stopped after its first write, when its user's rights are taken away while
    a store is open.
    """
    code, text = _code(error), str(error)
    if in_script and code == "ERR" and "script" in text:
        return errors.outcome_unknown(backend=backend, problem="the server stopped the script, perhaps halfway")
    misfit = errors.foreign if code == "WRONGTYPE" else _MISFITS.get(code) or _found(_MISFIT_TEXTS, text)
    if misfit:
        return errors.misfit(backend=backend, problem=misfit)
    problem = _not_permitted(text) if code == "NOPERM" else _BY_CODE.get(code) or _found(_TEXTS, text)
    return errors.unavailable(backend=backend, problem=problem or f"the server answered with {code or 'an error'}")


def impossible(command: bytes, reason: bytes, backend: str, errors: Errors) -> LapseError:
    """Say that a command which the scripts need cannot be used here."""
    if reason.startswith(b"ERR Unknown"):
        return errors.misfit(backend=backend, problem=_TOO_OLD)
    problem = f"{_FORBIDDEN} run {command.decode()} on the keys that are used here"
    return errors.unavailable(backend=backend, problem=problem)


def unreachable(error: BaseException) -> str:
    """Say why no connection came about."""
    cause = next((cause for cause in _chain(error) if isinstance(cause, OSError)), None)
    match cause:
        case ssl.SSLCertVerificationError():
            problem = f"its certificate cannot be trusted ({cause.verify_message}); name the authority with ?ca=FILE"
        case ssl.SSLError():
            problem = f"no TLS connection came about ({cause.reason}); redis:// is for servers without TLS"
        case socket.gaierror():
            problem = f"its host name cannot be resolved ({cause.strerror})"
        case ConnectionRefusedError():
            problem = "no server listens there (connection refused)"
        case None | ConnectionResetError():
            problem = "it does not answer like Redis; if this is a TLS port, write rediss://"
        case _:
            problem = f"no connection came about ({cause.strerror or 'no address of the host answers'})"
    return problem


def is_answer(error: BaseException) -> bool:
    """Whether the server itself said this, so that nothing was done."""
    return isinstance(error, driver.RedisError) and (
        isinstance(error, driver.ResponseError) or error.status_code is not None
    )


def _code(error: driver.RedisError) -> str:
    if error.status_code:
        return error.status_code
    first = str(error).partition(" ")[0]  # what the driver has no class for
    return first if first.isupper() else ""


def _found(problems: Mapping[str, str], text: str) -> str | None:
    return next((problem for part, problem in problems.items() if part in text), None)


def _not_permitted(text: str) -> str:
    command = _COMMAND.search(text)
    return f"{_FORBIDDEN} {f'run {command[1].upper()}' if command else 'use the keys that are needed here'}"


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
