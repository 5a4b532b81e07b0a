"""Text from data, made fit for a terminal: nothing in it can move the cursor, set colours or answer for the user."""

from __future__ import annotations


def printable(text: str, *, keep: str = "") -> str:
    """Return ``text`` with everything that is no visible character (control characters, bidi marks) as an escape.

    The characters in ``keep`` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
