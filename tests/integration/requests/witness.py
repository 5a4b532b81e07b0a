"""A witness of everything that happens to a store: reads its change log and its journal, and knows the rules.

It shares no code with what it watches. From the log it knows every state of every object, in the order of the commits,
also of what is long gone; from the journal, what the engine says that it ended. Told after every step what the time is,
it compares the two with the rules and raises `AssertionError` where they are broken:

- nothing lapses early: a request is ended when it is final and its TTL is over, a keeper when its mode says so;
- nothing held lapses, nor the keeper of anything held;
- whatever goes away was ended by the engine with one row in the journal, deleted by a user, or had only dead owners;
- an artifact is made once, is owned by a keeper, and never by a request; nothing has finalizers;
- a final request is not touched by us, but for its TTL annotation (and, where that decides, the word that it is wrong).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lapse.kube.resources import Json
    from lapse.objects.embedded import EmbeddedStore

SECOND = 1_000_000_000
TTL_ANNOTATION = "storage.deckhouse.io/ttl"
EXPIRES_AT = "storage.deckhouse.io/expires-at"
REQUESTS = frozenset({"VolumeCaptureRequest", "VolumeRestoreRequest", "ManifestCaptureRequest"})
KEEPER = "ObjectKeeper"
CLAIM = "PersistentVolumeClaim"
MADE_ONCE = ("snapshot-", "mcp-")
"""How the names of what our controllers make begin; the rest of each name is derived from the request's uid."""
ARTIFACTS = frozenset({"VolumeSnapshotContent", "ManifestCheckpoint", "ManifestCheckpointContentChunk"})
_NOT_FINAL = frozenset({"Pending", "Running", "Processing", "TargetsPending"})
_SECONDS = {"s": 1, "m": 60, "h": 3600}

_Place = tuple[str, str, str]


@dataclass
class Life:
    """One object as it is now, or was last."""

    place: _Place
    body: Json
    died_ns: int | None = None

    @property
    def kind(self) -> str:
        return self.place[0].rpartition("/")[2]

    @property
    def name(self) -> str:
        return self.place[2]

    @property
    def meta(self) -> Json:
        found: Json = self.body["metadata"]
        return found

    @property
    def uid(self) -> str:
        return str(self.meta["uid"])

    @property
    def status(self) -> Json:
        return self.body.get("status") or {}

    @property
    def annotations(self) -> Json:
        return self.meta.get("annotations") or {}

    @property
    def owners(self) -> list[Json]:
        return self.meta.get("ownerReferences") or []

    @property
    def final(self) -> bool:
        return is_final(self.body)

    def held(self, now: int) -> bool:
        if self.annotations.get("lapse.dev/hold", "") in {"", "false"}:
            return False
        until = self.annotations.get("lapse.dev/hold-until")
        return until is None or now < moment(until)


def is_final(body: Json) -> bool:
    for condition in (body.get("status") or {}).get("conditions", ()):
        if condition["type"] == "Ready":
            return condition["status"] == "True" or condition["reason"] not in _NOT_FINAL
    return False


def moment(text: str) -> int:
    """RFC 3339 with whole seconds, in nanoseconds."""
    return int(datetime.fromisoformat(text).timestamp()) * SECOND


def seconds(text: str) -> int | None:
    """A TTL as this test writes them; None for one that never ends or is none."""
    number, unit = text[:-1], text[-1:]
    return int(number) * _SECONDS[unit] if number.isdigit() and int(number) and unit in _SECONDS else None


@dataclass
class Witness:
    """See the module. `look` after every step."""

    store: EmbeddedStore
    request_ttl: int
    annotation_decides: bool
    alive: dict[_Place, Life] = field(default_factory=dict)
    by_uid: dict[str, Life] = field(default_factory=dict)
    user_writes: set[str] = field(default_factory=set)
    """Versions of objects that users wrote."""
    user_deletes: set[str] = field(default_factory=set)
    """Uids."""
    made_by_users: set[str] = field(default_factory=set)
    """Uids."""
    unseen: Callable[[str], Iterable[str]] = lambda _keeper: ()
    """Uids of what a keeper owns and a late cache knows nothing of: no cache can honour a hold on that."""
    made: Counter[str] = field(default_factory=Counter)
    first_death: dict[str, int] = field(default_factory=dict)
    ended: dict[str, Any] = field(default_factory=dict)
    _version: int = 0
    _row: int = 0

    def look(self, now: int) -> None:
        """Take in what happened at ``now``."""
        rows = self.store.database.read(
            "SELECT id, uid, version, outcome, time_ns FROM journal WHERE id > ?", (self._row,)
        )
        ended = {}
        for number, uid, version, outcome, time_ns in rows:
            self._row = number
            if outcome == "ended":
                assert uid not in self.ended, f"{uid} is journalled as ended twice"
                assert time_ns == now
                ended[uid] = self.ended[uid] = version
        changes = self.store.database.read(
            "SELECT version, kind, namespace, name, body FROM changes WHERE version > ? ORDER BY version",
            (self._version,),
        )
        for version, kind, namespace, name, body in changes:
            self._version = version
            place = (kind, namespace, name)
            if body is None:
                self._removed(self.alive.pop(place), ended, now)
            elif place in self.alive:
                self._changed(self.alive[place], msgspec.json.decode(body))
            else:
                self._appeared(Life(place, msgspec.json.decode(body)))
        assert not ended, f"the journal tells of endings that never were: {ended}"

    def owned(self, uid: str) -> list[Life]:
        return [life for life in self.alive.values() if any(owner["uid"] == uid for owner in life.owners)]

    def lives(self, uid: str) -> bool:
        return uid in self.by_uid and self.by_uid[uid].died_ns is None

    # --- what may happen --------------------------------------------------------------------------------------------

    def _appeared(self, life: Life) -> None:
        self.alive[life.place] = self.by_uid[life.uid] = life
        self._judge_metadata(life)
        if life.name.startswith(MADE_ONCE):
            self.made[life.name] += 1
            assert self.made[life.name] == 1, f"{life.kind} {life.name} was made again"
        if life.kind == CLAIM:
            assert life.uid in self.made_by_users, "a controller made a claim"

    def _changed(self, life: Life, new: Json) -> None:
        old, life.body = life.body, new
        self._judge_metadata(life)
        if life.kind in REQUESTS and is_final(old) and new["metadata"]["resourceVersion"] not in self.user_writes:
            assert self._may_differ(old, new), f"a final request was changed from {old} to {new}"
        if life.kind in REQUESTS and (completed := (old.get("status") or {}).get("completionTimestamp")):
            assert new["status"]["completionTimestamp"] == completed

    def _may_differ(self, old: Json, new: Json) -> bool:
        before, after = old["metadata"].get("annotations") or {}, new["metadata"].get("annotations") or {}
        told_with_it = {name: after[name] for name in (TTL_ANNOTATION, EXPIRES_AT) if name in after}
        annotated = TTL_ANNOTATION not in before and after == {**before, **told_with_it}
        if self.annotation_decides and before.get(TTL_ANNOTATION) == after.get(TTL_ANNOTATION):
            annotated = {**before, EXPIRES_AT: ""} == {**after, EXPIRES_AT: ""}  # somebody had set another TTL
        condition = new["status"]["conditions"][0]
        told = self.annotation_decides and condition["reason"] == "InvalidTTL" and before == after
        assert old["spec"] == new["spec"]
        return (annotated and old["status"] == new["status"]) or told

    def _judge_metadata(self, life: Life) -> None:
        assert "finalizers" not in life.meta, f"{life.place} has finalizers"
        owners = life.owners
        assert not any(owner["kind"] in REQUESTS for owner in owners), f"a request owns {life.place}"
        if life.name.startswith(MADE_ONCE) and life.uid not in self.made_by_users and life.kind in ARTIFACTS:
            managing = [owner["kind"] for owner in owners if owner.get("controller")]
            assert managing in ([KEEPER], []), f"{life.place} is managed by {managing}"

    def _removed(self, life: Life, ended: dict[str, str], now: int) -> None:
        life.died_ns = now
        self.first_death.setdefault(life.uid, now)
        if life.uid in ended:
            assert ended.pop(life.uid) == life.meta["resourceVersion"], "ended on another version than decided on"
            assert not life.held(now), f"{life.place} was held"
            self._judge_end(life, now)
        elif life.uid not in self.user_deletes:
            assert life.owners, f"{life.place} went away, and nobody says why"
            living = [owner["name"] for owner in life.owners if self.lives(owner["uid"])]
            assert not living, f"{life.place} was collected although {living} live"

    def _judge_end(self, life: Life, now: int) -> None:
        if life.kind in REQUESTS:
            due = self.request_due(life)
            assert due is not None, f"{life.place} was ended and never is"
            assert now > due, f"{life.place} was ended {(due - now) / SECOND} s early"
        elif life.kind == KEEPER:
            due = self.keeper_due(life)
            assert due is not None, f"{life.place} was ended: {life.body}"
            assert now > due or (life.body["spec"]["mode"] == "FollowObject" and now >= due)
            unseen = set(self.unseen(life.uid))
            held = [one.place for one in self.owned(life.uid) if one.held(now) and one.uid not in unseen]
            assert not held, f"{life.place} was ended although it owns {held}, which is held"
        else:
            assert life.kind == CLAIM, f"{life.place} was ended"
            assert self._is_to_be_detached(life), "nobody asked for this claim to go"

    def _is_to_be_detached(self, claim: Life) -> bool:
        return any(
            one.body["spec"].get("mode") == "Detach" and one.body["spec"]["target"]["uid"] == claim.uid
            for one in self.by_uid.values()
            if one.kind == "VolumeCaptureRequest"
        )

    # --- when ---------------------------------------------------------------------------------------------------------

    def request_due(self, life: Life) -> int | None:
        """The moment after which a request may go; None for never."""
        completed = life.status.get("completionTimestamp")
        if not life.final or completed is None:
            return None
        ttl = seconds(life.annotations.get(TTL_ANNOTATION, "")) if self.annotation_decides else self.request_ttl
        return None if ttl is None else moment(completed) + ttl * SECOND

    def keeper_due(self, life: Life) -> int | None:
        """The moment after which (FollowObject: from which) a keeper may go; None for never."""
        spec = life.body["spec"]
        ttl = seconds(spec.get("ttl", ""))
        if spec["mode"] == "TTL":
            return None if ttl is None else moment(life.meta["creationTimestamp"]) + ttl * SECOND
        followed = spec["followObjectRef"]["uid"]
        if self.lives(followed):
            return None
        # Nobody need notice that an object came back for a moment, so it is the first loss that bounds `lostAt`.
        died = self.first_death.get(followed, 0)
        if spec["mode"] == "FollowObject":
            return died
        lost = life.status.get("lostAt")
        if lost is None or ttl is None:
            return None
        assert moment(lost) >= died, f"{life.place} counts from before its object was lost"
        return moment(lost) + ttl * SECOND
