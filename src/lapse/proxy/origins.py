"""From where a browser may ask. Pure.

A browser sends a cookie along whoever made it send the request, and all workspaces under one suffix are the same site
to it, so that cookies know no difference between them. What tells is the origin: a request that another page caused is
refused, whatever cookie it brings. A token is not sent by a browser on its own; still a websocket with a foreign origin
is refused with it too, as nothing good sends one.

Not checked: a plain link to a workspace from elsewhere, which is how people get there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.proxy.ports import Proof

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORTS: Final = {"http": ":80", "https": ":443"}
_OWN: Final = frozenset({b"", b"same-origin", b"none"})


def is_foreign(values: Mapping[bytes, bytes], *, host: str, scheme: str, proof: Proof, upgrade: bool) -> bool:
    """Return whether a page of another origin caused this request to ``host`` (as the Host field says)."""
    origin = values.get(b"origin")
    if origin is not None:
        return (upgrade or proof is Proof.COOKIE) and not _same(origin.decode("latin-1"), f"{scheme}://{host}", scheme)
    if upgrade or proof is not Proof.COOKIE:  # a browser gives every websocket an origin, so this is none
        return False
    return values.get(b"sec-fetch-site", b"") not in _OWN and values.get(b"sec-fetch-mode") != b"navigate"


def _same(one: str, other: str, scheme: str) -> bool:
    port = _PORTS[scheme]
    return one.lower().removesuffix(port) == other.removesuffix(port)
