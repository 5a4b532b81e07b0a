"""What lies in the trash of objects: listed by its trash keepers, brought back, or ended for good.

Bringing back an artifact gives it a fresh keeper in mode TTL, which keeps it for as long as the trash did. Bringing
back a packed object creates it again, without uid, version and dead owners; it is held for as long, so that no limit
ends it at once, or another one for it. A request comes back with the status that it had, so nobody carries it out
again: until that is written, an annotation says the same (`BROUGHT_BACK`). Its hold covers what it has made, and so
does that of a schedule.

Emptying one of several packed things packs the others anew; then one write on the trash keeper, which stays, notes it
as out and names the new checkpoint. An undo notes first, by such a write, that it has begun. Of one that is not
finished, whoever empties looks what it has made: a thing that is back leaves the trash, one that is back without its
status stays there until the undo is repeated, and one that is not back is emptied an hour after the undo began.

Guarantees. Each step can be repeated, and an interrupted one is gone on with. What came back is not listed any more.
What was emptied never comes back, and what stays is there once, with its hold and its time, whoever acts beside it.
What changed its mind is believed: an object that was packed and not ended after all is not in the trash.

Not guaranteed: that an entry is still there a moment later: its time may be over; that the bytes of what was emptied
are gone at once: after a kill they may lie, read by nobody, until the next thing of the page is emptied or it ends;
that an undo whose process stood still for an hour between two calls, or whose clock is an hour behind that of whoever
empties, does not bring back what was emptied meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import to_builtins
from msgspec.structs import replace as change_fields

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import LapseError
from lapse.core.identity import uuid
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.domain import Result, deletion_by_person
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Outcome
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import HOLD, HOLD_REASON, HOLD_UNTIL, hold_of
from lapse.engine.trash import BroughtBack, NotInTrashError, PlaceTakenError, TrashEntry
from lapse.engine.view import Expiry, Moment
from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    StoreUnavailableError,
    UnknownKindError,
)
from lapse.kube.resources import Document, ObjectKey, ObjectMeta, metadata_only
from lapse.objects.holds.passed_on import MARK_NAMES
from lapse.objects.holds.steering import ObjectPlace
from lapse.objects.packing.checkpoints import read_checkpoint
from lapse.objects.packing.chunks import ManifestsUnreadableError, pack
from lapse.objects.target import ObjectHandle, ObjectTarget
from lapse.objects.trash.moves import owner_of
from lapse.objects.trash.rules import (
    BROUGHT_BACK,
    IN_TRASH,
    MADE_FOR,
    TRASH,
    TRASH_STATE,
    TrashContents,
    TrashState,
    TrashWay,
    UndoClaim,
    contents_of,
    is_one_of,
    state_of,
    to_text,
    trash_name,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.kube.resources import Json, Kind
    from lapse.objects.holds.steering import Steering
    from lapse.objects.port import HoldLookup
    from lapse.objects.trash.moves import ObjectTrash

    _Stored = tuple[Kind[Any], ObjectMeta]

NAME: Final = "objects"
_log = get_logger("lapse.objects.trash")
_PAGE: Final = 100
_ATTEMPTS: Final = 5
_MOST_NAMED: Final = 5
_UNDO_NS: Final = 3_600_000_000_000
"""How long an undo that is not finished may still be at work; it takes seconds."""
_OF_THE_STORE: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields")
_RETURNS: Final = {
    TrashWay.KEPT: "with a fresh keeper: it was never away",
    TrashWay.PACKED: "created again, under a new uid, and held for as long as the trash keeps things",
}
_AS_RECORD: Final = "as a record only: with its status, under a new uid, and never carried out again"


class ComingBackError(LapseError):
    """{address} is being brought back, so it is not emptied. To finish that, repeat lapse undo {address} --uid {uid}.

    If it has not come back, it can be emptied an hour after that was begun.
    """

    status = 409


class HalfBackError(LapseError):
    """{address} has come back without its status, of which the trash has the only copy, so it is not emptied.

    To finish that, repeat lapse undo {address} --uid {uid}.
    """

    status = 409


class _Back(StrEnum):
    """How much of a packed object is there again."""

    NOT = "not"
    HALF = "half"
    """Without its status."""
    WHOLE = "whole"


class _Kept(NamedTuple):
    """A trash keeper, and what it says of itself."""

    keeper: Any
    contents: TrashContents

    @property
    def meta(self) -> ObjectMeta:
        found: ObjectMeta = self.keeper.metadata
        return found

    @property
    def created(self) -> UnixNs | None:
        return from_timestamp(self.meta.creation_timestamp or "")

    @property
    def lasts_ns(self) -> int | None:
        try:
            return Duration.parse(self.keeper.spec.ttl or "").nanoseconds
        except DurationError:
            return None

    @property
    def packed(self) -> str:
        """The name of the checkpoint that has its things."""
        return state_of(self.meta).packed or self.meta.name

    def is_here(self, entry: TrashEntry) -> bool:
        """Whether an entry is one of this page, and has not left it."""
        items, place = self.contents.items, _place(entry)
        known = 0 <= place < len(items) and items[place].uid == entry.uid
        return known and place not in state_of(self.meta).out

    def stays_without(self, entries: Sequence[TrashEntry]) -> bool:
        """Whether it has anything else, or may have: what is not known to have left it."""
        going = {*map(_place, entries), *state_of(self.meta).out}
        return bool(set(range(len(self.contents.items))) - going)

    def entry(
        self, place: int, *, ended: UnixNs | None, size: int | None, contains: list[str], way: str, now: UnixNs
    ) -> TrashEntry:
        item, lasts, hold = self.contents.items[place], self.lasts_ns, hold_of(self.meta.annotations)
        expires = Expiry(None if self.created is None or lasts is None else self.created + lasts)
        return TrashEntry(
            id=f"{NAME}/{self.meta.name}/{place:04d}",
            address=item.address,
            uid=item.uid,
            domain=self.contents.domain,
            ended_at=Moment.of(ended),
            expires_at=Moment.of(expires.extended(extension_of(self.meta.annotations)).at),
            bytes=size,
            comes_back=way,
            contains=contains,
            held=hold is not None and hold.active(now),
        )


class TrashedObjects:
    """A `lapse.engine.trash.Trash` over one object store."""

    name: Final = NAME

    def __init__(
        self,
        trash: ObjectTrash,
        *,
        holds: HoldLookup,
        steering: Steering,
        journal: Journal,
        clock: Clock,
        metrics: Metrics | None = None,
    ) -> None:
        """List nothing yet; ``metrics`` are those of the process, if anybody can ask for them."""
        self._trash, self._store, self._kinds, self._steering = trash, trash.store, trash.kinds, steering
        self._holds, self._journal, self._clock, self._metrics = holds, journal, clock, metrics

    @property
    def _now(self) -> UnixNs:
        return UnixNs(self._clock.wall_ns())

    # --- listing ------------------------------------------------------------------------------------------------------

    async def entries(self, *, after: str | None = None) -> AsyncGenerator[Sequence[TrashEntry], None]:
        """See `Trash`. Costs one read for each trash keeper of packed things; more only after a crash."""
        await self._trash.dependants.prepare(self._kinds.keeper)
        cursor: str | None = None
        while True:
            page = await self._store.list(self._kinds.keeper, labels={TRASH: IN_TRASH}, limit=_PAGE, after=cursor)
            for keeper in page.items:
                if after is None or f"{NAME}/{keeper.metadata.name}/~" > after:
                    found = [one for one in await self._entries_of(keeper) if after is None or one.id > after]
                    if found:
                        yield found
            cursor = page.next
            if cursor is None:
                return

    async def _entries_of(self, keeper: Any) -> list[TrashEntry]:  # noqa: ANN401 - a keeper
        contents = contents_of(keeper.metadata)
        if contents is None or not contents.items or keeper.metadata.deletion_timestamp:
            return []
        kept = _Kept(keeper, contents)
        return await (self._kept(kept) if contents.way is TrashWay.KEPT else self._packed(kept))

    async def _kept(self, kept: _Kept) -> list[TrashEntry]:
        artifacts = await self._artifacts(kept)
        if not artifacts:
            return []
        sizes = [self._kinds.size_of(kind, found) for kind, found in artifacts]
        size = sum(one or 0 for one in sizes) if any(one is not None for one in sizes) else None
        contains = [str(kind.address(found.metadata.key)) for kind, found in artifacts]
        way = _RETURNS[TrashWay.KEPT]
        return [kept.entry(0, ended=kept.created, size=size, contains=contains, way=way, now=self._now)]

    async def _artifacts(self, kept: _Kept) -> list[tuple[Kind[Any], Any]]:
        """Return the artifacts that lie in the trash by this keeper, and by no other one that is alive."""
        found = []
        for kind, cached in self._trash.dependants.owned_by(kept.meta.uid):
            if not is_one_of(kind, self._kinds.artifacts):
                continue
            with suppress(NotFoundError):
                fresh = await self._store.get(kind, cached.metadata.key)
                is_owned = any(one.uid == kept.meta.uid for one in fresh.metadata.owner_references)
                if is_owned and not await self._living_keepers(fresh.metadata, but=kept.meta.uid):
                    found.append((kind, fresh))
        return found

    async def _living_keepers(self, artifact: ObjectMeta, *, but: str) -> list[str]:
        """Return the uids of keepers that own an artifact and are there."""
        known = (self._kinds.keeper.api_version, self._kinds.keeper.kind)
        alive = []
        for owner in artifact.owner_references:
            if (owner.api_version, owner.kind) == known and owner.uid != but:
                with suppress(NotFoundError):
                    found = await self._store.get(metadata_only(self._kinds.keeper), ObjectKey(None, owner.name))
                    alive += [owner.uid] if found.metadata.uid == owner.uid else []
        return alive

    async def _packed(self, kept: _Kept) -> list[TrashEntry]:
        try:
            checkpoint = await self._store.get(self._kinds.checkpoints.checkpoint, ObjectKey(None, kept.packed))
        except NotFoundError:
            later = await self._packed_anew(kept)
            return [] if later is None else await self._packed(later)
        status, state = checkpoint.status, state_of(kept.meta)
        if status is None or not status.chunks:
            return []  # it was interrupted before anything was ended
        ended = from_timestamp(state.ended)
        out = set(state.out) if ended is not None else {*state.out, *await self._not_ended(kept)}
        ended = kept.created if ended is None else ended
        share = (status.total_size_bytes or 0) // (status.total_objects or 1)
        return [
            kept.entry(place, ended=ended, size=share, contains=[], way=self._way_of(item.address), now=self._now)
            for place, item in enumerate(kept.contents.items)
            if place not in out
        ]

    def _way_of(self, address: str) -> str:
        kind = address.partition("/")[0]
        return _AS_RECORD if any(kind == one.short for one in self._kinds.records) else _RETURNS[TrashWay.PACKED]

    async def _not_ended(self, kept: _Kept) -> set[int]:
        """Return the places of what was packed and is still there: nobody has noted what came of it."""
        found = set()
        try:
            documents = await read_checkpoint(self._store, self._kinds.checkpoints, kept.packed)
        except ManifestsUnreadableError:  # it was interrupted before all of it was there, so nothing was ended
            return set(range(len(kept.contents.items)))
        places = {item.uid: place for place, item in enumerate(kept.contents.items)}
        for document in documents:
            meta = document["metadata"]
            with suppress(NotFoundError, UnknownKindError):
                kind = await self._kind_of(document)
                there = await self._store.get(metadata_only(kind), ObjectKey(meta.get("namespace"), meta["name"]))
                if there.metadata.uid == meta["uid"]:
                    found.add(places[meta["uid"]])
        return found

    async def _packed_anew(self, kept: _Kept) -> _Kept | None:
        """Return a page again if its things were packed anew since it was read."""
        with suppress(NotFoundError):
            later = kept._replace(keeper=await self._store.get(self._kinds.keeper, kept.meta.key))
            return later if later.packed != kept.packed else None
        return None

    async def _kind_of(self, document: Json) -> Kind[Any]:
        return await self._store.resolve(document["apiVersion"], document["kind"])

    # --- bringing back ------------------------------------------------------------------------------------------------

    async def bring_back(self, entry: TrashEntry, *, by: str) -> BroughtBack:
        """See `Trash`."""
        kept = await self._find(entry)
        if kept.contents.way is TrashWay.KEPT:
            return await self._release(kept, entry)
        document = await self._document(kept, entry)
        claim = UndoClaim(uuid(), _place(entry), to_timestamp(self._now))
        await self._claim(kept, entry, claim)
        try:
            made = await self._create(kept, document, entry, by=by)
        except StoreUnavailableError:
            raise  # it may still come back: nobody empties it before that is known
        except LapseError:
            with suppress(LapseError):  # then the claim stays as well
                await self._give_up(kept, document, claim)
            raise
        await self._change(kept, lambda state: _taken_out(state, claim.place))
        return made

    async def _give_up(self, kept: _Kept, document: Json, claim: UndoClaim) -> None:
        """Let something be emptied again that did not come back; half of it may have."""
        match await self._came_back(document):
            case _Back.NOT:
                await self._change(kept, lambda state: _without_claims(state, lambda one: one.id == claim.id))
            case _Back.WHOLE:
                await self._change(kept, lambda state: _taken_out(state, claim.place))
            case _Back.HALF:
                pass

    async def _claim(self, kept: _Kept, entry: TrashEntry, claim: UndoClaim) -> None:
        """Note that an entry is being brought back, so that nobody empties it meanwhile; it may be emptied already."""

        def claimed(state: TrashState) -> TrashState:
            if claim.place in state.out:
                raise NotInTrashError(address=entry.address)
            others = _without_claims(state, lambda one: one.place == claim.place and self._is_over(one))
            return change_fields(others, claims=[*others.claims, claim])

        try:
            await self._trash.change_state(kept.meta.key, kept.meta.uid, claimed)
        except NotFoundError:
            raise NotInTrashError(address=entry.address) from None

    async def _change(self, kept: _Kept, change: Callable[[TrashState], TrashState]) -> None:
        """Change what a page notes, if it is still there."""
        with suppress(NotFoundError):
            await self._trash.change_state(kept.meta.key, kept.meta.uid, change)

    async def _find(self, entry: TrashEntry) -> _Kept:
        try:
            _, name, _ = entry.id.split("/")
            keeper = await self._store.get(self._kinds.keeper, ObjectKey(None, name))
        except (ValueError, NotFoundError):
            raise NotInTrashError(address=entry.address) from None
        kept = _Kept(keeper, contents_of(keeper.metadata) or TrashContents(TrashWay.KEPT, entry.domain, []))
        if not kept.is_here(entry):
            raise NotInTrashError(address=entry.address)
        return kept

    async def _release(self, kept: _Kept, entry: TrashEntry) -> BroughtBack:
        """Give artifacts a fresh keeper; the trash keeper is left with nothing, and ends by its TTL."""
        await self._trash.dependants.prepare(self._kinds.keeper)
        artifacts = await self._artifacts(kept)
        if not artifacts:
            raise NotInTrashError(address=entry.address)
        fresh = await self._fresh_keeper(kept, made_for=self._kinds.made_for(*artifacts[0]))
        for kind, found in artifacts:
            await self._give(kind, found.metadata, kept.meta.uid, fresh)
        await self._forget_hold(kept)
        names = [str(kind.address(one.metadata.key)) for kind, one in artifacts]
        return BroughtBack(
            address=str(self._kinds.keeper.address(fresh.key)),
            uid=fresh.uid,
            says=f"a new keeper keeps {', '.join(names)} for {kept.keeper.spec.ttl}",
        )

    async def _fresh_keeper(self, kept: _Kept, *, made_for: str | None) -> ObjectMeta:
        """Return the keeper that artifacts come back to; its name follows from the trash keeper, so it is made once.

        What held the trash keeper holds it as well: they keep the same.
        """
        name = f"back-{kept.meta.uid}"
        marks: dict[str, str] = {one: text for one, text in kept.meta.annotations.items() if one in MARK_NAMES}
        annotations = {**marks, BROUGHT_BACK: kept.contents.items[0].uid}
        if made_for:
            annotations[MADE_FOR] = made_for
        body: Json = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"mode": "TTL", "ttl": kept.keeper.spec.ttl},
        }
        try:
            made = await self._store.create(self._kinds.keeper, body)
        except AlreadyExistsError:
            made = await self._store.get(self._kinds.keeper, ObjectKey(None, name))
        found: ObjectMeta = made.metadata
        return found

    async def _forget_hold(self, kept: _Kept) -> None:
        """Take the hold from a trash keeper that keeps nothing any more: nobody would release it there."""
        marks = {one: None for one in MARK_NAMES if one in kept.meta.annotations}
        if marks:
            with suppress(NotFoundError, ForbiddenError):
                body = {"metadata": {"annotations": marks}}
                await self._store.patch(self._kinds.keeper, kept.meta.key, body, uid=kept.meta.uid)

    async def _give(self, kind: Kind[Any], seen: ObjectMeta, trash: str, keeper: ObjectMeta) -> None:
        """Make a keeper the one that manages an artifact, in place of the trash and of keepers that are gone."""
        known = (self._kinds.keeper.api_version, self._kinds.keeper.kind)
        owner = owner_of(self._kinds.keeper, keeper, controller=True)
        for attempt in range(_ATTEMPTS):
            living = await self._living_keepers(seen, but=trash)
            stay = [one for one in seen.owner_references if (one.api_version, one.kind) != known or one.uid in living]
            try:
                await self._trash.change_owners(kind, seen, [*stay, owner])
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
                seen = (await self._store.get(metadata_only(kind), seen.key)).metadata
            else:
                return

    async def _document(self, kept: _Kept, entry: TrashEntry) -> Json:
        """Return the packed object, proven to be what was packed."""
        try:
            documents = await read_checkpoint(self._store, self._kinds.checkpoints, kept.packed)
        except (NotFoundError, ManifestsUnreadableError) as error:
            later = await self._packed_anew(kept)
            if later is not None:
                return await self._document(later, entry)
            if isinstance(error, ManifestsUnreadableError):
                raise
            raise NotInTrashError(address=entry.address) from None
        found = next((one for one in documents if one["metadata"]["uid"] == entry.uid), None)
        if found is None:
            raise NotInTrashError(address=entry.address)
        return found

    async def _create(self, kept: _Kept, document: Json, entry: TrashEntry, *, by: str) -> BroughtBack:
        kind = await self._kind_of(document)
        body = await self._again(document, kept, by=by)
        whole: Kind[Any] = replace(kind, type=Document)
        try:
            made = await self._store.create(whole, body)
        except AlreadyExistsError:
            made = await self._store.get(whole, ObjectKey(body["metadata"].get("namespace"), body["metadata"]["name"]))
            if made.metadata.uid == entry.uid:
                raise NotInTrashError(address=entry.address) from None  # it was not ended after all
            if made.metadata.annotations.get(BROUGHT_BACK) != body["metadata"]["annotations"][BROUGHT_BACK]:
                raise PlaceTakenError(address=entry.address) from None
        meta = made.metadata
        is_record = is_one_of(kind, self._kinds.records)
        if is_record and document.get("status"):
            await self._store.patch_status(whole, meta.key, document["status"], uid=meta.uid)
        held = await self._steering.complete(ObjectPlace(kind, meta.key, meta.uid))
        says = f"it has the new uid {meta.uid}, and is held until {body['metadata']['annotations'][HOLD_UNTIL]}"
        if held:
            says += f", with what it has made ({_named(held)})"
        if is_record:
            says = f"as a record: it is not carried out again; {says}"
        return BroughtBack(address=entry.address, uid=meta.uid, says=says)

    async def _again(self, document: Json, kept: _Kept, *, by: str) -> Json:
        """Return an object as it is created again."""
        was = document["metadata"]
        metadata = {name: value for name, value in was.items() if name not in _OF_THE_STORE}
        owners = [one for one in was.get("ownerReferences") or () if await self._is_alive(one, was.get("namespace"))]
        metadata.pop("ownerReferences", None)
        if owners:
            metadata["ownerReferences"] = owners
        lasts = kept.lasts_ns or 0
        metadata["annotations"] = {
            **(was.get("annotations") or {}),
            BROUGHT_BACK: _first_uid(was),
            HOLD: "true",
            HOLD_REASON: f"brought back from the trash by {by}",
            HOLD_UNTIL: to_timestamp(self._clock.wall_ns() + lasts),
        }
        return {**{name: value for name, value in document.items() if name != "status"}, "metadata": metadata}

    async def _is_alive(self, owner: Json, namespace: str | None) -> bool:
        """Whether an owner is there: one that is not would take along what is created again."""
        try:
            kind = await self._store.resolve(owner["apiVersion"], owner["kind"])
            key = ObjectKey(namespace if kind.namespaced else None, owner["name"])
            found = await self._store.get(metadata_only(kind), key)
        except (NotFoundError, UnknownKindError):
            return False
        return bool(found.metadata.uid == owner["uid"])

    # --- ending for good ----------------------------------------------------------------------------------------------

    async def empty(self, entries: Sequence[TrashEntry], *, by: str) -> Sequence[Result]:
        """See `Trash`. A page ends with the last of its things; before that, they are packed anew without one."""
        pages: dict[str, list[TrashEntry]] = {}
        for entry in entries:
            pages.setdefault(entry.id.split("/")[1], []).append(entry)
        results: dict[str, Result] = {}
        for name, these in pages.items():
            for _ in range(len(these) + _ATTEMPTS):
                left = [one for one in these if results.get(one.id, _changed(one)).outcome is Outcome.CHANGED]
                if left:
                    results |= await self._empty(ObjectKey(None, name), left, by=by)
        return [results[one.id] for one in entries]

    async def _empty(self, key: ObjectKey, entries: Sequence[TrashEntry], *, by: str) -> dict[str, Result]:
        """Empty entries of one page, all of them with it or else the first one; the others are told to have changed."""
        try:
            keeper = await self._store.get(self._kinds.keeper, key)
        except NotFoundError as error:
            return {one.id: Result(Outcome.GONE, error) for one in entries}
        kept = _Kept(keeper, contents_of(keeper.metadata) or TrashContents(TrashWay.KEPT, entries[0].domain, []))
        results, going = dict[str, Result](), list[TrashEntry]()
        for one in entries:
            if not kept.is_here(one):
                results[one.id] = Result(Outcome.GONE, NotInTrashError(address=one.address))
            elif (result := await self._unfinished(kept, one)) is not None:
                results[one.id] = result
            else:
                going.append(one)
        if not going:
            return results
        if kept.stays_without(going):
            return (
                results
                | {one.id: _changed(one) for one in going}
                | {going[0].id: await self._remove(kept, going[0], by=by)}
            )
        result = await self._execute(kept, self._kinds.keeper.address(key), domain=going[0].domain, by=by)
        return results | {one.id: result for one in going}

    async def _unfinished(self, kept: _Kept, entry: TrashEntry) -> Result | None:
        """Return why an entry is not emptied whose undo was begun; None when there is none, or it came to nothing."""
        claims = [one for one in state_of(kept.meta).claims if one.place == _place(entry)]
        if not claims:
            return None
        try:
            back = await self._came_back(await self._document(kept, entry))
            if back is _Back.WHOLE:
                await self._change(kept, lambda state: _taken_out(state, _place(entry)))
                return Result(Outcome.GONE, NotInTrashError(address=entry.address))
        except LapseError as error:  # it may be back or not: doubt keeps
            return Result(Outcome.FAILED, error)
        if back is _Back.HALF:
            return Result(Outcome.REFUSED, HalfBackError(address=entry.address, uid=entry.uid))
        if not all(map(self._is_over, claims)):
            return Result(Outcome.REFUSED, ComingBackError(address=entry.address, uid=entry.uid))
        return None

    def _is_over(self, claim: UndoClaim) -> bool:
        """Whether an undo is at work no more."""
        since = from_timestamp(claim.since)
        return since is not None and not self._clock.in_doubt() and self._now - since >= _UNDO_NS

    async def _came_back(self, document: Json) -> _Back:
        """Look whether a packed object is there again; one that was never ended counts as well."""
        was = document["metadata"]
        try:
            kind = await self._kind_of(document)
            whole: Kind[Any] = replace(kind, type=Document)
            found = await self._store.get(whole, ObjectKey(was.get("namespace"), was["name"]))
        except (NotFoundError, UnknownKindError):
            return _Back.NOT
        if found.metadata.uid != was["uid"] and found.metadata.annotations.get(BROUGHT_BACK) != _first_uid(was):
            return _Back.NOT
        needs_status = is_one_of(kind, self._kinds.records) and document.get("status")
        return _Back.HALF if needs_status and not found.body.get("status") else _Back.WHOLE

    async def _remove(self, kept: _Kept, entry: TrashEntry, *, by: str) -> Result:
        """Pack what stays anew, and let the page change over to that: one write, under the version that was read.

        Whatever happens beside it or in between, the page has one checkpoint. The others are garbage, and those that
        were there before this write can be given away after it: whoever made one of them cannot change over any more.
        """
        state = state_of(kept.meta)
        old = await self._all_packed(kept)
        try:
            documents = await read_checkpoint(self._store, self._kinds.checkpoints, kept.packed)
        except (NotFoundError, ManifestsUnreadableError) as error:
            return Result(Outcome.FAILED, error) if await self._packed_anew(kept) is None else _changed(entry)
        after = _taken_out(state, _place(entry))
        leaving = {kept.contents.items[place].uid for place in after.out}
        chunks = pack([one for one in documents if one["metadata"]["uid"] not in leaving], as_given=True)
        name = trash_name(uuid())
        await self._trash.write_chunks(kept.meta, name, chunks)
        instead: Json = {"metadata": {"annotations": {TRASH_STATE: to_text(change_fields(after, packed=name))}}}
        address = next(_address(entry, one["metadata"]) for one in documents if one["metadata"]["uid"] == entry.uid)
        result = await self._execute(kept, address, domain=entry.domain, by=by, instead=instead)
        if result.outcome is Outcome.ENDED:
            await self._give_away(old)
        elif result.outcome is not Outcome.FAILED and await self._is_unused(kept, name):
            await self._give_away(await self._stored(name))
        return result

    async def _execute(
        self, kept: _Kept, address: Address, *, domain: str, by: str, instead: Json | None = None
    ) -> Result:
        """End a page, or change it ``instead``, as a person's deletion of what has this address."""
        handle = ObjectHandle.of(self._kinds.keeper, kept.keeper)._replace(instead=instead)
        action = deletion_by_person(
            domain=domain,
            address=address,
            uid=kept.meta.uid,
            version=kept.meta.resource_version,
            handle=handle,
            hold=hold_of(kept.meta.annotations),
            actor=by,
            now=self._clock.wall_ns(),
        )
        target = ObjectTarget(self._store, self._holds)
        metrics = self._metrics or Metrics("")
        executor = Executor(target, self._journal, clock=self._clock, metrics=metrics, actor=by)
        (result,) = await executor.execute([action])
        return result

    async def _all_packed(self, kept: _Kept) -> list[_Stored]:
        """Return every checkpoint and chunk of a page: those in use, and what an interruption has left."""
        await self._trash.dependants.prepare(self._kinds.keeper)
        owned = self._trash.dependants.owned_by(kept.meta.uid)
        found = [(kind, one.metadata) for kind, one in owned if is_one_of(kind, self._kinds.checkpoints)]
        used = await self._stored(kept.packed)
        uids = {meta.uid for _, meta in used}
        return [*used, *[one for one in found if one[1].uid not in uids]]

    async def _stored(self, name: str) -> list[_Stored]:
        """Return the chunks of a checkpoint, and then itself."""
        kinds = self._kinds.checkpoints
        found: list[_Stored] = []
        with suppress(NotFoundError):
            checkpoint = await self._store.get(kinds.checkpoint, ObjectKey(None, name))
            for info in checkpoint.status.chunks if checkpoint.status else ():
                with suppress(NotFoundError):
                    chunk = await self._store.get(metadata_only(kinds.chunk), ObjectKey(None, info.name))
                    found.append((kinds.chunk, chunk.metadata))
            found.append((kinds.checkpoint, checkpoint.metadata))
        return found

    async def _is_unused(self, kept: _Kept, name: str) -> bool:
        """Whether a page has not changed over to a checkpoint, although that was refused."""
        try:
            keeper = await self._store.get(metadata_only(self._kinds.keeper), kept.meta.key)
        except NotFoundError:
            return False  # its garbage goes with it
        return state_of(keeper.metadata).packed != name

    async def _give_away(self, garbage: Sequence[_Stored]) -> None:
        """Leave checkpoints and chunks to garbage collection, by an owner that there never was.

        What fails here goes when the page ends, or when the next one of its things is emptied.
        """
        nobody = uuid()
        owner = owner_of(self._kinds.keeper, ObjectMeta(name=trash_name(nobody), uid=nobody))
        for kind, seen in garbage:
            try:  # whatever its version is: nobody uses it, and garbage collection changes owners as well
                body: Json = {"metadata": {"ownerReferences": [to_builtins(owner)]}}
                await self._store.patch(metadata_only(kind), seen.key, body, uid=seen.uid)
            except (NotFoundError, ConflictError):
                continue
            except LapseError as error:
                _log.warning("trash_not_given_away", object=seen.name, problem=str(error))


def _changed(entry: TrashEntry) -> Result:
    problem = "others change what lies beside it in the trash; try again"
    return Result(Outcome.CHANGED, ConflictError(kind="trash of", name=entry.address, problem=problem))


def _address(entry: TrashEntry, metadata: Json) -> Address:
    return Address(entry.address.partition("/")[0], metadata.get("namespace"), metadata["name"])


def _first_uid(was: Json) -> str:
    """Return the uid that a packed object had before it was ever in the trash."""
    first: str = (was.get("annotations") or {}).get(BROUGHT_BACK) or was["uid"]
    return first


def _without_claims(state: TrashState, is_over: Callable[[UndoClaim], bool]) -> TrashState:
    return change_fields(state, claims=[one for one in state.claims if not is_over(one)])


def _taken_out(state: TrashState, place: int) -> TrashState:
    state = _without_claims(state, lambda one: one.place == place)
    return change_fields(state, out=sorted({*state.out, place}))


def _named(places: Sequence[ObjectPlace]) -> str:
    """Name several things, the first of many."""
    names = [str(one.kind.address(one.key)) for one in places[:_MOST_NAMED]]
    more = len(places) - len(names)
    return ", ".join(names) + (f", and {more} more" if more else "")


def _place(entry: TrashEntry) -> int:
    text = entry.id.rpartition("/")[2]
    return int(text) if text.isdigit() else -1
