"""Heads as they go on: to the workspace and back to the client. Pure.

To the workspace: no field that is for one hop only, nothing that claims to come from a proxy but what we say ourselves,
none of the house's credentials. Authorization never goes on: whose it is cannot be told from outside, and one of ours
that a workspace's program sees is a key to everything its owner has. To the client: the workspace cannot set the
house's cookie, nor one for any host but its own.

Fields are compared with underscores as dashes, because programs behind CGI-like interfaces cannot tell them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.http1.heads import CHUNKED, UNTIL_CLOSE
from lapse.workspaces.runtime.secrets import FIELD

if TYPE_CHECKING:
    from lapse.http1.heads import AnswerHead, Field, RequestHead

_HOP_BY_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"content-length"),
    }
)
_SECRET: Final = FIELD.encode("ascii")
_NOT_IN: Final = _HOP_BY_HOP | {b"host", b"authorization", b"forwarded", b"x-real-ip", b"proxy", _SECRET.lower()}
_FORWARDED: Final = b"x-forwarded-"


def request_bytes(
    head: RequestHead, *, peer: bytes, scheme: bytes, cookies: frozenset[bytes], secret: bytes = b""
) -> bytes:
    """Return a request's head for the workspace. ``cookies`` are the names of the house's own.

    ``secret`` is what the workspace's program knows the proxy by; nobody but the proxy gets to send it.
    """
    lines = [b"%b %b HTTP/1.1" % (head.method, head.target), b"Host: " + head.host]
    options = head.options
    for lower, value, line in head.fields:
        name = lower.replace(b"_", b"-") if b"_" in lower else lower
        if name in _NOT_IN or name in options or name.startswith(_FORWARDED):
            continue
        if name == b"cookie":
            kept = without_cookies(value, cookies)
            if kept:
                lines.append(b"Cookie: " + kept)
        else:
            lines.append(line)
    lines += (
        b"X-Forwarded-For: " + peer,
        b"X-Forwarded-Host: " + head.host,
        b"X-Forwarded-Proto: " + scheme,
    )
    if secret:
        lines.append(b"%b: %b" % (_SECRET, secret))
    if head.upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket")
    elif head.length == CHUNKED:
        lines.append(b"Transfer-Encoding: chunked")
    elif b"content-length" in head.values:
        lines.append(b"Content-Length: %d" % head.length)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def without_cookies(value: bytes, names: frozenset[bytes]) -> bytes:
    """Return a Cookie field without those of these names."""
    if not any(name in value for name in names):
        return value
    kept = [part for part in value.split(b";") if part.partition(b"=")[0].strip(b' \t"') not in names]
    return b";".join(kept).strip()


def answer_bytes(head: AnswerHead, *, keep: bool, chunked: bool, cookies: frozenset[bytes]) -> bytes:
    """Return an answer's head for the client; ``chunked`` if its body goes in chunks."""
    lines = _kept(head, cookies)
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif head.length not in {CHUNKED, UNTIL_CLOSE} and b"content-length" in head.values:
        lines.append(b"Content-Length: " + head.values[b"content-length"])
    if not keep:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def upgrade_bytes(head: AnswerHead, cookies: frozenset[bytes]) -> bytes:
    """Return the head of an accepted upgrade."""
    lines = _kept(head, cookies)
    lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    return b"\r\n".join(lines)


def information_bytes(head: AnswerHead, cookies: frozenset[bytes]) -> bytes:
    """Return an answer that only announces another (100 Continue)."""
    return b"\r\n".join([*_kept(head, cookies), b"\r\n"])


def _kept(head: AnswerHead, cookies: frozenset[bytes]) -> list[bytes]:
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    options = head.options
    for field in head.fields:
        if field[0] in _HOP_BY_HOP or field[0] in options:
            continue
        if field[0] == b"set-cookie":
            lines += _set_cookie(field, cookies)
        else:
            lines.append(field[2])
    return lines


def _set_cookie(field: Field, cookies: frozenset[bytes]) -> list[bytes]:
    first, *attributes = field[1].split(b";")
    if first.partition(b"=")[0].strip(b' \t"') in cookies:
        return []
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return [b"Set-Cookie: " + b";".join([first, *kept])]
