"""Responses of the proxy itself: refusals in a sentence, and the page that reloads until a workspace is up. Pure."""

from __future__ import annotations

import re
from html import escape
from http import HTTPStatus
from typing import Final

from lapse.proxy.ports import DirectResponse

_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")
_HTML: Final = ("Content-Type", "text/html; charset=utf-8")
# The page needs its own style and nothing else, whatever somebody manages to put into a name.
_POLICY: Final = ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'")
_COMMAND: Final = re.compile(r"\blapse workspaces \w+(?: NAME)?")

NOT_FOUND: Final = DirectResponse(404, "There is no workspace for you at this address.")
"""The same whether there is none or it is somebody else's: names are nobody's business."""
FOREIGN: Final = DirectResponse(403, "This request was caused by a page of another origin.")
BROKEN: Final = DirectResponse(500, "The proxy failed; its log says why.")
CUT: Final = DirectResponse(502, "The workspace ended the connection without an answer.")
UNAVAILABLE: Final = DirectResponse(503, "The proxy cannot reach its stores at the moment.", (("Retry-After", "2"),))

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{refresh}<title>{title}</title>
<style>
body {{ font: 1.05rem/1.55 system-ui, sans-serif; display: grid; place-content: center; min-height: 100vh; margin: 0;
       padding: 1rem; box-sizing: border-box; text-align: center; color: #1d222b; background: #fbfaf8 }}
main {{ max-width: 30rem; overflow-wrap: anywhere }}
i {{ display: block; width: 2.2rem; height: 2.2rem; margin: 0 auto 1.2rem; border-radius: 50%; box-sizing: border-box;
     border: .25rem solid #8a94a655; border-top-color: #d9622b; border-right-color: #d9622b }}
.said i {{ display: none }}
.busy i {{ animation: turn 1s linear infinite }}
p {{ margin: 0 0 .3rem; text-wrap: balance }}
small {{ color: #5a6474 }}
code {{ font: .9em ui-monospace, monospace; background: #8a94a622; border-radius: .25rem; padding: .1em .3em }}
@keyframes turn {{ to {{ transform: rotate(1turn) }} }}
@media (prefers-reduced-motion: reduce) {{ .busy i {{ animation: none }} }}
@media (prefers-color-scheme: dark) {{ body {{ color: #e7e9ed; background: #14171c }} small {{ color: #a0a9b8 }} }}
</style>
</head>
<body>
<main role="status" class="{kind}"><i></i><p>{text}</p><small>{note}</small></main>
</body>
</html>
"""


def failed(problem: str) -> DirectResponse:
    """Return the response for a workspace that has failed, and what its owner should know."""
    why = f" {problem}" if problem else ""
    return DirectResponse(503, f"The workspace has failed: lapse workspaces show says why.{why}")


def waiting(name: str, *, seconds: int, for_person: bool, problem: str = "") -> DirectResponse:
    """Return the response for a workspace that comes up: a page that reloads for people, a sentence for programs."""
    retry = ("Retry-After", str(seconds))
    if not for_person:
        return DirectResponse(503, "The workspace is starting; ask again in a moment.", (retry,))
    page = _PAGE.format(
        refresh=f'<meta http-equiv="refresh" content="{seconds}">\n',
        title=f"{escape(name)} is starting",
        kind="busy",
        text=f"<b>{escape(name)}</b> is starting.",
        note=f"{escape(problem)} This page reloads by itself.".strip(),
    )
    return DirectResponse(503, page, (retry, _HTML, _POLICY))


def for_person(reply: DirectResponse) -> DirectResponse:
    """Return a refusal as a page; what is a page already, or says nothing, as it is."""
    if not reply.text or _HTML in reply.headers:
        return reply
    title = f"{reply.status} {HTTPStatus(reply.status).phrase}"
    page = _PAGE.format(refresh="", title=title, kind="said", text=_with_commands(reply.text), note=title)
    return DirectResponse(reply.status, page, (*reply.headers, _HTML, _POLICY))


def _with_commands(text: str) -> str:
    return _COMMAND.sub(r"<code>\g<0></code>", escape(text))


def reply_bytes(reply: DirectResponse, *, keep: bool, with_body: bool) -> bytes:
    """Return a whole response as it is sent."""
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
