"""Static files of the pages: style sheet, scripts and pictures, in memory, compressed once, named by their contents.

A page refers to a file by ``url_of``, which ends in a hash of what the file holds. Browsers keep such an address for a
year, and a new release has other addresses. Files of others (htmx, idiomorph, uPlot) are as their makers released them,
with their licences beside them.

Not compressed: pages. They hold the token of their forms, and the length of a compressed answer can tell a secret.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lapse.web.api.errors import NoSuchRouteError

PREFIX: Final = "/static"
FOLDER: Final = Path(__file__).parent / "static"
_HASH_DIGITS: Final = 12
_FOR_A_YEAR: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"
_TYPES: Final = {".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    compressed: bytes
    media_type: str
    version: str

    @classmethod
    def read(cls, path: Path) -> Asset:
        """Read a file."""
        content = path.read_bytes()
        media_type = _TYPES.get(path.suffix) or guess_type(path.name)[0] or "text/plain"
        digest = sha256(content).hexdigest()[:_HASH_DIGITS]
        return cls(content, gzip.compress(content, mtime=0), media_type, digest)


@cache
def assets() -> dict[str, Asset]:
    """Return every file by its path below `FOLDER`."""
    found = (path for path in FOLDER.rglob("*") if path.is_file())
    return {path.relative_to(FOLDER).as_posix(): Asset.read(path) for path in found}


@cache
def url_of(name: str) -> str:
    """Return the address of a file in this release."""
    return f"{PREFIX}/{name}?v={assets()[name].version}"


async def serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a file, as an ASGI application that is mounted at `PREFIX`. Raises `NoSuchRouteError`."""
    request = Request(scope)
    found = assets().get(request.url.path.removeprefix(f"{PREFIX}/"))
    if found is None or request.method not in {"GET", "HEAD"}:
        raise NoSuchRouteError
    tag = f'"{found.version}"'
    headers = {"ETag": tag, "Vary": "Accept-Encoding"}
    headers["Cache-Control"] = _FOR_A_YEAR if request.query_params.get("v") == found.version else _ASK_AGAIN
    if request.headers.get("if-none-match") == tag:
        await Response(status_code=304, headers=headers)(scope, receive, send)
        return
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    body = found.compressed if is_compressed else found.content
    await Response(body, headers=headers, media_type=found.media_type)(scope, receive, send)
