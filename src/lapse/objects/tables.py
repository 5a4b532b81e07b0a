"""The tables of the embedded store, inside a transaction: an object in, changed or out, and the holds on it.

Every function takes the cursor of a write transaction and leaves the tables consistent: an object points to its body in
the change log, the owners' table mirrors the owner references, and an owner that is gone while something depends on it
stands in the garbage queue. Whether a change is allowed is decided before.

`Holds` are found by the owner references of all kinds that the store knows. Everything is looked at under one cursor:
in a write transaction nothing can be held between the look and the act. While nothing in the store is held, which is so
nearly always, a look costs one lookup in an empty index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lapse.db.sqlite.database import write_rows
from lapse.db.statements import load_statements
from lapse.engine.safety.holds import HELD_DEPENDENTS, HOLD_NAMES, Hold, hold_of, own_hold_of
from lapse.kube.resources import Struct
from lapse.objects.documents import decode, encode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import apsw

    from lapse.core.clock import UnixNs
    from lapse.kube.resources import Kind, ObjectKey

SQL: Final = load_statements("lapse.objects", "embedded.sql")
NO_OWNERS: Final = "[]"
_HOLDS: Final = frozenset({*HOLD_NAMES, HELD_DEPENDENTS})
_HOLDING: Final = b"lapse.dev/h"
"""Begins each of these names."""
_TRIM_EVERY: Final = 64
_TRIM_AT_MOST: Final = 2 * _TRIM_EVERY
_TRIM_BYTES: Final = 16 * 1024 * 1024
"""These bound one piece of trimming, during which others wait; twice as many go as come, so that it keeps up."""
_INSERT: Final = SQL["insert"]
_REMOVE: Final = SQL["remove"]
_REMOVE_OWNER: Final = SQL["remove_owner"]
_LOG_REMOVALS: Final = SQL["log_removals"]
_LOGGED: Final = SQL["logged"]
_LOGGED_OWNERS: Final = SQL["logged_owners"]
_QUEUE_LOGGED: Final = SQL["queue_logged"]
_REMOVE_LOGGED: Final = SQL["remove_logged"]
_TIP: Final = SQL["tip"]
_LOG_CHANGE: Final = SQL["log_change"]
_LOG_REMOVAL: Final = SQL["log_removal"]
_QUEUE_IF_OWNER: Final = SQL["queue_if_owner"]

_ANY_HOLD: Final = SQL["is_anything_held"]
_HOLDS_OVER: Final = SQL["holds_over"]


class ObjectRow(NamedTuple):
    """Where an object is found in the tables."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ChangeRetention:
    """How much of the past is kept: for watches that resume, and for lists in pages."""

    changes: int
    bytes: int


class ObjectRecord(NamedTuple):
    """What the tables know of one object."""

    uid: str
    version: int
    size: int
    owners: str
    body: bytes


class ObjectRemoval(NamedTuple):
    """Which object is to go, in which state."""

    place: ObjectRow
    uid: str
    version: int


class _Traits(Struct, frozen=True):
    labels: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()
    creation_timestamp: str = ""


class _Body(Struct, frozen=True):
    metadata: _Traits


_traits_of: Final = msgspec.json.Decoder(_Body).decode


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()


def _hold_text(annotations: msgspec.Raw) -> str:
    """Return the annotations that hold something, as the tables keep them; '' of none."""
    if _HOLDING not in bytes(annotations):
        return ""
    found = {name: value for name, value in decode(bytes(annotations)).items() if name in _HOLDS}
    return "" if hold_of(found) is None else encode(found).decode()


def kind_name(kind: Kind[Any]) -> str:
    """Return how the tables name a kind."""
    return f"{kind.api_version}/{kind.kind}"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return a text that stands in the column of all objects that have the labels, and of few others; '' of none."""
    # One pair only, as keys of others may stand in between; the longest, because uids tell more than words.
    return max((encode({name: value})[1:-1].decode() for name, value in labels.items()), key=len, default="")


def place_of(kind: Kind[Any], key: ObjectKey) -> ObjectRow:
    """Return where the object of that key is."""
    return ObjectRow(f"{kind.api_version}/{kind.kind}", key.namespace or "", key.name)


def rows(cursor: apsw.Cursor, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """Run a statement to its end. What the rows hold is the tables' business, so they have no type."""
    return cursor.execute(sql, values).fetchall()


def next_version(cursor: apsw.Cursor) -> int:
    """Return the version of the next change; it is taken when that is written."""
    return int(rows(cursor, _TIP)[0][0]) + 1


def find(cursor: apsw.Cursor, place: ObjectRow) -> ObjectRecord | None:
    """Return one object, if it is there."""
    found = rows(cursor, SQL["find"], place)
    return ObjectRecord(*found[0]) if found else None


def is_alive(cursor: apsw.Cursor, uid: str) -> bool:
    """Tell whether an object has this uid."""
    return bool(rows(cursor, SQL["is_alive"], (uid,))[0][0])


class Tables:
    """Writes; see the module. Each returns whether there is garbage to collect now."""

    def __init__(self, retention: ChangeRetention) -> None:
        """Take how long the log is to be."""
        self._retention = retention

    def insert(self, cursor: apsw.Cursor, place: ObjectRow, *, record: ObjectRecord) -> bool | None:
        """Add an object; None when its place is taken."""
        found = _traits_of(record.body).metadata
        traits = (_text(found.labels), found.creation_timestamp, _hold_text(found.annotations))
        cursor.execute(_INSERT, (*place, record.uid, record.version, record.size, record.owners, *traits))
        if not cursor.connection.changes():
            return None
        self._log(cursor, place, version=record.version, previous=None, freed=0, body=record.body)
        return record.owners != NO_OWNERS and _add_owners(cursor, record.uid, decode(record.owners))

    def replace(self, cursor: apsw.Cursor, place: ObjectRow, *, old: ObjectRecord, new: ObjectRecord) -> bool:
        """Give an object a new body and, perhaps, other owners, or another hold."""
        found = _traits_of(new.body).metadata
        traits = (_text(found.labels), _hold_text(found.annotations))
        cursor.execute(SQL["replace"], (*place, new.version, new.size, new.owners, *traits))
        self._log(cursor, place, version=new.version, previous=old.version, freed=old.size, body=new.body)
        garbage = False
        if _HOLDING in old.body and _hold_text(_traits_of(old.body).metadata.annotations) != traits[-1]:
            cursor.execute(SQL["queue_gone_above"], (old.uid,))
            garbage = cursor.connection.changes() > 0
        if old.owners == new.owners:
            return garbage
        before, after = decode(old.owners), decode(new.owners)
        for owner in before:
            if owner not in after:
                cursor.execute(SQL["remove_owner"], (owner, old.uid))
        return _add_owners(cursor, old.uid, [owner for owner in after if owner not in before]) or garbage

    def remove(self, cursor: apsw.Cursor, place: ObjectRow, *, uid: str | None, version: int | None) -> bool | None:
        """Remove an object that is as expected; None when there is no such object."""
        removed = rows(cursor, _REMOVE, (*place, uid, version))
        if not removed:
            return None
        found_uid, found_version, size, owners = removed[0]
        if owners != NO_OWNERS:
            cursor.executemany(_REMOVE_OWNER, [(owner, found_uid) for owner in decode(owners)])
        cursor.execute(_LOG_REMOVAL, (*place, found_version, size))
        self._trim(cursor, cursor.connection.last_insert_rowid())
        cursor.execute(_QUEUE_IF_OWNER, (found_uid,))
        return cursor.connection.changes() > 0

    def remove_all(
        self, cursor: apsw.Cursor, removals: Collection[ObjectRemoval]
    ) -> tuple[Collection[ObjectRemoval], bool]:
        """Do the same with many, all of them different, at once; return which were as expected, and are gone."""
        count = write_rows(cursor, _LOG_REMOVALS, [(*one.place, one.uid, one.version) for one in removals])
        if not count:
            return (), False
        newest = cursor.connection.last_insert_rowid()
        before = (newest - count,)
        gone = removals
        if count < len(removals):
            gone = {
                ObjectRemoval(ObjectRow(*place), uid, version) for *place, uid, version in rows(cursor, _LOGGED, before)
            }
        owned = rows(cursor, _LOGGED_OWNERS, before)
        cursor.executemany(_REMOVE_OWNER, [(owner, uid) for uid, owners in owned for owner in decode(owners)])
        cursor.execute(_QUEUE_LOGGED, before)
        garbage = cursor.connection.changes() > 0
        cursor.execute(_REMOVE_LOGGED, before)
        self._trim(cursor, newest, written=count)
        return gone, garbage

    def _log(
        self, cursor: apsw.Cursor, place: ObjectRow, *, version: int, previous: int | None, freed: int, body: bytes
    ) -> None:
        cursor.execute(_LOG_CHANGE, (version, *place, previous, freed, body))
        self._trim(cursor, version)

    def _trim(self, cursor: apsw.Cursor, version: int, *, written: int = 1) -> None:
        """Forget the oldest changes when there are too many: a bounded number for each so many that were written.

        The newest one always stays: versions go on from it. A row goes when the change that replaced it goes, so every
        moment after the horizon can still be told.
        """
        for _ in range(version // _TRIM_EVERY - (version - written) // _TRIM_EVERY):
            self._trim_some(cursor, version)

    def _trim_some(self, cursor: apsw.Cursor, version: int) -> None:
        horizon, kept = rows(cursor, SQL["count_bytes"], (version,))[0]
        newest_doomed = version - max(self._retention.changes, 1)
        doomed: list[tuple[int]] = []
        freed_bytes = 0
        moved = horizon
        for number, previous, freed, removed in rows(cursor, SQL["oldest_changes"], (horizon, _TRIM_AT_MOST)):
            too_many = number <= newest_doomed or kept - freed_bytes > self._retention.bytes
            if not too_many or number == version or freed_bytes > _TRIM_BYTES:
                break
            moved = number
            freed_bytes += freed
            doomed += [(gone,) for gone in (previous, number if removed else None) if gone is not None]
        if moved != horizon:
            cursor.executemany(SQL["forget"], doomed)
            cursor.execute(SQL["move_horizon"], (moved, freed_bytes))


def _add_owners(cursor: apsw.Cursor, uid: str, owners: Iterable[str]) -> bool:
    """Note owners; queue those that do not exist, so that the dependent is looked at."""
    garbage = False
    for owner in owners:
        cursor.execute(SQL["add_owner"], (owner, uid))
        cursor.execute(SQL["queue_if_gone"], (owner,))
        garbage |= cursor.connection.changes() > 0
    return garbage


def owners_text(owners: list[str]) -> str:
    """Return owners as the tables keep them."""
    return encode(owners).decode() if owners else NO_OWNERS


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
