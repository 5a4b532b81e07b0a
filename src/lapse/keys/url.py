"""Keys URLs: which backend, where, and with which options.

An unknown scheme or option is an error that lists the valid ones. A password in a URL never leaves this module except
towards the driver: `str` of a `KeysURL` and every error message show it masked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lapse.core.duration import DurationError
from lapse.keys.errors import KeysURLError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.core.clock import Clock
    from lapse.keys.options import Option
    from lapse.keys.port import Backend

BACKENDS: Final[Mapping[str, str]] = {
    "memory": "lapse.keys.backends.memory",
    "file": "lapse.keys.backends.file",
    "redis": "lapse.keys.backends.redis",
    "rediss": "lapse.keys.backends.redis",
    "cassandra": "lapse.keys.backends.cassandra",
    "dynamodb": "lapse.keys.backends.dynamodb",
}
"""Scheme to module. A module is imported only when its scheme is used, so that drivers stay optional. It provides
``OPTIONS``, ``open_backend(url, clock)`` and ``init_store(url, clock)``, which says in a sentence what it made."""


@dataclass(frozen=True, slots=True)
class KeysURL:
    """A URL taken apart, its options parsed."""

    scheme: str
    username: str | None
    password: str | None = field(repr=False)
    location: str
    """Host part, without credentials: ``host:port`` or several of them."""
    path: str
    """Decoded path, with its leading slash."""
    options: Mapping[str, Any]

    def __str__(self) -> str:
        """Print the URL without credentials and options: for people."""
        return f"{self.scheme}://{self.location}{self.path}"


def parse_url(text: str) -> KeysURL:
    """Take a URL apart and check scheme and options; imports the backend's module, opens nothing."""
    if "://" not in text:
        raise KeysURLError(
            url=repr(_without_credentials(text)), problem=f"it has no scheme; expected one of {_schemes()}"
        )
    _check_authority(text)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise KeysURLError(url="given", problem="it is not a URL") from None  # the cause may show the password
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme not in BACKENDS:
        raise KeysURLError(url=shown, problem=f"{parts.scheme!r} is no known scheme; expected one of {_schemes()}")
    if parts.fragment:
        raise KeysURLError(url=shown, problem="it has a fragment (#...); write # in a path or password as %23")
    options = _options(shown, parts, _module(parts.scheme).OPTIONS)
    username, password, location = _authority(parts.netloc)
    return KeysURL(parts.scheme, username, password, location, unquote(parts.path), options)


def open_backend(text: str, clock: Clock) -> Backend:
    """Open the backend that a URL names."""
    url = parse_url(text)
    backend: Backend = _module(url.scheme).open_backend(url, clock)
    if not url.options.get("cache"):
        return backend
    return _cached(backend, url, clock)


def _cached(backend: Any, url: KeysURL, clock: Clock) -> Backend:  # noqa: ANN401 - a NetworkBackend: only those have the option
    from lapse.keys.cache import CachedBackend

    return CachedBackend(backend, size=url.options["cache"], max_age=url.options["cache_max_age"], clock=clock)


def init_store(text: str, clock: Clock) -> str:
    """Make what the backend of a URL needs before it is opened (a schema, a table), and say what was made."""
    url = parse_url(text)
    said: str = _module(url.scheme).init_store(url, clock)
    return said


def _module(scheme: str) -> Any:  # noqa: ANN401 - a module with the names that `BACKENDS` lists
    try:
        return import_module(BACKENDS[scheme])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "lapse":
            raise
        extra = BACKENDS[scheme].rpartition(".")[2]
        problem = f"its driver ({error.name}) is not installed; run pip install 'lapse[{extra}]'"
        raise KeysURLError(url=f"{scheme}://...", problem=problem) from error


def _check_authority(text: str) -> None:
    scheme, _, rest = text.partition("://")
    host, *tail = re.split("(?=[/?#])", rest, maxsplit=1)
    # An @ behind the host comes from a password with an odd character; half of it would pass for a host and be shown.
    if host and "@" in "".join(tail):
        problem = "it has an @ after its host; write / ? # @ in a password as %2F %3F %23 %40"
        raise KeysURLError(url=f"{scheme}://...", problem=problem)


def _authority(netloc: str) -> tuple[str | None, str | None, str]:
    # By hand, not by SplitResult: a list of hosts with one port is valid here, and is no valid port there.
    credentials, at, location = netloc.rpartition("@")
    if not at:
        return None, None, location
    username, colon, password = credentials.partition(":")
    return unquote(username) or None, unquote(password) if colon else None, location


def _options(shown: str, parts: SplitResult, known: Mapping[str, Option]) -> dict[str, Any]:
    values = {name: option.default for name, option in known.items()}
    seen: set[str] = set()
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            valid = ", ".join(sorted(known)) or "none"
            raise KeysURLError(url=shown, problem=f"{name!r} is no option of {parts.scheme}://; valid options: {valid}")
        if name in seen:
            raise KeysURLError(url=shown, problem=f"the option {name} is given twice")
        seen.add(name)
        try:
            values[name] = known[name].parse(text)
        except (ValueError, DurationError) as error:
            problem = f"the option {name}={text} is not valid; expected {known[name].expected}"
            raise KeysURLError(url=shown, problem=problem) from error
    return values


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in BACKENDS)


def _without_credentials(text: str) -> str:
    return text.rpartition("@")[2]
