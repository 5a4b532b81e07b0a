"""What the commands for requests write, on a real store; the controllers are played by the test."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lapse.cli.commands.requests import delete_in_folder
from lapse.cli.context import Context, who
from lapse.cli.waiting import GoneMeanwhileError, StillWaitingError, until_gone, until_ready
from lapse.engine.journal.port import Outcome
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.safety.holds import HeldError
from lapse.engine.verbs.contract import DeleteRequest, HoldRequest, SteeredView
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Kind, ObjectKey
from lapse.objects.embedded import EmbeddedStore
from lapse.requests import view as requests_view
from lapse.requests.addresses import Located, keeper_name, locate
from lapse.requests.api.kinds import OBJECT_KEEPER, VOLUME_CAPTURE_REQUEST, CaptureMode, ObjectKeeper
from lapse.requests.api.upstream import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.expiry import NotDeletableError
from lapse.requests.local.places import DIRECTORY
from lapse.requests.submission import (
    Capture,
    CaptureManifests,
    ClaimExistsError,
    ClaimFailedError,
    ClaimTakenError,
    LapsedError,
    Restore,
    SourceError,
    derived_names,
)
from lapse.requests.view import read_or_none, read_views
from lapse.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lapse.objects.port import Reader

NIGHTLY = Located(VOLUME_CAPTURE_REQUEST, ObjectKey("default", "nightly"))


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[Context]:
    async with AsyncExitStack() as stack:
        yield Context(load_settings({"state_dir": str(tmp_path / "state")}), stack)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "My Data!"
    directory.mkdir()
    return directory


def capture(name: str = "nightly", *, directory: Path | None = None, claim: str | None = None) -> Capture:
    text = None if directory is None else str(directory)
    return Capture.checked(name, namespace="default", directory=text, claim=claim, mode=CaptureMode.SNAPSHOT)


def restore(source: str, *, name: str = "monday", claim: str | None = None) -> Restore:
    return Restore.checked(name, namespace="default", source=source, to=None, claim=claim)


async def claims(context: Context) -> list[tuple[str, str]]:
    page = await context.store.list(PERSISTENT_VOLUME_CLAIM)
    return [(one.metadata.name, one.metadata.annotations[DIRECTORY]) for one in page.items]


async def finish(context: Context, place: Located, *, reason: str = "Completed") -> str:
    """Play the controller: a keeper, a snapshot that it owns, the final condition; return the snapshot's name."""
    request = await context.store.get(place.kind, place.key)
    meta = request.metadata
    follow = {"apiVersion": VOLUME_CAPTURE_REQUEST.api_version, "kind": VOLUME_CAPTURE_REQUEST.kind,
              "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}  # fmt: skip
    spec = {"mode": "FollowObjectWithTTL", "ttl": "24h", "followObjectRef": follow}
    keeper = await context.store.create(
        OBJECT_KEEPER, {"metadata": {"name": keeper_name("vcr", meta.uid)}, "spec": spec}
    )
    owner = {"apiVersion": OBJECT_KEEPER.api_version, "kind": OBJECT_KEEPER.kind, "name": keeper.metadata.name,
             "uid": keeper.metadata.uid, "controller": True}  # fmt: skip
    name = f"snapshot-{meta.uid}"
    made = await context.store.create(
        VOLUME_SNAPSHOT_CONTENT,
        {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"volumeSnapshotRef": {"namespace": meta.namespace}},
        },
    )
    ready = {"type": "Ready", "status": "True" if reason == "Completed" else "False", "reason": reason, "message": "m"}
    reference = {"apiVersion": VOLUME_SNAPSHOT_CONTENT.api_version, "kind": VOLUME_SNAPSHOT_CONTENT.kind,
                 "name": name, "uid": made.metadata.uid}  # fmt: skip
    status = {"conditions": [ready], "completionTimestamp": "2030-01-01T00:00:00Z", "artifactRef": reference}
    await context.store.patch_status(place.kind, place.key, status)
    return name


# --- capture ----------------------------------------------------------------------------------------------------------


async def test_a_capture_of_a_directory_makes_a_claim_for_it_and_a_request_for_that_very_claim(
    context: Context, data: Path
) -> None:
    place = await capture(directory=data).ask(context.store)
    request = await context.store.get(place.kind, place.key)
    claim = await context.store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey("default", "my-data"))

    assert place == NIGHTLY
    assert await claims(context) == [("my-data", str(data))]
    assert (request.spec.mode, request.spec.target.name) == ("Snapshot", "my-data")
    assert request.spec.target.uid == claim.metadata.uid
    assert request.status is None
    assert claim.metadata.owner_references == ()


async def test_a_second_capture_uses_the_claim_that_there_is_by_whatever_path(
    context: Context, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(data)
    await capture("a", directory=data).ask(context.store)
    await capture("b", directory=tmp_path / "link").ask(context.store)
    await capture("c", claim="my-data").ask(context.store)

    assert await claims(context) == [("my-data", str(data))]


async def test_another_directory_of_the_same_name_gets_a_claim_of_its_own(
    context: Context, data: Path, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere" / "my-data"
    other.mkdir(parents=True)
    await capture("a", directory=data).ask(context.store)
    await capture("b", directory=other).ask(context.store)
    await capture("c", directory=other).ask(context.store)

    assert await claims(context) == [("my-data", str(data)), (derived_names(other)[1], str(other))]


async def test_a_named_claim_must_stand_for_the_same_directory(context: Context, data: Path, tmp_path: Path) -> None:
    await capture("a", directory=data, claim="mine").ask(context.store)
    await capture("b", directory=data, claim="mine").ask(context.store)
    with pytest.raises(ClaimTakenError, match=r"pvc/default/mine stands for .*My Data!, not for"):
        await capture("c", directory=tmp_path, claim="mine").ask(context.store)

    assert await claims(context) == [("mine", str(data))]


async def test_a_claim_that_could_not_be_bound_is_not_captured(context: Context, data: Path) -> None:
    await capture("a", directory=data).ask(context.store)
    failed = {"type": "ProvisioningFailed", "status": "True", "reason": "ProvisioningFailed", "message": "no such"}
    key = ObjectKey("default", "my-data")
    await context.store.patch_status(PERSISTENT_VOLUME_CLAIM, key, {"conditions": [failed]})

    with pytest.raises(ClaimFailedError, match="has no volume: no such"):
        await capture("b", directory=data).ask(context.store)
    assert await read_or_none(context.store, VOLUME_CAPTURE_REQUEST, ObjectKey("default", "b")) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [("/srv/data", "data"), ("/srv/My Photos 2024", "my-photos-2024"), ("/srv/__", "directory"), ("/", "directory"),
     ("/srv/Ωmega", "mega"), (f"/srv/{'a' * 200}", "a" * 60)],
)  # fmt: skip
def test_a_claim_is_named_after_its_directory_as_far_as_names_go(path: str, name: str) -> None:
    plain, unique = derived_names(Path(path))

    assert plain == name
    assert unique.startswith(f"{name}-")


# --- restore ----------------------------------------------------------------------------------------------------------


async def test_a_restore_may_name_the_capture_the_snapshot_or_its_address(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    snapshot = await finish(context, NIGHTLY)
    sources = []
    for number, source in enumerate(["vcr/default/nightly", snapshot, f"vsc/{snapshot}"]):
        place = await restore(source, name=f"r{number}").ask(context.store)
        sources.append((await context.store.get(place.kind, place.key)).spec.source_ref)

    assert {(one.kind, one.name) for one in sources} == {("VolumeSnapshotContent", snapshot)}
    assert len({one.uid for one in sources}) == 1


async def test_a_restore_finds_the_snapshot_of_a_capture_that_has_lapsed(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    snapshot = await finish(context, NIGHTLY)
    await delete_in_folder(context, NIGHTLY)

    place = await restore("vcr/default/nightly").ask(context.store)
    assert (await context.store.get(place.kind, place.key)).spec.source_ref.name == snapshot


async def test_of_two_captures_of_one_name_that_have_lapsed_one_must_be_named(context: Context, data: Path) -> None:
    names = []
    for _ in range(2):
        await capture(directory=data).ask(context.store)
        names.append(await finish(context, NIGHTLY))
        await delete_in_folder(context, NIGHTLY)

    with pytest.raises(SourceError) as caught:
        await restore("vcr/default/nightly").ask(context.store)
    assert all(name in str(caught.value) for name in names)


async def test_an_unfinished_or_failed_capture_cannot_be_restored(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    with pytest.raises(SourceError, match="it has not finished yet"):
        await restore("vcr/default/nightly").ask(context.store)
    await finish(context, NIGHTLY, reason="Incompatible")
    with pytest.raises(SourceError, match=r"it has failed \(Incompatible\): m"):
        await restore("vcr/default/nightly").ask(context.store)


async def test_a_restore_wants_a_claim_that_does_not_exist(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    await finish(context, NIGHTLY)

    with pytest.raises(ClaimExistsError, match="pvc/default/my-data"):
        await restore("vcr/default/nightly", claim="my-data").ask(context.store)


async def test_targets_of_manifests_are_resolved(context: Context) -> None:
    asked = CaptureManifests.checked("m", namespace="default", targets=["pvc/data", "v1:ConfigMap/c.d"])
    place = await asked.ask(context.store)
    request = await context.store.get(place.kind, place.key)

    assert [(one.api_version, one.kind, one.name) for one in request.spec.targets] == [
        ("v1", PERSISTENT_VOLUME_CLAIM.kind, "data"),
        ("v1", CONFIG_MAP.kind, "c.d"),
    ]


# --- waiting ----------------------------------------------------------------------------------------------------------


async def test_who_waits_is_told_the_outcome_as_soon_as_it_is_final(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    waiting = asyncio.create_task(until_ready(context, NIGHTLY, "10s"))
    await context.store.patch(VOLUME_CAPTURE_REQUEST, NIGHTLY.key, {"metadata": {"labels": {"a": "b"}}})
    await finish(context, NIGHTLY)

    assert (await waiting).ready is True
    assert (await until_ready(context, NIGHTLY, "10s")).reason == "Completed"


async def test_who_waits_for_something_that_is_deleted_is_told_so(
    context: Context, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, watch = asyncio.Semaphore(0), EmbeddedStore.watch

    def noticed(store: EmbeddedStore, kind: Kind[Any], *, namespace: str | None, since: str) -> object:
        began.release()
        return watch(store, kind, namespace=namespace, since=since)

    monkeypatch.setattr(EmbeddedStore, "watch", noticed)
    await capture(directory=data).ask(context.store)
    ready = asyncio.create_task(until_ready(context, NIGHTLY, "10s"))
    gone = asyncio.create_task(until_gone(context, NIGHTLY, "10s"))
    for _ in (ready, gone):
        await began.acquire()
    await delete_in_folder(context, NIGHTLY)

    with pytest.raises(GoneMeanwhileError):
        await ready
    assert await gone is True
    assert await until_gone(context, NIGHTLY, "10s") is False


async def test_a_wait_that_is_over_says_whether_somebody_works_on_it(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    with pytest.raises(StillWaitingError, match="Is lapse up running with --state-dir"):
        await until_ready(context, NIGHTLY, "10ms")
    await finish(context, NIGHTLY)
    with pytest.raises(StillWaitingError, match=r"still there after 10ms. It goes on by itself"):
        await until_gone(context, NIGHTLY, "10ms")


# --- deleting ---------------------------------------------------------------------------------------------------------


async def test_a_deletion_is_journalled_and_says_what_happens_next(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    uid = (await context.store.get(NIGHTLY.kind, NIGHTLY.key)).metadata.uid
    await finish(context, NIGHTLY)
    done = await delete_in_folder(context, NIGHTLY)
    (row,) = await SQLiteJournal(context.embedded.database).entries()

    says = f"keeper/ret-vcr-{uid} and what it keeps go 1d from now."
    assert done == SteeredView(address="vcr/default/nightly", domain="requests", uid=uid, says=says)
    assert (row.address, row.uid, row.actor, row.outcome) == ("vcr/default/nightly", uid, who(), Outcome.ENDED)
    with pytest.raises(NotFoundError):
        await context.store.get(NIGHTLY.kind, NIGHTLY.key)
    assert len((await context.store.list(VOLUME_SNAPSHOT_CONTENT)).items) == 1


async def test_how_long_to_keep_is_part_of_what_is_asked_for(context: Context, data: Path) -> None:
    asked = Capture.checked(
        "kept", namespace="default", directory=str(data), claim=None, mode=CaptureMode.SNAPSHOT, keep="720h"
    )
    place = await asked.ask(context.store)
    assert (await context.store.get(place.kind, place.key)).spec.artifact_ttl == "30d"
    other = CaptureManifests.checked("kept", namespace="default", targets=["pvc/data"], keep="never")
    place = await other.ask(context.store)
    assert (await context.store.get(place.kind, place.key)).spec.artifact_ttl == "never"


async def test_a_keeper_is_deleted_by_hand_only_if_it_never_goes_by_itself(context: Context) -> None:
    for name, ttl in (("ret-1", "never"), ("ret-2", "24h")):
        await context.store.create(OBJECT_KEEPER, {"metadata": {"name": name}, "spec": {"mode": "TTL", "ttl": ttl}})
    with pytest.raises(NotDeletableError):
        await delete_in_folder(context, locate("keeper/ret-2"))
    await delete_in_folder(context, locate("keeper/ret-1"))
    left = (await context.store.list(OBJECT_KEEPER)).items
    assert [one.metadata.name for one in left] == ["ret-2"]
    rows = await (await context.journal()).entries(domain="keepers")
    assert [row.address for row in rows] == ["keeper/ret-1"]


def follower(name: str, request: Any) -> dict[str, Any]:  # noqa: ANN401 - a request of any kind
    meta = request.metadata
    ref = {"apiVersion": VOLUME_CAPTURE_REQUEST.api_version, "kind": VOLUME_CAPTURE_REQUEST.kind}
    ref |= {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
    spec = {"mode": "FollowObjectWithTTL", "ttl": "24h", "followObjectRef": ref}
    return {"metadata": {"name": name}, "spec": spec}


async def test_a_keeper_that_is_held_is_refused_as_held_whatever_it_follows(context: Context, data: Path) -> None:
    place = await capture(directory=data).ask(context.store)
    request = await context.store.get(place.kind, place.key)
    await context.store.create(OBJECT_KEEPER, follower("ret-3", request))
    await context.store.create(OBJECT_KEEPER, {"metadata": {"name": "ret-4"}, "spec": {"mode": "TTL", "ttl": "24h"}})
    service = await context.service()
    for name in ("ret-3", "ret-4"):
        with pytest.raises(NotDeletableError):
            await service.delete(DeleteRequest(address=f"keeper/{name}"))
        await service.hold(HoldRequest(address=f"keeper/{name}", reason="audit"))
        with pytest.raises(HeldError, match="audit"):
            await service.delete(DeleteRequest(address=f"keeper/{name}"))
        with pytest.raises(HeldError, match="audit"):
            await delete_in_folder(context, locate(f"keeper/{name}"))
    assert len((await context.store.list(OBJECT_KEEPER)).items) == 2


async def test_a_keeper_is_deleted_by_hand_once_its_request_is_gone(context: Context, data: Path) -> None:
    place = await capture(directory=data).ask(context.store)
    request = await context.store.get(place.kind, place.key)
    await context.store.create(OBJECT_KEEPER, follower("ret-3", request))
    with pytest.raises(NotDeletableError, match=r"goes by itself: 24h after vcr/default/nightly\."):
        await delete_in_folder(context, locate("keeper/ret-3"))
    await context.store.delete(place.kind, place.key)
    hold = {"metadata": {"annotations": {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}}}
    await context.store.patch(OBJECT_KEEPER, ObjectKey(None, "ret-3"), hold)
    with pytest.raises(HeldError):
        await delete_in_folder(context, locate("keeper/ret-3"))
    release = {"metadata": {"annotations": {"lapse.dev/hold": None}}}
    await context.store.patch(OBJECT_KEEPER, ObjectKey(None, "ret-3"), release)
    await delete_in_folder(context, locate("keeper/ret-3"))
    assert not (await context.store.list(OBJECT_KEEPER)).items


async def test_what_is_held_is_not_deleted(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    annotations = {"lapse.dev/hold": "true", "lapse.dev/hold-reason": "audit"}
    await context.store.patch(VOLUME_CAPTURE_REQUEST, NIGHTLY.key, {"metadata": {"annotations": annotations}})

    with pytest.raises(HeldError, match=r"vcr/default/nightly is held \(audit\)"):
        await delete_in_folder(context, NIGHTLY)
    assert await context.store.get(NIGHTLY.kind, NIGHTLY.key)


async def test_what_changes_while_it_is_deleted_is_not_deleted(
    context: Context, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await capture(directory=data).ask(context.store)
    keeper_of = requests_view.keeper_of

    async def hold_meanwhile(store: Reader, kind: Kind[Any], uid: str) -> ObjectKeeper | None:
        changes = {"metadata": {"annotations": {"lapse.dev/hold": "true"}}}
        await context.store.patch(VOLUME_CAPTURE_REQUEST, NIGHTLY.key, changes)
        return await keeper_of(store, kind, uid)

    monkeypatch.setattr(requests_view, "keeper_of", hold_meanwhile)
    with pytest.raises(HeldError):
        await delete_in_folder(context, locate("vcr/default/nightly"))
    assert await context.store.get(NIGHTLY.kind, NIGHTLY.key)
    assert [row.outcome for row in await SQLiteJournal(context.embedded.database).entries()] == [Outcome.HELD]


# --- what is left when a request is gone ------------------------------------------------------------------------------


async def test_the_command_for_a_request_that_has_lapsed_says_where_its_data_is(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    await finish(context, NIGHTLY)
    request = await context.store.get(NIGHTLY.kind, NIGHTLY.key)
    await context.store.delete(NIGHTLY.kind, NIGHTLY.key)
    with pytest.raises(LapsedError) as caught:
        await delete_in_folder(context, NIGHTLY)
    assert f"keeper/{keeper_name('vcr', request.metadata.uid)}" in str(caught.value)
    assert "lapse requests restore NAME --from vcr/default/nightly" in str(caught.value)


async def test_a_request_that_never_was_is_not_there(context: Context) -> None:
    with pytest.raises(NotFoundError):
        await delete_in_folder(context, NIGHTLY)


async def test_a_list_of_a_namespace_has_no_keepers_and_artifacts_of_another_one(context: Context, data: Path) -> None:
    await capture(directory=data).ask(context.store)
    await finish(context, NIGHTLY)
    for namespace, count in (("default", 3), (None, 3), ("nope", 0)):
        now = context.clock.wall_ns()
        found = await read_views(context.store, (), namespace, now=now, rule=context.request_ttl)
        kinds = [one.place.kind.kind for one in found]
        assert len(kinds) == count, (namespace, kinds)


async def test_a_source_that_a_status_names_and_the_capture_did_not_make_is_refused(
    context: Context, data: Path
) -> None:
    await capture(directory=data).ask(context.store)
    await finish(context, NIGHTLY)
    foreign = await context.store.create(VOLUME_SNAPSHOT_CONTENT, {"metadata": {"name": "foreign"}, "spec": {}})
    reference = {"apiVersion": VOLUME_SNAPSHOT_CONTENT.api_version, "kind": VOLUME_SNAPSHOT_CONTENT.kind,
                 "name": "foreign", "uid": foreign.metadata.uid}  # fmt: skip
    await context.store.patch_status(NIGHTLY.kind, NIGHTLY.key, {"artifactRef": reference})
    with pytest.raises(SourceError, match="foreign, which was not made for it"):
        await restore("vcr/default/nightly").ask(context.store)
