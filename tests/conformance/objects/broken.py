"""Deliberately broken stores, each wrong in one way, around the real embedded store.

They know nothing of its inside: they stand between a case and the port, and spoil what goes through.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    ObjectError,
    UnknownKindError,
)
from lapse.kube.resources import Document, Event, EventType, Json, Kind, ObjectKey, Page, untyped
from tests.conformance.objects.registry import CLUSTER_WIDGET, WIDGET
from tests.conformance.windows import PATIENCE_SECONDS, AsyncWindow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from lapse.objects.port import ObjectStore

ANY = Kind[Any]
Events = list[Event[Any]]


class Passing:
    """Passes everything on. Subclasses spoil one thing."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.database = inner.database

    def shown(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        """What a caller sees instead of an object."""
        return obj

    async def get(self, kind: ANY, key: ObjectKey) -> Any:  # noqa: ANN401
        return self.shown(kind, await self.inner.get(kind, key))

    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        page = await self.inner.list(kind, **how)
        return replace(page, items=tuple(self.shown(kind, item) for item in page.items))

    async def resolve(self, api_version: str, kind: str) -> ANY:
        return await self.inner.resolve(api_version, kind)

    async def resolve_word(self, word: str) -> ANY:
        return await self.inner.resolve_word(word)

    async def watch(self, kind: ANY, *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[Any], None]:
        async with contextlib.aclosing(self.inner.watch(kind, namespace=namespace, since=since)) as events:
            async for event in events:
                for told in self.told(kind, event, since):
                    yield replace(told, object=None if told.object is None else self.shown(kind, told.object))

    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        """What a watcher hears instead of an event."""
        return [event]

    async def create(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        return self.shown(kind, await self.inner.create(kind, obj))

    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return self.shown(kind, await self.inner.patch(kind, key, changes, **conditions))

    async def patch_status(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return self.shown(kind, await self.inner.patch_status(kind, key, changes, **conditions))

    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        await self.inner.delete(kind, key, **conditions)

    async def check(self) -> None:
        await self.inner.check()

    async def close(self) -> None:
        await self.inner.close()


def changed(obj: Any, **metadata: object) -> Any:  # noqa: ANN401
    """The same object with other metadata."""
    if not isinstance(obj, Document):
        return obj
    return Document({**obj.body, "metadata": {**obj.body["metadata"], **metadata}})


# --- preconditions ----------------------------------------------------------------------------------------------------


class PatchesIgnoreTheVersion(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return await self.inner.patch(kind, key, changes, uid=conditions.get("uid"))


class PatchesIgnoreTheUid(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return await self.inner.patch(kind, key, changes, version=conditions.get("version"))


class StatusPatchesIgnoreTheUid(Passing):
    async def patch_status(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return await self.inner.patch_status(kind, key, changes, version=conditions.get("version"))


class StatusPatchesIgnoreTheVersion(Passing):
    async def patch_status(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return await self.inner.patch_status(kind, key, changes, uid=conditions.get("uid"))


class PatchesCompareInTwoSteps(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.window = AsyncWindow()

    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        version = conditions.get("version")
        if version is not None and (await self.inner.get(kind, key)).metadata.resource_version != version:
            raise ConflictError(kind=kind.kind, name=key, problem="changed")
        if version is not None:
            await self.window.meet(key, version)
        return await self.inner.patch(kind, key, changes, uid=conditions.get("uid"))


class LosingPatchesAreWritten(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        try:
            return await self.inner.patch(kind, key, changes, **conditions)
        except ConflictError:
            await self.inner.patch(kind, key, changes)
            raise


class DeletionsIgnoreTheVersion(Passing):
    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        await self.inner.delete(kind, key, uid=conditions.get("uid"))


class DeletionsIgnoreTheUid(Passing):
    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        await self.inner.delete(kind, key, version=conditions.get("version"))


class DeletionsLookAtOneOfTwo(Passing):
    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        if conditions.get("uid") and conditions.get("version"):
            conditions.pop("version")
        await self.inner.delete(kind, key, **conditions)


class DeletionsCompareInTwoSteps(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.looked = asyncio.Event()

    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        if conditions.get("version") is not None:  # it must come after the look, or there is nothing to overtake
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.looked.wait(), PATIENCE_SECONDS)
        return await self.inner.patch(kind, key, changes, **conditions)

    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        version = (await self.inner.get(kind, key)).metadata.resource_version
        if conditions.get("version") not in {None, version}:
            raise ConflictError(kind=kind.kind, name=key, problem="changed")

        async def changed() -> bool:
            return bool((await self.inner.get(kind, key)).metadata.resource_version != version)

        if conditions.get("version") is not None:
            self.looked.set()
            await AsyncWindow().overtaken(changed)
        await self.inner.delete(kind, key, uid=conditions.get("uid"))


class DeletionsOfNothingSucceed(Passing):
    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        with contextlib.suppress(NotFoundError):
            await self.inner.delete(kind, key, **conditions)


# --- writes -----------------------------------------------------------------------------------------------------------


class CreationsOverwrite(Passing):
    async def create(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        try:
            return await self.inner.create(kind, obj)
        except AlreadyExistsError:
            metadata = kind.body(obj)["metadata"]
            key = ObjectKey(metadata.get("namespace"), metadata["name"])
            return await self.inner.patch(kind, key, {"spec": kind.body(obj)["spec"]})


class CreationsStoreTheStatus(Passing):
    async def create(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        made = await self.inner.create(kind, obj)
        status = kind.body(obj).get("status")
        return await self.inner.patch_status(kind, made.metadata.key, status) if status else made


class CallersSayWhenTheyCreated(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.said: dict[str, Json] = {}

    async def create(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        made = await self.inner.create(kind, obj)
        given = kind.body(obj)["metadata"].get("creationTimestamp")
        self.said[made.metadata.uid] = {"creationTimestamp": given} if given else {}
        return self.shown(kind, made)

    def shown(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        return changed(obj, **self.said.get(obj.metadata.uid, {}))


class UidsAreNames(Passing):
    def shown(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        return changed(obj, uid=str(obj.metadata.key))


class InvalidObjectsVanish(Passing):
    async def create(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        try:
            return await self.inner.create(kind, obj)
        except InvalidError:
            return obj


class StatusPatchesTouchTheSpec(Passing):
    async def patch_status(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        await self.inner.patch_status(kind, key, changes, **conditions)
        return await self.inner.patch(kind, key, {"spec": changes.get("spec", {})})


class StatusPatchesReplaceTheStatus(Passing):
    async def patch_status(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        old = (await self.inner.get(WIDGET, key)).body.get("status", {})
        return await self.inner.patch_status(kind, key, {**dict.fromkeys(old), **changes}, **conditions)


class PatchesTouchTheStatus(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        new = await self.inner.patch(kind, key, changes, **conditions)
        return await self.inner.patch_status(kind, key, changes["status"]) if changes.get("status") else new


class NullIsKept(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        return await self.inner.patch(kind, key, _without_nulls(changes), **conditions)


def _without_nulls(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


class NarrowReadersWriteEverythingBack(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        if kind.type is not Document:
            whole = (await self.inner.get(WIDGET, key)).body["spec"]
            known = kind.body(await self.inner.get(kind, key))["spec"]
            lost = {name: None for name in whole if name not in known}
            changes = {**changes, "spec": {**lost, **changes.get("spec", {})}}
        return await self.inner.patch(kind, key, changes, **conditions)


class _CountsPatches(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.patches: defaultdict[str, int] = defaultdict(int)

    def shown(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        return changed(obj, generation=obj.metadata.generation + self.patches[obj.metadata.uid])


class GenerationRisesWithMetadata(_CountsPatches):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        new = await self.inner.patch(kind, key, changes, **conditions)
        self.patches[new.metadata.uid] += "spec" not in changes
        return self.shown(kind, new)


class GenerationRisesWithStatus(_CountsPatches):
    async def patch_status(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        new = await self.inner.patch_status(kind, key, changes, **conditions)
        self.patches[new.metadata.uid] += 1
        return self.shown(kind, new)


class GenerationStandsStill(Passing):
    def shown(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        return changed(obj, generation=1)


class PatchesOfNothingAreChanges(Passing):
    async def patch(self, kind: ANY, key: ObjectKey, changes: Json, **conditions: str | None) -> Any:  # noqa: ANN401
        before = await self.inner.get(kind, key)
        new = await self.inner.patch(kind, key, changes, **conditions)
        if new.metadata.resource_version != before.metadata.resource_version:
            return new
        await self.inner.patch(kind, key, {"metadata": {"annotations": {"touched": "yes"}}})
        return await self.inner.patch(kind, key, {"metadata": {"annotations": {"touched": None}}})


class ReadsShareOneObject(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.cache: dict[str, Any] = {}

    def shown(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        return self.cache.setdefault(obj.metadata.resource_version, obj) if kind.type is Document else obj


class UnknownKindsAreUntyped(Passing):
    async def resolve(self, api_version: str, kind: str) -> ANY:
        try:
            return await self.inner.resolve(api_version, kind)
        except UnknownKindError:
            return untyped(api_version, kind, kind.lower() + "s")


class TypesAreForgotten(Passing):
    async def resolve(self, api_version: str, kind: str) -> ANY:
        return replace(await self.inner.resolve(api_version, kind), type=Document)


# --- lists ------------------------------------------------------------------------------------------------------------


class ListsAreBackwards(Passing):
    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        page = await self.inner.list(kind, **how)
        return replace(page, items=page.items[::-1])


class ListsComeFromACache(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.last: dict[str, Page[Any]] = {}

    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        page = await self.inner.list(kind, **how)
        old, self.last[str((kind, how))] = self.last.get(str((kind, how)), page), page
        return old


class OneLabelIsEnough(Passing):
    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        labels: Mapping[str, str] = how.pop("labels", {})
        page = await self.inner.list(kind, **how)
        if not labels:
            return page
        found = [item for item in page.items if labels.items() & item.metadata.labels.items()]
        return replace(page, items=tuple(found))


class AbsentLabelsAreEmpty(Passing):
    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        labels: Mapping[str, str] = how.pop("labels", {})
        page = await self.inner.list(kind, **how)
        found = [i for i in page.items if all(i.metadata.labels.get(n, "") == v for n, v in labels.items())]
        return replace(page, items=tuple(found))


class PagesSeeLaterWrites(Passing):
    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        limit, start = how.pop("limit", None), int(how.pop("after", None) or 0)
        page = await self.inner.list(kind, **how)
        end = len(page.items) if limit is None else start + limit
        return Page(page.items[start:end], page.resource_version, str(end) if end < len(page.items) else None)


class PagesSkipOne(Passing):
    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        page = await self.inner.list(kind, **how)
        return replace(page, items=page.items[1:]) if how.get("after") else page


class ListsNameAnOldVersion(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.first = ""

    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        page = await self.inner.list(kind, **how)
        self.first = self.first or page.resource_version
        return replace(page, resource_version=self.first)


class ListsNameALaterVersion(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.window = AsyncWindow()

    async def list(self, kind: ANY, **how: Any) -> Page[Any]:  # noqa: ANN401
        page = await self.inner.list(kind, **how)

        async def came_or_went() -> bool:
            return _names(await self.inner.list(kind, **how)) != _names(page)

        await self.window.overtaken(came_or_went)
        return replace(page, resource_version=(await self.inner.list(kind)).resource_version)


def _names(page: Page[Any]) -> list[str]:
    return [item.metadata.name for item in page.items]


# --- watches ----------------------------------------------------------------------------------------------------------


class WatchesDropAnEvent(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.count = 0

    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        self.count += event.type is EventType.MODIFIED
        return [] if event.type is EventType.MODIFIED and self.count % 3 == 0 else [event]


class WatchesRepeatAnEvent(Passing):
    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        return [event, event] if event.type is EventType.MODIFIED else [event]


class WatchesMixTheOrder(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.held: Events = []

    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        if event.type is EventType.MODIFIED and not self.held:
            self.held = [event]
            return []
        answer, self.held = [event, *self.held], []
        return answer


class WatchesHideChangesOfStatus(Passing):
    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        hidden = (
            event.type is EventType.MODIFIED and isinstance(event.object, Document) and "status" in event.object.body
        )
        return [] if hidden else [event]


class WatchesIgnoreTheNamespace(Passing):
    async def watch(self, kind: ANY, *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[Any], None]:
        async for event in super().watch(kind, since=since):
            yield event


class WatchesBeginNow(Passing):
    async def watch(self, kind: ANY, *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[Any], None]:
        now = (await self.inner.list(kind)).resource_version
        async for event in super().watch(kind, namespace=namespace, since=now):
            yield event


class WatchesHideThatTheyAreLate(Passing):
    async def watch(self, kind: ANY, *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[Any], None]:
        try:
            async for event in super().watch(kind, namespace=namespace, since=since):
                yield event
        except GoneError:
            now = (await self.inner.list(kind)).resource_version
            async for event in super().watch(kind, namespace=namespace, since=now):
                yield event


class DeletionsAreReportedWithoutState(Passing):
    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        if event.type is not EventType.DELETED or not isinstance(event.object, Document):
            return [event]
        return [replace(event, object=Document({**event.object.body, "spec": {}}))]


class DeletionsHaveNoVersion(Passing):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.last = ""

    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        if event.type is EventType.DELETED:
            return [replace(event, resource_version=self.last or since)]
        self.last = event.resource_version
        return [event]


class BookmarksGoBack(Passing):
    def told(self, kind: ANY, event: Event[Any], since: str) -> Events:
        return [replace(event, resource_version=since)] if event.type is EventType.BOOKMARK else [event]


class BookmarksRunAhead(Passing):
    async def watch(self, kind: ANY, *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[Any], None]:
        async for event in super().watch(kind, namespace=namespace, since=since):
            yield event
            yield Event(EventType.BOOKMARK, None, (await self.inner.list(kind)).resource_version)


# --- garbage ----------------------------------------------------------------------------------------------------------


class _ChoosesOwners(Passing):
    """Stores only some of the owners that it is told."""

    async def counts(self, reference: Json, obj: Json) -> bool:
        raise NotImplementedError

    async def create(self, kind: ANY, obj: Any) -> Any:  # noqa: ANN401
        body = kind.body(obj)
        owners = body["metadata"].get("ownerReferences")
        if isinstance(owners, list):
            kept = [owner for owner in owners if await self.counts(owner, body)]
            body = {**body, "metadata": {**body["metadata"], "ownerReferences": kept}}
        return await self.inner.create(kind, body)

    async def owner(self, reference: Json, obj: Json) -> Document | None:
        """The owner, if it lives."""
        cluster = reference["kind"] == "ClusterWidget"
        key = ObjectKey(None if cluster else obj["metadata"].get("namespace"), reference["name"])
        try:
            found = await self.inner.get(CLUSTER_WIDGET if cluster else WIDGET, key)
        except ObjectError:
            return None
        return found if found.metadata.uid == reference["uid"] else None


class GarbageStays(_ChoosesOwners):
    async def counts(self, reference: Json, obj: Json) -> bool:
        return False


class TheSecondOwnerDoesNotCount(_ChoosesOwners):
    async def counts(self, reference: Json, obj: Json) -> bool:
        return bool(reference == obj["metadata"]["ownerReferences"][0])


class TheUnbornAreNeverMissed(_ChoosesOwners):
    async def counts(self, reference: Json, obj: Json) -> bool:
        return await self.owner(reference, obj) is not None


class GarbageGoesOneLevelDown(_ChoosesOwners):
    async def counts(self, reference: Json, obj: Json) -> bool:
        found = await self.owner(reference, obj)
        return found is None or not found.metadata.owner_references


class OwnersOfTheClusterDoNotCount(_ChoosesOwners):
    async def counts(self, reference: Json, obj: Json) -> bool:
        return bool(reference["kind"] != "ClusterWidget")


class OwnersAreKnownByName(_ChoosesOwners):
    """Once a name has owned something, whoever has the name owns it."""

    async def counts(self, reference: Json, obj: Json) -> bool:
        return True

    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        if key.name != "owner":
            return await self.inner.delete(kind, key, **conditions)
        for item in (await self.inner.list(WIDGET, namespace=key.namespace)).items:
            if any(owner.name == key.name for owner in item.metadata.owner_references):
                await self.inner.patch(WIDGET, item.metadata.key, {"metadata": {"ownerReferences": None}})
        return await self.inner.delete(kind, key, **conditions)


class GarbageIncludesWhatIsStillOwned(Passing):
    async def delete(self, kind: ANY, key: ObjectKey, **conditions: Any) -> None:  # noqa: ANN401
        uid = (await self.inner.get(kind, key)).metadata.uid
        items = (await self.inner.list(WIDGET, namespace=key.namespace)).items
        await self.inner.delete(kind, key, **conditions)
        for item in items:
            if any(owner.uid == uid for owner in item.metadata.owner_references):
                with contextlib.suppress(NotFoundError):
                    await self.inner.delete(WIDGET, item.metadata.key)
