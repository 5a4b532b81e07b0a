"""Which things are the demo's own, and their removal.

Guarantees. Only what is marked and noted is removed, by the engine's own deletion, under the uid that it was found
with; what came back from the trash is known by the row of its undo. Things of others stay, whatever they are called and
labelled, copies of the demo's among them. Where no person has asked for it, nothing that is held is removed, and
nothing of a domain that is frozen; for a person, ordinary holds on its things are released.

Not guaranteed: that a thing which is deleted by somebody within seconds after it was brought back from the trash leaves
the trash when the demo is stopped; that one goes which came back without a row in the journal, or a file that somebody
has replaced: in doubt they stay. A copy of a file that takes its place, and its inode, within seconds counts as it.
"""

from __future__ import annotations

import asyncio
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lapse.app.demo.note import APP, FILES, FOLDER, LABELS, MARK, PREFIX, SCRATCH, WORKSPACE, DemoMade, written
from lapse.core.address import Address
from lapse.core.errors import LapseError
from lapse.domains import REGISTRY
from lapse.engine.domain import Candidate, deletion_by_person
from lapse.engine.executor import delete_by_person
from lapse.engine.journal.port import AUDIT, AuditReason, Outcome
from lapse.engine.safety.holds import hold_of
from lapse.engine.service import LocalService
from lapse.engine.verbs.contract import ReleaseRequest
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, HISTORY, RETENTION, RETENTION_POLICY
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey, ObjectMeta, metadata_only
from lapse.objects.target import ObjectHandle, ObjectTarget
from lapse.objects.trash.rules import BROUGHT_BACK, IN_TRASH, TRASH, TrashWay, contents_of, is_trash, state_of
from lapse.requests.addresses import ARTIFACT_KINDS, keeper_name, snapshot_name
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.registration import KEEPERS, REQUESTS
from lapse.workspaces.errors import UnknownWorkspaceError
from lapse.workspaces.registration import WORKSPACES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Sequence
    from pathlib import Path

    from lapse.app.demo.note import DemoContext
    from lapse.engine.domain import Target
    from lapse.engine.verbs.place import Caller
    from lapse.kube.resources import Kind
    from lapse.objects.trash.rules import TrashContents
    from lapse.workspaces.model import Workspace

_MOST_ROWS: Final = 1000
"""So many rows about an object are looked at for that of its undo."""
_HEAD: Final = 200
"""Bytes of a file in which its mark and its word are."""


class DemoThing(NamedTuple):
    """Something of the demo that is there."""

    domain: str
    address: str
    uid: str
    handle: tuple[Kind[Any], Any] | None = None
    """Kind and object of what no verb has an address for."""


class OwnThings:
    """The things of the demo that are there."""

    def __init__(self, context: DemoContext) -> None:
        """Look at nothing yet."""
        self._context = context

    async def found(self, made: DemoMade) -> list[DemoThing]:
        """Return everything of the demo that is there, but for keys; where none was made, nothing is looked at."""
        if made == DemoMade():
            return []
        return [one for part in (self._objects(made), self._kept(made), self.others(made)) async for one in part]

    async def _objects(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield the objects that have the label, and are the demo's: anybody can label anything."""
        kinds: list[tuple[str, Kind[Any]]] = [(REQUESTS.name, kind) for kind in REQUEST_KINDS]
        kinds += [(HISTORY, CHAOS_EXPERIMENT_HISTORY), (RETENTION, RETENTION_POLICY)]
        kinds += [(REQUESTS.name, PERSISTENT_VOLUME_CLAIM)]
        known = {*made.uids}
        for domain, kind in kinds:
            for one in (await self._context.objects.list(metadata_only(kind), labels=LABELS)).items:
                if not await self.is_own(known, one.metadata):
                    continue
                has_verbs = kind not in {RETENTION_POLICY, PERSISTENT_VOLUME_CLAIM}
                handle = None if has_verbs else (kind, one)
                yield DemoThing(domain, str(kind.address(one.metadata.key)), one.metadata.uid, handle)

    async def is_own(self, known: Collection[str], meta: ObjectMeta) -> bool:
        """Whether an object has a uid that is known, or had one before it came back from the trash.

        Which one that was is in the journal alone: what an undo leaves on an object is copied with its document.
        """
        uid, asked = meta.uid, set[str]()
        while uid not in known:
            if uid in asked or BROUGHT_BACK not in meta.annotations:
                return False
            asked.add(uid)
            rows = await self._context.place.journal.entries(
                domain=AUDIT, uid=uid, outcome=Outcome.DONE, limit=_MOST_ROWS
            )
            undone = [row.details or {} for row in rows if row.reason == AuditReason.BROUGHT_BACK]
            uid = str(undone[0].get("was")) if undone else uid
        return True

    async def _kept(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield keepers and snapshots of captures, and the volume of the claim: they are named after these."""
        names: list[tuple[Kind[Any], str]]
        names = [(OBJECT_KEEPER, keeper_name(VOLUME_CAPTURE_REQUEST.short, uid)) for uid in made.captures]
        for uid in made.captures:
            names += await self._snapshot(snapshot_name(uid, made.claim))
        names += [(PERSISTENT_VOLUME, f"local-{made.claim}")] if made.claim else []
        for kind, name in dict.fromkeys(names):
            found = await self._kept_object(kind, name)
            if found is not None:
                yield DemoThing(KEEPERS.name, str(kind.address(found.key)), found.uid)

    async def _snapshot(self, name: str) -> list[tuple[Kind[Any], str]]:
        """Return a snapshot and who keeps it: one that came back has another keeper than that of its capture."""
        found = await self._kept_object(VOLUME_SNAPSHOT_CONTENT, name)
        if found is None:
            return []
        owners = [one.name for one in found.owner_references if one.kind == OBJECT_KEEPER.kind]
        keepers = [await self._kept_object(OBJECT_KEEPER, one) for one in owners]
        if any(one is not None and is_trash(one) for one in keepers):
            return []
        return [*((OBJECT_KEEPER, one.name) for one in keepers if one is not None), (VOLUME_SNAPSHOT_CONTENT, name)]

    async def _kept_object(self, kind: Kind[Any], name: str) -> ObjectMeta | None:
        try:
            return (await self._context.objects.get(metadata_only(kind), ObjectKey(None, name))).metadata
        except NotFoundError:
            return None

    async def others(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield the workspace and the files."""
        row = await self._workspace(made)
        if row is not None:
            yield DemoThing(WORKSPACES.name, f"workspace/{row.name}", row.id)
        folder = self._context.scratch
        marked = {} if folder is None else await asyncio.to_thread(_marked, folder)
        for name, word in marked.items():
            domain, address = await self._context.place.domain(SCRATCH), Address(SCRATCH, None, name)
            found = await domain.find(address) if str(address) in made.files else None
            if found is not None and made.files[str(address)] in {found.uid, word}:
                yield DemoThing(SCRATCH, str(address), found.uid)

    async def _workspace(self, made: DemoMade) -> Workspace | None:
        """Return the workspace, unless that of its name is somebody else's."""
        if self._context.workspaces is None:
            return None
        try:
            found = await self._context.workspaces.by_name(WORKSPACE)
        except UnknownWorkspaceError:
            return None
        return found if found.id in made.uids else None

    async def key_names(self) -> list[str]:
        """Return the names of its keys: another application may have taken this id, too."""
        return [one.key for one in await self._context.keys.app(APP).scan(PREFIX, limit=1000) if one.value == MARK]

    async def is_in_trash(self, made: DemoMade) -> bool:
        """Whether anything of it is in the trash and may leave that."""
        if self._context.place.open_trash is None:
            return False
        known = {*made.uids}
        page = await (await self._context.place.open_trash()).page(limit=100_000)
        return any(one.uid in known and not one.held for one in page.items)


class DemoRemoval:
    """Ends the things of the demo, and nothing else."""

    def __init__(self, context: DemoContext, own: OwnThings) -> None:
        """End nothing yet."""
        self._context, self._own = context, own

    async def remove(self, caller: Caller, *, is_asked: bool = True) -> None:
        """Remove everything that is there, and what of it is in the trash; note what stays, and why.

        Where no person has asked for it, what is held stays, and what is of a domain that is frozen.
        """
        made = await self._context.made()
        problems: dict[str, str] = {}
        for _ in range(2):  # a keeper that is released now was not there before its request had gone
            found = await self._own.found(made)
            await self._know(made, found)
            problems = await self._remove_all(found, caller, is_asked=is_asked)
        left = {one.address for one in await self._own.found(made)}
        latest = await self._context.made()
        latest.problems = {address: problem for address, problem in problems.items() if address in left}
        await self._context.write_made(latest)
        for name in await self._own.key_names():
            await self._context.keys.app(APP).compare_and_delete(name, MARK)
        if self._context.place.open_trash is not None:
            trash = await self._context.place.open_trash()
            await trash.empty(by=caller.name, uids=frozenset(made.uids))
            await self._remove_all([one async for one in self._empty_trash(made)], caller, is_asked=is_asked)
        if not left:
            await asyncio.to_thread(_empty, self._context.settings.state_dir / FOLDER)

    async def _know(self, made: DemoMade, found: Iterable[DemoThing]) -> None:
        """Note what was found before it is ended: afterwards, what is in the trash is known by that alone."""
        made.know(one.uid for one in found)
        latest = await self._context.made()  # the process that leads may have made something meanwhile
        latest.know(made.uids)
        await self._context.write_made(latest)

    async def _empty_trash(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield the keepers of the trash in which nothing but things of the demo was, and nothing is any more.

        Such a keeper would stay until its own time is over after the last of its things was brought back, or was
        garbage before it got there.
        """
        known = {*made.uids}
        for one in (await self._context.objects.list(metadata_only(OBJECT_KEEPER), labels={TRASH: IN_TRASH})).items:
            contents = contents_of(one.metadata)
            if contents is None or not contents.items or not known.issuperset(item.uid for item in contents.items):
                continue
            if not await self._keeps_any(one.metadata, contents):
                address = str(OBJECT_KEEPER.address(one.metadata.key))
                yield DemoThing(KEEPERS.name, address, one.metadata.uid, (OBJECT_KEEPER, one))

    async def _keeps_any(self, keeper: ObjectMeta, contents: TrashContents) -> bool:
        """Whether a keeper of the trash has anything in it."""
        if contents.way is TrashWay.PACKED:
            return len({*state_of(keeper).out}) < len(contents.items)
        pages = [await self._context.objects.list(metadata_only(kind)) for kind in ARTIFACT_KINDS]
        return any(
            owner.uid == keeper.uid for page in pages for one in page.items for owner in one.metadata.owner_references
        )

    async def _remove_all(self, found: Sequence[DemoThing], caller: Caller, *, is_asked: bool) -> dict[str, str]:
        """End things, where a person asks for it held ones after their release; one that stays keeps no other."""
        problems: dict[str, str] = {}
        gate = await self._context.place.freezes.load(self._context.now)
        for step in (self._release, self._end) if is_asked else (self._end,):
            for one in found:
                if not is_asked and gate.freeze_of(one.domain) is not None:
                    problems[one.address] = f"{one.domain} is frozen"
                    continue
                try:
                    await step(one, caller)
                except LapseError as error:
                    problems[one.address] = str(error)
        return problems

    async def _release(self, thing: DemoThing, caller: Caller) -> None:
        if thing.handle is not None:
            return
        address = REGISTRY.parse(thing.address)
        found = await (await self._context.place.domain(thing.domain)).find(address)
        if found is not None and found.uid == thing.uid and found.hold is not None:
            await LocalService(self._context.place, caller).release(
                ReleaseRequest(address=thing.address, uid=thing.uid)
            )

    async def _end(self, thing: DemoThing, caller: Caller) -> None:
        """End one by the engine's own deletion, under the uid that it was found with."""
        place, target = self._context.place, cast("Target", ObjectTarget(self._context.objects, self._context.objects))
        if thing.handle is not None:
            found: Candidate[Any] | None = _candidate(*thing.handle)
        else:
            domain = await place.domain(thing.domain)
            found = await domain.find(REGISTRY.parse(thing.address))
            target = target if found is None else await domain.deletion_target(found)
        if found is None or found.uid != thing.uid:
            return
        action = deletion_by_person(
            domain=thing.domain,
            address=found.address,
            uid=found.uid,
            version=found.version,
            handle=found.handle,
            hold=found.hold,
            actor=caller.name,
            now=self._context.now,
        )
        await delete_by_person(target, place.journal, action, clock=place.clock, metrics=place.metrics)


def _candidate(kind: Kind[Any], obj: Any) -> Candidate[Any]:  # noqa: ANN401 - an object of the kind
    """Return an object of a kind that no verb has an address for, as the engine ends it."""
    meta = obj.metadata
    return Candidate(
        address=kind.address(meta.key),
        uid=meta.uid,
        version=meta.resource_version,
        state=None,
        handle=ObjectHandle.of(kind, obj),
        hold=hold_of(meta.annotations),
    )


def _empty(folder: Path) -> None:
    """Remove the directory, unless there is something else in it than what was written."""
    for name, text in FILES.items():
        with suppress(OSError):
            if (folder / name).read_text() == written(text):
                (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()


def _marked(folder: Path) -> dict[str, str]:
    """Return the names of files that have the mark, and the word after it; what cannot be read is not ours."""
    found = {}
    for path in sorted(folder.glob(f"{PREFIX}*.txt")):
        with suppress(OSError):
            if not stat.S_ISREG(path.lstat().st_mode):  # to open a pipe would wait for a writer
                continue
            with path.open("rb") as file:
                mark, _, rest = file.read(_HEAD).decode(errors="replace").partition("\n")
            if mark == MARK:
                found[path.name] = rest.partition("\n")[0]
    return found
