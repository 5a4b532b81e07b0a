"""Text that is fit to be shown: without secrets, and without characters that a terminal obeys. Pure.

`masked` hides user names, passwords and secret options of a URL: for every message, log line and listing that shows a
URL that somebody gave, as a secret may stand before the host, or in an option behind it. In doubt more is hidden than
needed. `printable` escapes what could move the cursor, set colours or answer for the user.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "***"
_SECRET: Final = re.compile(r"pass|pwd|secret|token|credential|auth|sign|(^|[_-])key$", re.IGNORECASE)

_NAMED: Final = re.compile(r"(\w+)\s*=")


def masked(text: str) -> str:
    """Return a URL with user, password and secret options hidden; other text stays as it is."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        if any(map(is_secret, _NAMED.findall(text))):  # as in host=h password=..., whose values may be quoted
            return HIDDEN
        before, at, after = text.rpartition("@")  # the last one: a password may hold others
        return f"{HIDDEN}@{after}" if at and ":" in before else text
    is_path = rest.startswith("/")  # as behind file://: it has no user
    rest, hash_sign, fragment = rest.partition("#")
    place, question, options = rest.partition("?")
    if "@" in options + fragment and not is_path:
        # The question mark may be part of a password, and what stands before it the beginning of one.
        return f"{scheme}://{HIDDEN}"
    _, at, host = place.rpartition("@")
    if at and not is_path:
        place = f"{HIDDEN}@{host}"
    shown = "&".join(masked_option(*option.partition("=")) for option in options.split("&"))
    return f"{scheme}://{place}{question}{shown}{f'#{HIDDEN}' if hash_sign else ''}"


def masked_option(name: str, equals: str, value: str) -> str:
    """Return an option of a URL, its value hidden where its name says that it is secret."""
    return f"{name}{equals}{HIDDEN if equals and is_secret(name) else value}"


def is_secret(name: str) -> bool:
    """Whether an option of this name holds a secret."""
    return _SECRET.search(unquote(name)) is not None


def printable(text: str, *, keep: str = "") -> str:
    """Return ``text`` with everything that is no visible character (control characters, bidi marks) as an escape.

    The characters in ``keep`` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
