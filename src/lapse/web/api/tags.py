"""Opaque tags: the ETag of a key, for If-Match.

A tag stands for the value, so a swap by tag is a swap by value: a value that was changed and changed back matches
again, and renewing the TTL does not change the tag. It is a keyed hash with a secret that stays in the state
database. An unkeyed hash would tell short values (PINs, device codes) to anyone who can guess and hash.
"""

from __future__ import annotations

import base64
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16


class Tagger:
    """Makes tags with one secret. Two servers on one state database make the same tags."""

    def __init__(self, secret: bytes) -> None:
        """Use ``secret``, 16 to 64 bytes of it."""
        self._secret = secret

    def tag(self, app_id: int, key: str, value: str) -> str:
        """Return the tag, with the quotes that HTTP wants."""
        name = key.encode()
        # Length first: without it a key's end and a value's start could be moved against each other.
        head = app_id.to_bytes(4, "big") + len(name).to_bytes(2, "big")
        digest = blake2b(
            head + name + value.encode(), digest_size=_DIGEST_BYTES, key=self._secret, person=b"lapse-etag"
        ).digest()
        return f'"{base64.urlsafe_b64encode(digest).decode().rstrip("=")}"'
