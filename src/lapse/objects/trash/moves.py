"""The way into the trash of objects: what is done before the act that ends them.

- *A keeper ends.* A trash keeper becomes a second, plain owner of each artifact that the keeper controls; then the
  keeper is deleted under its own uid and version, which that does not touch, and garbage collection drops the dead
  reference. A crash in between leaves artifacts with two owners and a keeper that lives.
- *An artifact ends.* Its owners are replaced by a trash keeper, under its uid and version; that is the act.
- *Anything else ends.* A page of objects is read whole, packed as a checkpoint and chunks of a trash keeper, and then
  deleted under the versions that were packed. After the act it is noted which of them went.

Guarantees. Nothing is ended here. An artifact has a living owner at every moment: a trash keeper that is older than
the act is not trusted, because it ends too early, and another one takes its place before the act. It is not deleted
either, as somebody else may be about to use it; it keeps nothing, and ends by its TTL. An object is packed at the very
version that is deleted; one that changed since is not packed, and the act finds that out as well.

Not guaranteed: that a dependant of a keeper which no cache has seen yet is adopted; that what was packed was also
ended, until that is noted: whoever reads a page without a note must look.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace as replace_field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lapse.core.errors import LapseError
from lapse.core.identity import uuid
from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.journal.port import Outcome
from lapse.engine.trash import NOT_UNDOABLE, UNDO_UNTIL
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import Document, ObjectKey, OwnerReference, metadata_only
from lapse.objects.packing.checkpoints import chunk_document, complete_status, some_at_once
from lapse.objects.packing.chunks import ObjectTooLargeError, as_captured, pack
from lapse.objects.trash.rules import (
    IN_TRASH,
    TRASH,
    TRASH_CONTENTS,
    TRASH_STATE,
    TrashContents,
    TrashItem,
    TrashReason,
    TrashWay,
    is_one_of,
    is_trash,
    state_of,
    to_text,
    trash_name,
    why_not_undoable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from lapse.core.clock import Clock, UnixNs
    from lapse.core.duration import Duration
    from lapse.engine.domain import Action, Result
    from lapse.kube.resources import Json, Kind, ObjectMeta
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.packing.chunks import PackedChunk
    from lapse.objects.port import ObjectStore, Reader
    from lapse.objects.trash.rules import TrashKinds, TrashState

COMPLETED: Final = "Completed"
_FRESH_NS: Final = 60_000_000_000
"""A trash keeper that is younger belongs to an act that is under way, here or in another process."""
_ATTEMPTS: Final = 5
_MOST_NAMES: Final = 100
_AT_ONCE: Final = 32
_LEVEL: Final = 1
"""Of compression: three times as fast as that of captures, for a third more bytes, which go within days."""
_WORTH_A_LIST: Final = 8
"""From so many objects of one namespace on, a page of a list is read before single objects are."""
_log = get_logger("lapse.objects.trash")


class TrashTakenError(LapseError):
    """{address} cannot be put into the trash: there are {count} trash keepers of it, and none that can be used."""


class PackedPage(NamedTuple):
    """A page of packed objects: its trash keeper, the places of the objects by their uids, and when it goes."""

    keeper: ObjectKey
    uid: str
    places: dict[str, int]
    until: int


class ObjectTrash:
    """The trash of one object store. Belongs to one event loop."""

    def __init__(
        self, store: ObjectStore, *, kinds: TrashKinds, ttl: Duration, dependants: Dependants, clock: Clock
    ) -> None:
        """Keep what is ended for ``ttl``, in ``store``; ``dependants`` tells what is owned by what."""
        if ttl.nanoseconds is None or ttl.nanoseconds <= 0:
            raise ValueError(f"a trash with a TTL of {ttl} keeps nothing: leave it out")
        self.store, self.kinds, self.ttl, self.dependants = store, kinds, ttl, dependants
        self._lasts_ns, self._clock = ttl.nanoseconds, clock

    async def take(self, actions: Sequence[Action], *, direct: Reader, now: UnixNs) -> list[Action | Exception]:
        """Prepare acts on objects; ``direct`` reads them. See `lapse.engine.trash.TrashingTarget`."""
        taken: list[Action | Exception] = list(actions)
        packed: list[int] = []
        plain = {kind for kind in {one.handle.kind for one in actions} if self._is_plain(kind)}
        for place, action in enumerate(actions):
            handle = action.handle
            if handle.kind in plain and not handle.no_trash:  # nearly always, and for each of many
                packed.append(place)
            elif reason := self._why_not(action):
                taken[place] = _not_undoable(action, reason)
            elif self.kinds.is_keeper(handle.kind):
                taken[place] = await _caught(self._adopt(action, now))
            else:
                taken[place] = await _caught(self._move(action, now))
        if packed:
            pages = await self._pack_all([actions[place] for place in packed], direct=direct)
            for place, one in zip(packed, pages, strict=True):
                taken[place] = one
        return taken

    def _is_plain(self, kind: Kind[Any]) -> bool:
        """Whether objects of a kind are packed, whoever owns them."""
        return not (
            self.kinds.is_keeper(kind)
            or is_one_of(kind, self.kinds.artifacts)
            or why_not_undoable(self.kinds, kind) is not None
        )

    def _why_not(self, action: Action) -> str | None:
        handle = action.handle
        if handle.no_trash:
            return str(handle.no_trash)
        if self.kinds.is_keeper(handle.kind) and handle.is_trash:
            return TrashReason.IS_TRASH
        return why_not_undoable(self.kinds, handle.kind, handle.owners)

    def _until(self, keeper: ObjectMeta) -> int:
        """Return when a trash keeper goes: its age is counted in whole seconds, from when its store has made it."""
        made = from_timestamp(keeper.creation_timestamp or "")
        return (self._clock.wall_ns() if made is None else made) + self._lasts_ns

    def _kept(self, action: Action, keeper: ObjectMeta, **handle: object) -> Action:
        details = {**(action.details or {}), UNDO_UNTIL: self._until(keeper)}
        return replace(action, handle=action.handle._replace(**handle), details=details)

    # --- artifacts ----------------------------------------------------------------------------------------------------

    async def _adopt(self, action: Action, now: UnixNs) -> Action:
        """Make a trash keeper the second owner of what a keeper controls."""
        await self.dependants.prepare(self.kinds.keeper)
        owned = [
            (kind, found.metadata)
            for kind, found in self.dependants.owned_by(action.uid)
            if is_one_of(kind, self.kinds.artifacts) and _is_controlled(found.metadata, action.uid)
        ]
        if not owned:
            return _not_undoable(action, TrashReason.KEEPS_NOTHING)
        keeper = await self._keeper_for(action, now)
        for kind, meta in owned:
            await self._add_owner(kind, meta, owner_of(self.kinds.keeper, keeper), older=trash_name(action.uid))
        return self._kept(action, keeper)

    async def _move(self, action: Action, now: UnixNs) -> Action:
        """Have the act replace the owners of an artifact, instead of deleting it."""
        keeper = await self._keeper_for(action, now)
        owners = [msgspec.to_builtins(owner_of(self.kinds.keeper, keeper))]
        return self._kept(action, keeper, instead={"metadata": {"ownerReferences": owners}})

    async def _keeper_for(self, action: Action, now: UnixNs) -> ObjectMeta:
        """Return a trash keeper that was made for this act, or for one like it at this moment."""
        contents = TrashContents(TrashWay.KEPT, action.domain, [TrashItem(str(action.address), action.uid)])
        name = trash_name(action.uid)
        for number in range(1, _MOST_NAMES):
            body = self._document(name if number == 1 else f"{name}-{number}", contents)
            try:
                made: ObjectMeta = (await self.store.create(self.kinds.keeper, body)).metadata
            except AlreadyExistsError:
                found = await self._read_keeper(ObjectKey(None, body["metadata"]["name"]))
                if found is None or not _is_as_made(found, body, now):
                    continue
                made = found.metadata
            return made
        raise TrashTakenError(address=action.address, count=_MOST_NAMES)

    async def _read_keeper(self, key: ObjectKey) -> Any:  # noqa: ANN401 - a keeper
        try:
            return await self.store.get(self.kinds.keeper, key)
        except NotFoundError:
            return None

    def _document(self, name: str, contents: TrashContents) -> Json:
        return {
            "metadata": {
                "name": name,
                "labels": {TRASH: IN_TRASH},
                "annotations": {TRASH_CONTENTS: to_text(contents)},
            },
            "spec": {"mode": "TTL", "ttl": self.ttl.go()},
        }

    async def _add_owner(self, kind: Kind[Any], meta: ObjectMeta, owner: OwnerReference, *, older: str) -> None:
        """Add an owner, in place of ``older`` trash keepers of the same thing; an artifact that is gone is left."""
        for attempt in range(_ATTEMPTS):
            try:
                fresh = (await self.store.get(metadata_only(kind), meta.key)).metadata
                if fresh.uid != meta.uid:
                    return
                stay = [one for one in fresh.owner_references if not one.name.startswith(older)]
                await self.change_owners(kind, fresh, [*stay, owner])
            except NotFoundError:
                return
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    async def change_owners(self, kind: Kind[Any], seen: ObjectMeta, owners: Iterable[OwnerReference]) -> None:
        """Write the owners of an artifact as it was seen; raises `ConflictError` when it has changed."""
        body: Json = {"metadata": {"ownerReferences": [msgspec.to_builtins(one) for one in owners]}}
        await self.store.patch(kind, seen.key, body, uid=seen.uid, version=seen.resource_version)

    # --- everything else ----------------------------------------------------------------------------------------------

    async def _pack_all(self, actions: Sequence[Action], *, direct: Reader) -> Sequence[Action | Exception]:
        """Pack what is still as it was decided on; what owns others, or has changed, is left as it is."""
        try:
            for kind in {one.handle.kind for one in actions}:
                await self.dependants.prepare(kind)
            owning = self.dependants.owning([one.uid for one in actions])
            free = [one for one in actions if one.uid not in owning]
            documents = await _read_whole(direct, free)
            page, too_large = await self._pack(free[0].domain if free else "", documents, free)
        except Exception as error:  # noqa: BLE001 - nothing of it is ended
            return [error] * len(actions)
        done: list[Action | Exception] = []
        for one in actions:
            if one.uid in owning:
                done.append(_not_undoable(one, TrashReason.OWNS_OTHERS))
            elif one.uid in too_large:
                done.append(too_large[one.uid])
            elif page is None or one.uid not in page.places:
                done.append(one)  # it is gone or has changed: the act compares, and says so
            else:
                done.append(self._copied(one, page))
        return done

    def _copied(self, action: Action, page: PackedPage) -> Action:
        handle, details = action.handle, {UNDO_UNTIL: page.until}
        handle = type(handle)(handle.kind, handle.key, handle.owners, page=page)  # a third of what _replace costs
        return replace(action, handle=handle, details={**action.details, **details} if action.details else details)

    async def _pack(
        self, domain: str, documents: dict[str, Json], actions: Sequence[Action]
    ) -> tuple[PackedPage | None, dict[str, Exception]]:
        addresses = {one.uid: str(one.address) for one in actions}
        chunks, too_large = await asyncio.to_thread(_packed, list(documents.values()))
        items = [TrashItem(addresses[uid], uid) for uid in documents if uid not in too_large]
        if not items:
            return None, too_large
        return await self.write_page(TrashContents(TrashWay.PACKED, domain, items), chunks), too_large

    async def write_page(self, contents: TrashContents, chunks: Sequence[PackedChunk]) -> PackedPage:
        """Store packed objects as checkpoint and chunks of a new trash keeper, which stays for the TTL."""
        name = trash_name(uuid())
        keeper = (await self.store.create(self.kinds.keeper, self._document(name, contents))).metadata
        await self.write_chunks(keeper, name, chunks)
        places = {item.uid: place for place, item in enumerate(contents.items)}
        return PackedPage(keeper.key, keeper.uid, places, self._until(keeper))

    async def write_chunks(self, keeper: ObjectMeta, name: str, chunks: Sequence[PackedChunk]) -> None:
        """Store packed objects as a checkpoint of this name, and its chunks, of a trash keeper."""
        owner, kinds = owner_of(self.kinds.keeper, keeper, controller=True), self.kinds.checkpoints
        body: Json = {"metadata": {"name": name, "ownerReferences": [msgspec.to_builtins(owner)]}, "spec": {}}
        checkpoint = (await self.store.create(kinds.checkpoint, body)).metadata
        status = complete_status(name, chunks, reason=COMPLETED, now=self._clock.wall_ns())
        # At once, unlike a capture: nothing is ended before all of it is there, and until then nobody reads it.
        await asyncio.gather(
            *[self.store.create(kinds.chunk, chunk_document(kinds, checkpoint, one, owner)) for one in chunks],
            self.store.patch_status(kinds.checkpoint, checkpoint.key, status, uid=checkpoint.uid),
        )

    async def note(self, actions: Sequence[Action], results: Sequence[Result]) -> None:
        """Write down which of packed objects were ended. A note that fails costs whoever lists the trash a look."""
        pages: defaultdict[ObjectKey, dict[int, bool]] = defaultdict(dict)
        uids: dict[ObjectKey, str] = {}
        for action, result in zip(actions, results, strict=True):
            page: PackedPage | None = action.handle.page
            if page is not None and result.outcome is not Outcome.FAILED:  # a failure may be an answer that was lost
                pages[page.keeper][page.places[action.uid]] = result.outcome is Outcome.ENDED
                uids[page.keeper] = page.uid
        for key, ended in pages.items():
            try:
                await self._note(key, uids[key], ended)
            except LapseError as error:
                _log.warning("trash_not_noted", keeper=key.name, problem=str(error))

    async def _note(self, key: ObjectKey, uid: str, ended: dict[int, bool]) -> None:
        out = {place for place, was_ended in ended.items() if not was_ended}
        now = to_timestamp(self._clock.wall_ns())
        await self.change_state(key, uid, lambda state: replace(state, ended=now, out=sorted({*state.out, *out})))

    async def change_state(self, key: ObjectKey, uid: str, change: Callable[[TrashState], TrashState]) -> None:
        """Change what a page notes of its things, compared by version: others change it, too."""
        for attempt in range(_ATTEMPTS):
            meta = (await self.store.get(metadata_only(self.kinds.keeper), key)).metadata
            before = state_of(meta)
            after = change(before)
            if after == before:
                return
            body = {"metadata": {"annotations": {TRASH_STATE: to_text(after)}}}
            try:
                await self.store.patch(self.kinds.keeper, key, body, uid=uid, version=meta.resource_version)
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return


def owner_of(kind: Kind[Any], keeper: ObjectMeta, *, controller: bool = False) -> OwnerReference:
    """Return the reference that makes a keeper an owner."""
    if not keeper.uid:
        raise ValueError("a keeper without uid can own nothing")  # garbage collection would ignore or misread it
    return OwnerReference(
        api_version=kind.api_version, kind=kind.kind, name=keeper.name, uid=keeper.uid, controller=controller
    )


async def _caught(work: Coroutine[Any, Any, Action]) -> Action | Exception:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - what cannot be put into the trash is not ended
        return error


def _not_undoable(action: Action, reason: str) -> Action:
    return replace(action, details={**(action.details or {}), NOT_UNDOABLE: str(reason)})


def _is_controlled(meta: ObjectMeta, uid: str) -> bool:
    """Whether an owner manages an object: others keep it for a while, for a restore, and leave the end to that one."""
    controller = meta.controller
    return controller is not None and controller.uid == uid


def _is_as_made(found: Any, wanted: Json, now: UnixNs) -> bool:  # noqa: ANN401 - a keeper
    """Whether a trash keeper is one that an act of this moment has made, as it would be made."""
    meta = found.metadata
    made = from_timestamp(meta.creation_timestamp or "")
    return bool(
        meta.uid
        and made is not None
        and abs(now - made) <= _FRESH_NS
        and is_trash(meta)
        and not meta.owner_references
        and not meta.deletion_timestamp
        and (found.spec.mode, found.spec.ttl) == (wanted["spec"]["mode"], wanted["spec"]["ttl"])
    )


def _packed(documents: Sequence[Json]) -> tuple[list[PackedChunk], dict[str, Exception]]:
    """Pack objects; return also what was too large, by uid."""
    try:
        return pack(documents, level=_LEVEL, as_given=True), {}
    except ObjectTooLargeError:
        fitting, too_large = [], dict[str, Exception]()
        for one in documents:
            try:
                pack([one], level=_LEVEL)
                fitting.append(one)
            except ObjectTooLargeError as error:
                too_large[one["metadata"]["uid"]] = error
        return pack(fitting, level=_LEVEL, as_given=True), too_large


async def _read_whole(direct: Reader, actions: Sequence[Action]) -> dict[str, Json]:
    """Return the objects that are still at the version that was decided on, whole, by uid."""
    wanted = {one.uid: one.version for one in actions}
    places: defaultdict[tuple[Kind[Any], str | None], list[Action]] = defaultdict(list)
    for one in actions:
        places[one.handle.kind, one.handle.key.namespace].append(one)
    found: dict[str, Json] = {}
    for (kind, namespace), these in places.items():
        whole = replace_field(kind, type=Document)
        if len(these) >= _WORTH_A_LIST:  # what is ended in one go mostly stands together
            page = await direct.list(whole, namespace=namespace, limit=len(these))
            _add(found, page.items, wanted, whole)
        missing = [one for one in these if one.uid not in found]
        if missing:
            read = await some_at_once(partial(_get, direct, whole), missing, most=_AT_ONCE)
            _add(found, [one for one in read if one is not None], wanted, whole)
    return found


def _add(found: dict[str, Json], items: Iterable[Document], wanted: dict[str, str], kind: Kind[Document]) -> None:
    for one in items:
        meta = one.body["metadata"]
        if wanted.get(meta["uid"]) == meta["resourceVersion"]:
            found[meta["uid"]] = as_captured(kind.body(one))


async def _get(direct: Reader, kind: Kind[Document], action: Action) -> Document | None:
    try:
        return await direct.get(kind, action.handle.key)
    except NotFoundError:
        return None
