"""Answers of the house: refusals in a sentence, and the page that waits with a person until a workspace is up. Pure."""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from typing import Final

from lapse.proxy.ports import Reply

_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")
_HTML: Final = ("Content-Type", "text/html; charset=utf-8")
# The page needs its own style and nothing else, whatever somebody manages to put into a name.
_POLICY: Final = ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'")

NOT_FOUND: Final = Reply(404, "There is no workspace for you at this address.")
"""The same whether there is none or it is somebody else's: names are nobody's business."""
FOREIGN: Final = Reply(403, "This request was caused by a page of another origin.")
FAILED: Final = Reply(503, "The workspace has failed and waits for you: lapse workspaces show says why.")
BROKEN: Final = Reply(500, "The proxy failed; its log says why.")
CUT: Final = Reply(502, "The workspace ended the connection without an answer.")
UNAVAILABLE: Final = Reply(503, "The proxy cannot reach what it needs at the moment.", (("Retry-After", "2"),))

_WAITING: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="{seconds}">
<title>{name} is starting</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; display: grid; place-content: center; min-height: 90vh;
       text-align: center }}
i {{ display: block; width: 2rem; height: 2rem; margin: 0 auto 1rem; border-radius: 50%;
     border: .25rem solid color-mix(in srgb, currentcolor 20%, transparent); border-top-color: currentcolor;
     animation: turn 1s linear infinite }}
@keyframes turn {{ to {{ transform: rotate(1turn) }} }}
@media (prefers-reduced-motion: reduce) {{ i {{ animation: none }} }}
</style>
</head>
<body>
<main role="status"><i></i><p><b>{name}</b> is starting. This page goes on by itself.</p></main>
</body>
</html>
"""


def waiting(name: str, *, seconds: int, for_person: bool) -> Reply:
    """Return the answer for a workspace that comes up: a page that reloads for people, a sentence for programs."""
    retry = ("Retry-After", str(seconds))
    if not for_person:
        return Reply(503, "The workspace is starting; ask again in a moment.", (retry,))
    return Reply(503, _WAITING.format(name=escape(name), seconds=seconds), (retry, _HTML, _POLICY))


def reply_bytes(reply: Reply, *, keep: bool, with_body: bool) -> bytes:
    """Return a whole answer."""
    body = (reply.text if reply.text.endswith("\n") else f"{reply.text}\n").encode()
    fields = list(reply.headers)
    if not any(name.lower() == "content-type" for name, _ in fields):
        fields.append(_TEXT)
    fields += [
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(body))),
    ]
    if not keep:
        fields.append(("Connection", "close"))
    lines = [f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head + body if with_body else head
