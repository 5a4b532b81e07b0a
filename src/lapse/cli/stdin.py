"""Values from stdin, so that a secret need not stand on a command line, where every user of the machine can read it.

``-`` in place of a value reads it from stdin: all of it, without one newline at its end. On a terminal it is asked for
without showing it. Where two values are wanted, the first line is the one and the second line the other.

And a yes, from a person at a terminal, before something is done that cannot be undone.
"""

from __future__ import annotations

import sys
from getpass import getpass
from typing import Final

from lapse.core.errors import UsageError
from lapse.core.terminal import printable
from lapse.keys.errors import ValueTooLongError
from lapse.keys.validation import MAX_VALUE_BYTES

STDIN: Final = "-"
_AT_MOST: Final = 2 * (MAX_VALUE_BYTES + 1)  # two values and their newlines; so that an endless stream is no trap


class StdinNotTextError(UsageError):
    """What came from stdin is not UTF-8: it breaks at byte {position}. Encode binary data, for example as base64."""


class StdinLinesError(UsageError):
    """Two values were to be read from stdin, one line each; it has {lines}."""


def value_from(argument: str, what: str) -> str:
    """Return a value as given, or from stdin when it is ``-``."""
    if argument != STDIN:
        return argument
    if sys.stdin.isatty():
        return getpass(f"{what}: ", stream=sys.stderr)
    return _read().removesuffix("\n")


def values_from(first: str, second: str, what: tuple[str, str]) -> tuple[str, str]:
    """Return two values, each as given or from stdin."""
    if not (first == second == STDIN) or sys.stdin.isatty():
        return value_from(first, what[0]), value_from(second, what[1])
    lines = _read().removesuffix("\n").split("\n")
    if len(lines) != 2:  # noqa: PLR2004 - as many as are returned
        raise StdinLinesError(lines="one line" if len(lines) == 1 else f"{len(lines)} lines")
    return lines[0], lines[1]


def _read() -> str:
    content = sys.stdin.buffer.read(_AT_MOST + 1)
    if len(content) > _AT_MOST:
        raise ValueTooLongError(length=f"more than {_AT_MOST}", limit=MAX_VALUE_BYTES)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise StdinNotTextError(position=error.start) from None  # the cause would show the value


def says_yes(question: str, *, unasked: bool) -> bool:
    """Ask a person at a terminal, whose answer is no unless it is yes; ``unasked`` is the answer without a terminal."""
    if not sys.stdin.isatty():
        return unasked
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
