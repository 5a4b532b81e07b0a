"""Whatever is done to the embedded store, in any order, it agrees with a model that fits on a page."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import Document, EventType, Json, Kind, ObjectKey, ObjectMeta
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.port import Deletion
from tests.examples import examples
from tests.unit.objects.kinds import NOTE, SHELF, collected, reference

if TYPE_CHECKING:
    from collections.abc import Coroutine

KINDS = [SHELF, NOTE]
NAMES = st.sampled_from("abc")
Where = tuple[Kind[Document], ObjectKey]
PLACES: st.SearchStrategy[Where] = st.one_of(
    st.builds(lambda name: (SHELF, ObjectKey(None, name)), NAMES),
    st.builds(lambda namespace, name: (NOTE, ObjectKey(namespace, name)), st.sampled_from(["m", "n"]), NAMES),
)
VALUES = st.one_of(st.none(), st.integers(0, 1), st.booleans())
FIELDS = st.dictionaries(st.sampled_from("xy"), VALUES, max_size=2)
LABELS = st.dictionaries(st.sampled_from(["one", "two"]), st.sampled_from(["", "v"]), max_size=2)
OWNERS = st.lists(st.integers(0, 5), max_size=2, unique=True)
State = dict[Where, Json]


def merged(target: Json, changes: Json) -> Json:
    """Merge one level of plain values, which is all that is asked for here."""
    return {name: value for name, value in {**target, **changes}.items() if value is not None}


class StoreAgainstModel(RuleBasedStateMachine):
    """`state` is what the store must hold, without resource versions; every uid ever seen may be named as an owner."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.state: State = {}
        self.uids = ["never-was"]
        self.moments: list[tuple[str, State]] = []
        self.listing: tuple[list[Document], str, list[Json]] | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - the answer of any operation
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        self.store: EmbeddedStore = open_embedded(
            self.folder / "o.db", kinds=KINDS, clock=VirtualClock(), synchronous=Synchronous.NORMAL
        )

    @rule()
    def reopen(self) -> None:
        self.run(self.store.close())
        self.open()

    # --- what is done ------------------------------------------------------------------------------------------------

    @rule(where=PLACES, fields=FIELDS, labels=LABELS, owners=OWNERS)
    def create(self, where: Where, fields: Json, labels: Json, owners: list[int]) -> None:
        kind, key = where
        metadata: Json = {"name": key.name, "labels": labels, "ownerReferences": self.references(owners)}
        if key.namespace:
            metadata["namespace"] = key.namespace
        spec = merged({}, fields)
        try:
            made = self.run(self.store.create(kind, {"metadata": metadata, "spec": spec, "status": {"x": 1}}))
        except AlreadyExistsError:
            assert where in self.state
            return
        assert where not in self.state
        assert made.metadata.uid not in self.uids
        assert (made.metadata.generation, made.body["spec"]) == (1, spec)
        assert ("status" in made.body) is not kind.status
        self.uids.append(made.metadata.uid)
        self.state[where] = without_version(made)
        self.settle()

    @rule(where=PLACES, fields=FIELDS, labels=LABELS, owners=st.one_of(st.none(), OWNERS))
    def patch(self, where: Where, fields: Json, labels: Json, owners: list[int] | None) -> None:
        kind, key = where
        metadata: Json = {"labels": labels, "generation": 77}
        if owners is not None:
            metadata["ownerReferences"] = self.references(owners) or None
        changes: Json = {"metadata": metadata, "spec": fields}
        if kind.status:
            changes["status"] = {"x": "never"}
        expected = deepcopy(self.state.get(where))
        if expected is not None:
            before = expected["spec"]
            expected["spec"] = merged(before, fields)
            expected["metadata"]["generation"] += repr(sorted(before.items())) != repr(sorted(expected["spec"].items()))
            said = {**expected["metadata"], "labels": {**expected["metadata"].get("labels", {}), **labels}}
            if owners is not None:
                said["ownerReferences"] = self.references(owners)
            expected["metadata"] = {name: value for name, value in said.items() if value not in ({}, [])}
        self.change(where, self.store.patch(kind, key, changes), expected)

    @rule(name=NAMES, fields=FIELDS)
    def patch_status(self, name: str, fields: Json) -> None:
        where = SHELF, ObjectKey(None, name)
        expected = deepcopy(self.state.get(where))
        if expected is not None:
            expected["status"] = merged(expected.get("status", {}), fields)
        self.change(where, self.store.patch_status(*where, fields), expected)

    def change(self, where: Where, ask: Coroutine[Any, Any, Document], expected: Json | None) -> None:
        before = self.version()
        if expected is None:
            with pytest.raises(NotFoundError):
                self.run(ask)
            return
        seen = without_version(self.run(ask))
        assert repr_of(seen) == repr_of(expected)
        assert (self.version() == before) == (repr_of(seen) == repr_of(self.state[where])), "a version per change"
        self.state[where] = seen
        self.settle()

    @rule(where=PLACES, condition=st.sampled_from(["none", "right", "uid", "version"]))
    def delete(self, where: Where, condition: str) -> None:
        kind, key = where
        if where not in self.state:
            with pytest.raises(NotFoundError):
                self.run(self.store.delete(kind, key, uid="any"))
            return
        found = self.run(self.store.get(kind, key)).metadata
        uid = {"none": None, "uid": "other"}.get(condition, found.uid)
        version = {"none": None, "version": "1"}.get(condition, found.resource_version)
        if condition in {"uid", "version"}:
            with pytest.raises(ConflictError):
                self.run(self.store.delete(kind, key, uid=uid, version=version))
            return
        self.run(self.store.delete(kind, key, uid=uid, version=version))
        del self.state[where]
        self.settle()

    @rule(chosen=st.lists(st.tuples(PLACES, st.sampled_from(["right", "right", "uid", "version"])), max_size=8))
    def delete_many(self, chosen: list[tuple[Where, str]]) -> None:
        """Several at once, some of them twice: the first that is right removes, the others are told what is left."""
        deletions: list[Deletion] = []
        removing: dict[Where, int] = {}
        for number, (where, condition) in enumerate(chosen):
            known = where in self.state
            found = self.run(self.store.get(*where)).metadata if known else ObjectMeta(name="none")
            uid, version = found.uid, found.resource_version
            deletions.append(
                Deletion(*where, "other" if condition == "uid" else uid, "1" if condition == "version" else version)
            )
            if known and condition == "right":
                removing.setdefault(where, number)
        noted: list[int] = []
        refusals = self.run(self.store.delete_all(deletions, also=lambda _, which: noted.extend(which)))
        for where in removing:
            del self.state[where]
        assert noted == sorted(removing.values())
        for number, (where, _) in enumerate(chosen):
            expected = NoneType if number in noted else ConflictError if where in self.state else NotFoundError
            assert isinstance(refusals[number], expected)
        self.settle()

    def settle(self) -> None:
        """Let the collector work, and say in one sentence what it must have done."""
        self.run(collected(self.store))
        while True:
            alive = {body["metadata"]["uid"] for body in self.state.values()}
            doomed = [where for where, body in self.state.items() if owners_of(body) and not owners_of(body) & alive]
            if not doomed:
                break
            for where in doomed:
                del self.state[where]
        for body in self.state.values():
            if owners_of(body) - alive:
                left = [owner for owner in body["metadata"]["ownerReferences"] if owner["uid"] in alive]
                body["metadata"] = {**body["metadata"], "ownerReferences": left}

    # --- what must be true -------------------------------------------------------------------------------------------

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        assert repr_of(self.current()) == repr_of(self.state)

    @rule()
    def remember_this_moment(self) -> None:
        self.moments.append((self.version(), deepcopy(self.state)))

    @precondition(lambda self: self.moments)
    @rule(data=st.data())
    def watches_from_any_moment_lead_to_now(self, data: st.DataObject) -> None:
        since, state = data.draw(st.sampled_from(self.moments))
        replayed = deepcopy(state)
        for kind in KINDS:
            self.run(self.replay(kind, since, replayed))
        assert repr_of(replayed) == repr_of(self.state)

    async def replay(self, kind: Kind[Document], since: str, replayed: State) -> None:
        # The end of the watch is marked by an object that no rule touches.
        marker = await self.store.create(
            kind, {"metadata": {"name": "zz"} | ({"namespace": "z"} if kind.namespaced else {})}
        )
        await self.store.delete(kind, marker.metadata.key)
        seen = int(since)
        watch = self.store.watch(kind, since=since)
        async for event in watch:
            assert int(event.resource_version) > seen
            seen = int(event.resource_version)
            if event.object is None:
                continue
            where = kind, event.object.metadata.key
            if event.object.metadata.name == "zz":
                if event.type is EventType.DELETED and event.object.metadata.uid == marker.metadata.uid:
                    break
            elif event.type is EventType.DELETED:
                del replayed[where]
            else:
                assert (where in replayed) == (event.type is EventType.MODIFIED)
                replayed[where] = without_version(event.object)
        await watch.aclose()

    @precondition(lambda self: self.listing is None)
    @rule()
    def begin_a_list_in_pages(self) -> None:
        whole = self.run(self.store.list(NOTE)).items
        first = self.run(self.store.list(NOTE, limit=1))
        if first.next is not None:
            self.listing = [*first.items], first.next, [item.body for item in whole]

    @precondition(lambda self: self.listing is not None)
    @rule()
    def read_the_next_page(self) -> None:
        assert self.listing is not None
        items, after, whole = self.listing
        page = self.run(self.store.list(NOTE, limit=1, after=after))
        items += page.items
        self.listing = None if page.next is None else (items, page.next, whole)
        if page.next is None:
            assert [item.body for item in items] == whole

    @invariant()
    def nothing_is_left_lying_about(self) -> None:
        database = self.store.database
        assert database.read("SELECT count(*) FROM owners") == [
            (sum(len(owners_of(body)) for body in self.state.values()),)
        ]
        assert database.read("SELECT count(*) FROM garbage") == [(0,)]

    # --- help --------------------------------------------------------------------------------------------------------

    def references(self, owners: list[int]) -> list[Json]:
        return [reference(SHELF, "any", self.uids[number % len(self.uids)]) for number in owners][:1] + [
            reference(SHELF, "any", self.uids[number % len(self.uids)])
            for number in owners[1:]
            if number % len(self.uids) != owners[0] % len(self.uids)
        ]

    def version(self) -> str:
        return str(self.run(self.store.list(NOTE, limit=1)).resource_version)

    def current(self) -> State:
        return {
            (kind, item.metadata.key): without_version(item)
            for kind in KINDS
            for item in self.run(self.store.list(kind, limit=100)).items
        }

    def teardown(self) -> None:
        with suppress(AttributeError):
            self.run(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)


def without_version(item: Document) -> Json:
    body = deepcopy(item.body)
    del body["metadata"]["resourceVersion"]
    return body


def owners_of(body: Json) -> set[str]:
    return {owner["uid"] for owner in body["metadata"].get("ownerReferences", ())}


def repr_of(value: Any) -> str:  # noqa: ANN401 - any document or state
    """Compare as text with sorted keys: to Python 1 and True are the same."""
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{key!r}:{repr_of(inner)}" for key, inner in value.items())) + "}"
    return repr(value)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=examples(25), stateful_step_count=40, deadline=None)
