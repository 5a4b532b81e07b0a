"""Signed cookies that say what they are for and until when. Pure.

Nothing is stored: every process that has the secret recognises a cookie. A cookie belongs to one host (no Domain), no
script can read it, and no other page makes a browser send it along but by a plain link. What the parts mean, and
whether they still count, is for the caller to check: a signature proves only that the cookie was made here.

Not guaranteed: that a cookie stays on its port. Browsers send it to every port of its host.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class SignedCookie:
    """Makes and recognises cookies of one name. ``purpose`` keeps cookies of one secret apart."""

    name: str
    secret: bytes
    purpose: bytes
    seconds: int
    """How long a cookie is good."""

    def issue(self, *parts: str, now_seconds: int, secure: bool = False) -> str:
        """Return the Set-Cookie field for these parts, none of which holds a dot."""
        until = now_seconds + self.seconds
        value = ".".join((*parts, str(until), self._sign(parts, until)))
        return self._field(value, self.seconds, secure=secure)

    def remove(self, *, secure: bool = False) -> str:
        """Return the Set-Cookie field that takes the cookie away; ``secure`` as it was issued."""
        return self._field("", 0, secure=secure)

    def given(self, field: str) -> Iterator[str]:
        """Give the values of this cookie in a Cookie field."""
        for part in field.split(";"):
            name, equals, value = part.strip().partition("=")
            if equals and name == self.name and len(value) <= _LONGEST:
                yield value

    def read(self, field: str) -> Iterator[tuple[tuple[str, ...], int]]:
        """Give parts and end of those in a Cookie field whose signature is right; others may be planted."""
        for value in self.given(field):
            *parts, until, signature = value.split(".") if value.count(".") else ("", "")
            if until.isascii() and until.isdigit():
                wanted = self._sign(tuple(parts), int(until))
                if hmac.compare_digest(signature.encode(), wanted.encode()):
                    yield tuple(parts), int(until)

    def _field(self, value: str, seconds: int, *, secure: bool) -> str:
        tail = "; Secure" if secure else ""
        return f"{self.name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{tail}"

    def _sign(self, parts: tuple[str, ...], until: int) -> str:
        signed = b"\0".join((self.purpose, *(part.encode() for part in parts), b"%d" % until))
        return base64.urlsafe_b64encode(hmac.digest(self.secret, signed, sha256)).decode().rstrip("=")
