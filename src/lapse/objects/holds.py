"""Holds in the tables of the embedded store, found by the owner references of all kinds that it knows.

Everything is looked at under one cursor: in a write transaction nothing can be held between the look and the act. While
nothing in the store is held, which is so nearly always, a look costs one lookup in an empty index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.engine.safety.holds import Hold, hold_of, own_hold_of
from lapse.objects.documents import decode, encode
from lapse.objects.tables import SQL, kind_name, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    import apsw

    from lapse.core.clock import UnixNs
    from lapse.kube.resources import Kind

_ANY_HOLD: Final = SQL["is_anything_held"]
_HOLDS_OVER: Final = SQL["holds_over"]


class Holds:
    """Finds holds in the tables; ``kinds`` are those that the store knows."""

    def __init__(self, kinds: Iterable[Kind[Any]]) -> None:
        """Take from the kinds which of them follow others."""
        paths = {kind_name(kind): f"$.{'.'.join(kind.follows)}.uid" for kind in kinds if kind.follows}
        self._paths = encode(paths).decode()

    def over(self, cursor: apsw.Cursor, uids: Sequence[str], now: UnixNs) -> dict[int, Hold]:
        """Return what holds these objects at ``now``, by their places in ``uids``; see `HoldLookup`."""
        if not uids or not rows(cursor, _ANY_HOLD)[0][0]:
            return {}
        found: dict[int, Hold] = {}
        for number, is_above, text in rows(cursor, _HOLDS_OVER, (encode(list(uids)).decode(), self._paths)):
            annotations = decode(text.encode())
            hold = own_hold_of(annotations) if is_above else hold_of(annotations)
            if hold is not None and hold.active(now):
                found[number] = hold
        return found
