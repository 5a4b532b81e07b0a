"""What lies in the trash of objects: listed by its trash keepers, brought back, or ended for good.

Bringing back an artifact gives it a fresh keeper in mode TTL, which keeps it for as long as the trash did. Bringing
back a packed object creates it again, without uid, version and dead owners; it is held for as long, so that no limit
ends it at once, or another one for it. A request comes back with the status that it had, so nobody carries it out
again: until that is written, an annotation says the same (`BROUGHT_BACK`). Its hold covers what it has made, and so
does that of a schedule.

Guarantees. Each step can be repeated, and an interrupted one is gone on with. What came back is not listed any more.
What changed its mind is believed: an object that was packed and not ended after all is not in the trash.

Not guaranteed: that an entry is still there a moment later: its time may be over.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.domain import Result, deletion_by_person
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Outcome
from lapse.engine.running.metrics import Metrics
from lapse.engine.safety.extensions import extension_of
from lapse.engine.safety.holds import HOLD, HOLD_REASON, HOLD_UNTIL, hold_of
from lapse.engine.trash import BroughtBack, NotInTrashError, PlaceTakenError, TrashEntry
from lapse.engine.view import Expiry, Moment
from lapse.kube.errors import AlreadyExistsError, ConflictError, ForbiddenError, NotFoundError, UnknownKindError
from lapse.kube.resources import Document, ObjectKey, metadata_only
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
    contents_of,
    is_one_of,
    state_of,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.objects.holds.steering import Steering
    from lapse.objects.port import HoldLookup
    from lapse.objects.trash.moves import ObjectTrash

NAME: Final = "objects"
_PAGE: Final = 100
_ATTEMPTS: Final = 5
_MOST_NAMED: Final = 5
_OF_THE_STORE: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields")
_RETURNS: Final = {
    TrashWay.KEPT: "with a fresh keeper: it was never away",
    TrashWay.PACKED: "created again, under a new uid, and held for as long as the trash keeps things",
}
_AS_RECORD: Final = "as a record only: with its status, under a new uid, and never carried out again"


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
            checkpoint = await self._store.get(self._kinds.checkpoints.checkpoint, ObjectKey(None, kept.meta.name))
        except NotFoundError:
            return []
        status, state = checkpoint.status, state_of(kept.meta)
        if status is None or not status.chunks:
            return []  # it was interrupted before anything was ended
        ended = kept.created if state is None else from_timestamp(state.ended)
        out = await self._not_ended(kept) if state is None else set(state.out)
        share = (status.total_size_bytes or 0) // len(kept.contents.items)
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
            documents = await read_checkpoint(self._store, self._kinds.checkpoints, kept.meta.name)
        except ManifestsUnreadableError:  # it was interrupted before all of it was there, so nothing was ended
            return set(range(len(kept.contents.items)))
        for place, document in enumerate(documents):
            meta = document["metadata"]
            with suppress(NotFoundError, UnknownKindError):
                kind = await self._kind_of(document)
                there = await self._store.get(metadata_only(kind), ObjectKey(meta.get("namespace"), meta["name"]))
                if there.metadata.uid == meta["uid"]:
                    found.add(place)
        return found

    async def _kind_of(self, document: Json) -> Kind[Any]:
        return await self._store.resolve(document["apiVersion"], document["kind"])

    # --- bringing back ------------------------------------------------------------------------------------------------

    async def bring_back(self, entry: TrashEntry, *, by: str) -> BroughtBack:
        """See `Trash`."""
        kept = await self._find(entry)
        if kept.contents.way is TrashWay.KEPT:
            return await self._release(kept, entry)
        document = await self._document(kept, entry)
        made = await self._create(kept, document, entry, by=by)
        await self._take_out(kept.meta.key, kept.meta.uid, _place(entry))
        return made

    async def _find(self, entry: TrashEntry) -> _Kept:
        try:
            _, name, _ = entry.id.split("/")
            keeper = await self._store.get(self._kinds.keeper, ObjectKey(None, name))
        except (ValueError, NotFoundError):
            raise NotInTrashError(address=entry.address) from None
        contents = contents_of(keeper.metadata)
        place = _place(entry)
        if contents is None or place >= len(contents.items) or contents.items[place].uid != entry.uid:
            raise NotInTrashError(address=entry.address)
        state = state_of(keeper.metadata)
        if state is not None and place in state.out:
            raise NotInTrashError(address=entry.address)
        return _Kept(keeper, contents)

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
            documents = await read_checkpoint(self._store, self._kinds.checkpoints, kept.meta.name)
        except NotFoundError:
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
            BROUGHT_BACK: (was.get("annotations") or {}).get(BROUGHT_BACK) or was["uid"],
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

    async def _take_out(self, key: ObjectKey, uid: str, *places: int) -> None:
        """Note that packed things are not in the trash any more."""
        for attempt in range(_ATTEMPTS):
            try:
                meta = (await self._store.get(metadata_only(self._kinds.keeper), key)).metadata
            except NotFoundError:
                return
            state = state_of(meta) or TrashState(meta.creation_timestamp or "")
            out = sorted({*state.out, *places})
            body = {"metadata": {"annotations": {TRASH_STATE: to_text(TrashState(state.ended, out))}}}
            try:
                await self._store.patch(self._kinds.keeper, key, body, uid=uid, version=meta.resource_version)
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    # --- ending for good ----------------------------------------------------------------------------------------------

    async def empty(self, entries: Sequence[TrashEntry], *, by: str) -> Sequence[Result]:
        """See `Trash`. What shares a page with things that stay is left out of a new page, and the old one ends."""
        results: dict[str, Result] = {}
        pages: dict[str, list[TrashEntry]] = {}
        for entry in entries:
            pages.setdefault(entry.id.split("/")[1], []).append(entry)
        for name, these in pages.items():
            try:
                result = await self._empty(ObjectKey(None, name), these, by=by)
            except NotFoundError as error:
                result = Result(Outcome.GONE, error)
            results |= {one.id: result for one in these}
        return [results[one.id] for one in entries]

    async def _empty(self, key: ObjectKey, entries: Sequence[TrashEntry], *, by: str) -> Result:
        keeper = await self._store.get(self._kinds.keeper, key)
        kept = _Kept(keeper, contents_of(keeper.metadata) or TrashContents(TrashWay.KEPT, entries[0].domain, []))
        going = {one.uid for one in entries}
        staying = [one for one in await self._entries_of(keeper) if one.uid not in going]
        if staying:
            await self._repack(kept, {one.uid for one in staying})
        action = deletion_by_person(
            domain=entries[0].domain,
            address=self._kinds.keeper.address(key),
            uid=keeper.metadata.uid,
            version=keeper.metadata.resource_version,
            handle=ObjectHandle.of(self._kinds.keeper, keeper),
            hold=hold_of(keeper.metadata.annotations),
            actor=by,
            now=self._clock.wall_ns(),
        )
        target = ObjectTarget(self._store, self._holds)
        metrics = self._metrics or Metrics("")
        executor = Executor(target, self._journal, clock=self._clock, metrics=metrics, actor=by)
        (result,) = await executor.execute([action])
        return result

    async def _repack(self, kept: _Kept, staying: set[str]) -> None:
        """Pack what stays in a page of its own, for the time that is left."""
        documents = await read_checkpoint(self._store, self._kinds.checkpoints, kept.meta.name)
        left = [one for one in documents if one["metadata"]["uid"] in staying]
        items = [one for one in kept.contents.items if one.uid in staying]
        over = (kept.created or 0) + (kept.lasts_ns or 0) - self._clock.wall_ns()
        contents = TrashContents(TrashWay.PACKED, kept.contents.domain, items)
        page = await self._trash.write_page(contents, pack(left, as_given=True), ttl=Duration(max(over, 1)).go())
        state = state_of(kept.meta) or TrashState(kept.meta.creation_timestamp or "")
        body = {"metadata": {"annotations": {TRASH_STATE: to_text(TrashState(state.ended))}}}
        await self._store.patch(self._kinds.keeper, page.keeper, body, uid=page.uid)


def _named(places: Sequence[ObjectPlace]) -> str:
    """Name several things, the first of many."""
    names = [str(one.kind.address(one.key)) for one in places[:_MOST_NAMED]]
    more = len(places) - len(names)
    return ", ".join(names) + (f", and {more} more" if more else "")


def _place(entry: TrashEntry) -> int:
    text = entry.id.rpartition("/")[2]
    return int(text) if text.isdigit() else -1
