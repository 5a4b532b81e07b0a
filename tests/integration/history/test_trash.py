"""The trash of records, and of what policies end: packed by page, brought back, and nobody else's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.app.trash import trashed_objects
from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.db.sqlite.file import Synchronous
from lapse.domains import object_kinds
from lapse.engine.executor import Executor
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.running.metrics import Metrics
from lapse.engine.trash import TrashBin
from lapse.history.api.kinds import RetentionPolicy
from lapse.history.policy.policy import Policy
from lapse.history.retention.passes import Pass
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey, untyped
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.target import ObjectTarget
from lapse.objects.trash.rules import TRASH
from lapse.requests.api.kinds import MANIFEST_CHECKPOINT, OBJECT_KEEPER
from lapse.requests.api.upstream import CONFIG_MAP
from lapse.requests.trash import trash_of
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.history.retention.policy_set import PassReport

SECRET = untyped("v1", "Secret", "secrets")
NAMESPACE = "shop"
WEEK = Duration.parse("7d")


def policy(kind: str = "ConfigMap", api_version: str = "v1", *, name: str = "p", **spec: Any) -> Policy:  # noqa: ANN401 - as written
    body = {
        "metadata": {"name": name},
        "spec": {"selector": {"apiVersion": api_version, "kind": kind}, "dryRun": False, **spec},
    }
    return Policy.read(msgspec.convert(body, RetentionPolicy))


class Scene:
    """A store with what policies select, and a trash."""

    def __init__(self, store: EmbeddedStore, clock: VirtualClock) -> None:
        self.store, self.clock, self.journal = store, clock, SQLiteJournal(store.database)
        self.trash = trash_of(store, WEEK, dependants=store, clock=clock)

    @property
    def bin(self) -> TrashBin:
        return TrashBin(
            trashed_objects(self.store, holds=self.store, dependants=self.store, journal=self.journal, clock=self.clock)
        )

    async def config_map(self, name: str, **more: Any) -> Any:  # noqa: ANN401 - a document
        self.clock.advance(1)
        metadata = {"name": name, "namespace": NAMESPACE, **more.pop("metadata", {})}
        return await self.store.create(CONFIG_MAP, {"metadata": metadata, **more})

    async def run(self, *policies: Policy) -> PassReport:
        metrics = Metrics("test")
        target = ObjectTarget(self.store, self.store, trash=self.trash)
        executor = Executor(target, self.journal, clock=self.clock, metrics=metrics, actor="lapse")
        passing = Pass(
            policies, direct=self.store, executor=executor, journal=self.journal, metrics=metrics, clock=self.clock
        )
        return next(iter((await passing.run()).values()))

    async def undo(self, address: str) -> Any:  # noqa: ANN401 - what came back
        return await self.bin.bring_back(await self.bin.find(address), by="ann")

    async def names(self) -> list[str]:
        return [one.metadata.name for one in (await self.store.list(CONFIG_MAP, namespace=NAMESPACE)).items]


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock = VirtualClock()
    kinds = [*object_kinds(), SECRET]
    store = open_embedded(tmp_path / "objects.db", kinds=kinds, clock=clock, synchronous=Synchronous.NORMAL)
    yield Scene(store, clock)
    await store.close()


async def test_what_a_policy_ends_comes_back_as_it_was_and_stays_although_it_is_one_too_many(scene: Scene) -> None:
    made = [await scene.config_map(f"c{number}", data={"n": str(number)}) for number in range(5)]
    report = await scene.run(policy(maxCount=2))
    assert report.outcomes[Outcome.ENDED] == 3
    assert await scene.names() == ["c3", "c4"]
    back = await scene.undo("ConfigMap/shop/c0")
    again = await scene.store.get(CONFIG_MAP, made[0].metadata.key)
    assert again.body["data"] == {"n": "0"}
    assert again.metadata.uid == back.uid != made[0].metadata.uid
    assert back.uid in back.says
    report = await scene.run(policy(maxCount=2))
    assert await scene.names() == ["c0", "c3", "c4"], "it is held for as long as the trash keeps things"
    assert report.outcomes[Outcome.ENDED] == 0


@settings(max_examples=examples(40), deadline=None)
@given(
    data=st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"])), max_size=5
    ),
    labels=st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[a-z0-9]{0,20}", fullmatch=True)
    ),
)
async def test_any_object_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, str], labels: dict[str, str]
) -> None:
    clock = VirtualClock()
    path = tmp_path_factory.mktemp("trash") / "objects.db"
    store = open_embedded(path, kinds=object_kinds(), clock=clock, synchronous=Synchronous.NORMAL)
    scene = Scene(store, clock)
    made = await scene.config_map("one", metadata={"labels": labels}, data=data)
    clock.advance(7200)
    await scene.run(policy(maxAge="1h"))
    assert await scene.names() == []
    await scene.undo("ConfigMap/shop/one")
    again = (await store.get(CONFIG_MAP, made.metadata.key)).body
    assert again["data"] == made.body["data"]
    assert again["metadata"].get("labels") == made.body["metadata"].get("labels")
    await store.close()


async def test_a_policy_that_says_never_leaves_nothing_in_the_trash_and_wins_over_others(scene: Scene) -> None:
    made = await scene.config_map("one")
    scene.clock.advance(7200)
    legal = policy(maxAge="1h", trash="never")
    await scene.run(policy(maxAge="30m", name="plain"), legal)
    assert await scene.names() == []
    assert (await scene.bin.page()).items == []
    assert (await scene.store.list(OBJECT_KEEPER)).items == ()
    (row,) = [one for one in await scene.journal.entries(uid=made.metadata.uid) if one.outcome is Outcome.ENDED]
    assert row.details is not None
    assert row.details["not_undoable"] == "a policy that wants it gone says trash: never"


async def test_secrets_are_never_copied(scene: Scene) -> None:
    made = await scene.store.create(SECRET, {"metadata": {"name": "s", "namespace": NAMESPACE}, "data": {"k": "djE="}})
    scene.clock.advance(7200)
    await scene.run(policy("Secret", maxAge="1h"))
    with pytest.raises(NotFoundError):
        await scene.store.get(SECRET, ObjectKey(NAMESPACE, "s"))
    assert (await scene.bin.page()).items == []
    (row,) = [one for one in await scene.journal.entries(uid=made.metadata.uid) if one.outcome is Outcome.ENDED]
    assert row.details is not None
    assert row.details["not_undoable"] == "Secrets are never copied"


async def test_an_owner_of_others_goes_as_before_and_the_row_says_that_it_does_not_come_back(scene: Scene) -> None:
    owner = await scene.config_map("owner", metadata={"labels": {"go": "yes"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    await scene.config_map("owned", metadata={"ownerReferences": [reference]})
    scene.clock.advance(7200)
    rule = policy(maxAge="1h", onlyWhen=[{"fieldPath": "metadata.labels.go", "in": ["yes"]}])
    await scene.run(rule)
    assert (await scene.bin.page()).items == []
    (row,) = [one for one in await scene.journal.entries(uid=owner.metadata.uid) if one.outcome is Outcome.ENDED]
    assert row.details is not None
    assert row.details["not_undoable"] == "it owns other objects, which go with it"


async def test_what_the_trash_has_is_no_candidate_of_a_policy_and_counts_in_no_group(scene: Scene) -> None:
    for number in range(3):
        await scene.config_map(f"c{number}")
    scene.clock.advance(7200)
    await scene.run(policy(maxAge="1h"))
    keepers, checkpoints = (
        (await scene.store.list(OBJECT_KEEPER)).items,
        (await scene.store.list(MANIFEST_CHECKPOINT)).items,
    )
    assert [one.metadata.labels[TRASH] for one in keepers] == ["true"]
    assert len(checkpoints) == 1
    scene.clock.advance(7200)
    for kind, group in (("ObjectKeeper", OBJECT_KEEPER), ("ManifestCheckpoint", MANIFEST_CHECKPOINT)):
        report = await scene.run(policy(kind, group.api_version, maxAge="1h"))
        assert (report.matched, report.outcomes.total()) == (0, 0), kind
    mine = await scene.store.create(
        OBJECT_KEEPER, {"metadata": {"name": "mine"}, "spec": {"mode": "TTL", "ttl": "1000h"}}
    )
    report = await scene.run(policy("ObjectKeeper", OBJECT_KEEPER.api_version, maxCount=1))
    assert report.matched == 1, "only the one that is no trash"
    assert (await scene.store.get(OBJECT_KEEPER, mine.metadata.key)).metadata.uid == mine.metadata.uid


async def test_a_trash_that_cannot_be_written_keeps_what_would_go(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.config_map("one")
    scene.clock.advance(7200)
    assert scene.trash is not None

    async def full(*_: object, **__: object) -> None:
        raise NotFoundError(kind="x", name="y")

    monkeypatch.setattr(scene.trash, "write_page", full)
    report = await scene.run(policy(maxAge="1h"))
    assert report.outcomes == {Outcome.FAILED: 1}
    assert await scene.names() == ["one"]
