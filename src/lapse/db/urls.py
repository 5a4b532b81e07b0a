"""URLs of stores: which kind, where, and with which options.

An unknown scheme or option is an error that lists the valid ones. A password in a URL never leaves this module except
towards a driver: `str` of a `StoreURL` and every error message show it masked. The error is the caller's own class,
which has the places ``url`` and ``problem``: the message says what the URL was for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lapse.core.duration import Duration, DurationError
from lapse.core.text import is_secret, masked_option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from lapse.core.errors import LapseError

    Refusal = type[LapseError]

ODD_CHARACTERS: Final = "write / ? # @ in a password as %2F %3F %23 %40"
_PLAIN: Final = re.compile(r"[\w./-]*")
_MOST_LISTED: Final = 12


@dataclass(frozen=True, slots=True)
class Option:
    """One query parameter of a URL. A parser raises ``ValueError`` or `DurationError`; people read ``expected``."""

    parse: Callable[[str], Any]
    default: Any
    expected: str


@dataclass(frozen=True, slots=True)
class StoreURL:
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


def take_apart(
    text: str, *, schemes: Collection[str], options_of: Callable[[str], Mapping[str, Option]], refusal: Refusal
) -> StoreURL:
    """Take a URL apart and check scheme and options; ``options_of`` is asked for a valid scheme only."""
    valid = ", ".join(f"{scheme}://" for scheme in schemes)
    if "://" not in text:
        shown = repr(text) if _PLAIN.fullmatch(text) else "given"  # other text may hold a password anywhere
        raise refusal(url=shown, problem=f"it has no scheme; expected one of {valid}")
    _check_authority(text, refusal)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise refusal(url="given", problem="it is not a URL") from None  # the cause may show the password
    # What has no scheme that could be one, such as password=x://, is no URL, and its path is all of it.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else "given"
    if parts.scheme not in schemes:
        raise refusal(url=shown, problem=f"{parts.scheme!r} is not a known scheme; expected one of {valid}")
    if parts.fragment:
        raise refusal(url=shown, problem="it has a fragment (#...); write # in a path or password as %23")
    options = _options(shown, parts, options_of(parts.scheme), refusal)
    username, password, location = _authority(parts.netloc)
    return StoreURL(parts.scheme, username, password, location, unquote(parts.path), options)


def missing_driver(error: ModuleNotFoundError, extra: str) -> str:
    """Return what to install where the driver of a store is not there; ``error`` goes on where it is about Lapse."""
    package = (error.name or "").partition(".")[0]
    if package == "lapse":
        raise error
    return f"its driver ({package}) is not installed; run pip install 'lapse[{extra}]'"


# --- parsers of options -----------------------------------------------------------------------------------------------


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a parser for a whole number within bounds, in plain digits."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not lowest <= int(text) <= highest:
            raise ValueError(text)
        return int(text)

    return parse


def positive_duration(text: str) -> Duration:
    """Parse a positive duration or never."""
    duration = Duration.parse(text)
    if duration.nanoseconds is not None and duration.nanoseconds <= 0:
        raise ValueError(text)
    return duration


def finite_duration(text: str) -> Duration:
    """Parse a positive duration that is not never."""
    duration = positive_duration(text)
    if duration.is_never:
        raise ValueError(text)
    return duration


def existing_file(text: str) -> Path:
    """Parse the path of a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise ValueError(text)
    return path


# --- inside -----------------------------------------------------------------------------------------------------------


def _check_authority(text: str, refusal: Refusal) -> None:
    scheme, _, rest = text.partition("://")
    host, *tail = re.split("(?=[/?#])", rest, maxsplit=1)
    # An @ behind the host comes from a password with an odd character; half of it would pass for a host and be shown.
    if host and "@" in "".join(tail):
        raise refusal(url=f"{scheme}://...", problem=f"it has an @ after its host; {ODD_CHARACTERS}")


def _authority(netloc: str) -> tuple[str | None, str | None, str]:
    # By hand, not by SplitResult: a list of hosts with one port is valid here, and is no valid port there.
    credentials, at, location = netloc.rpartition("@")
    if not at:
        return None, None, location
    username, colon, password = credentials.partition(":")
    return unquote(username) or None, unquote(password) if colon else None, location


def _options(shown: str, parts: SplitResult, known: Mapping[str, Option], refusal: Refusal) -> dict[str, Any]:
    values = {name: option.default for name, option in known.items()}
    seen: set[str] = set()
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            raise refusal(url=shown, problem=_unknown_option(name, parts.scheme, known, seen))
        if name in seen:
            raise refusal(url=shown, problem=f"the option {name} is given twice")
        seen.add(name)
        try:
            values[name] = known[name].parse(text)
        except (ValueError, DurationError) as error:
            given = masked_option(name, "=", text)
            problem = f"the option {given} is not valid; expected {known[name].expected}"
            raise refusal(url=shown, problem=problem) from error
    return values


def _unknown_option(name: str, scheme: str, known: Collection[str], before: Collection[str]) -> str:
    if any(map(is_secret, before)):  # then the name may be the rest of a secret that has an & in it
        return f"an option behind a secret one is not an option of {scheme}://; write & in a value as %26"
    problem = f"{name!r} is not an option of {scheme}://"
    if len(known) <= _MOST_LISTED:
        return f"{problem}; valid options: {', '.join(sorted(known)) or 'none'}"
    near = get_close_matches(name, known)
    return f"{problem}; did you mean {' or '.join(near)}?" if near else problem
