"""The local executor with the real controllers: directories are captured, restored and detached, and nothing else."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from lapse.files import archive
from lapse.kube.errors import StoreUnavailableError
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.upstream import (
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_SNAPSHOT_CLASS,
    VOLUME_SNAPSHOT_CONTENT,
)
from lapse.requests.local import executor, provisioner
from lapse.requests.local.places import DIRECTORY, DRIVER
from tests.integration.requests.world import NAMESPACE, Call, Crash, Wire, World, content_key, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lapse.kube.resources import Object
    from lapse.requests.api.kinds import VolumeCaptureRequest, VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolumeClaim, VolumeSnapshotContent


@asynccontextmanager
async def local(folder: Path) -> AsyncIterator[World]:
    async with opened(folder, local=True) as world:
        yield world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with local(tmp_path) as found:
        yield found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory that is somebody's data."""
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_text("precious")
    (folder / "sub" / "Ünïcödé").write_bytes(bytes(1000))
    (folder / "link").symlink_to("file")
    return folder


def contents(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


async def claim(world: World, directory: Path, name: str = "data") -> PersistentVolumeClaim:
    metadata = {"namespace": NAMESPACE, "name": name, "annotations": {DIRECTORY: str(directory)}}
    found = await world.store.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata})
    await world.settle()
    return await world.fresh(found)


async def captured(world: World, directory: Path, name: str = "nightly") -> VolumeCaptureRequest:
    request = await world.capture(name, await claim(world, directory, f"{name}-data"))
    await world.live(3, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED
    return request


async def content_of(world: World, request: VolumeCaptureRequest) -> VolumeSnapshotContent:
    return await world.store.get(VOLUME_SNAPSHOT_CONTENT, content_key(request))


async def restored(
    world: World,
    source: Object,
    name: str = "back",
    directory: Path | None = None,
) -> VolumeRestoreRequest:
    template = {} if directory is None else {"annotations": {DIRECTORY: str(directory)}}
    request = await world.restore(name, source, claim=f"{name}-claim", template=template)
    await world.live(3, step=1)
    return request


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def archives(world: World) -> list[str]:
    return [path.name for path in (world.folder / "snapshots").glob("*")]


def parts(world: World) -> list[Path]:
    return list(world.folder.rglob(".*.part"))


# --- the whole chain --------------------------------------------------------------------------------------------------


async def test_an_executor_that_looks_before_the_controller_looks_again(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    request = await world.restore("back", content)
    while await world.work_once(lambda count: count - 1):  # those of the executor are the last
        pass
    assert await world.reason(request) == ConditionReason.COMPLETED


async def test_a_directory_is_captured_and_restored_into_another_one(world: World, data: Path) -> None:
    request = await captured(world, data)
    content = await content_of(world, request)
    (data / "file").write_text("changed since")
    back = await restored(world, content)
    assert await world.reason(back) == ConditionReason.COMPLETED
    found = world.folder / "volumes" / NAMESPACE / "back-claim"
    assert (found / "file").read_text() == "precious"
    assert contents(found) | {"file": b"changed since"} == contents(data)
    made = await world.store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(NAMESPACE, "back-claim"))
    assert made.status is not None
    assert made.status.phase == "Bound"
    assert parts(world) == []


async def test_a_restore_goes_where_its_template_says(world: World, data: Path, tmp_path: Path) -> None:
    content = await content_of(world, await captured(world, data))
    back = await restored(world, content, directory=tmp_path / "over" / "there")
    assert await world.reason(back) == ConditionReason.COMPLETED
    assert contents(tmp_path / "over" / "there") == contents(data)


async def test_a_detached_directory_is_restored_as_a_copy(world: World, data: Path) -> None:
    request = await world.capture("take", await claim(world, data), mode="Detach")
    await world.live(5, step=1)
    assert await world.reason(request) == ConditionReason.COMPLETED
    volume = (await world.all(PERSISTENT_VOLUME))[0]
    assert volume.status is not None
    assert volume.status.phase == "Released"
    back = await restored(world, volume)
    assert await world.reason(back) == ConditionReason.COMPLETED
    assert contents(world.folder / "volumes" / NAMESPACE / "back-claim") == contents(data)


async def test_directories_are_never_removed(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    await restored(world, content)
    before = contents(data)
    everything: list[Object] = [*await world.all(PERSISTENT_VOLUME_CLAIM), *await world.all(PERSISTENT_VOLUME)]
    for obj in everything:
        await world.delete(obj)
    await world.live(hours=30, step=3600)
    assert contents(data) == before
    assert (world.folder / "volumes" / NAMESPACE / "back-claim" / "file").exists()


async def test_the_executor_writes_only_its_own_objects(tmp_path: Path, data: Path) -> None:
    """Its writes are told from those of the controllers by a wire of its own."""
    async with local(tmp_path) as world:
        assert world.executor is not None
        mine = Wire(world.store)
        for service in world.executor._services:
            reconcile: Any = service._controller._reconcile
            reconcile.__self__._store = mine
        content = await content_of(world, await captured(world, data))
        await restored(world, content)
        detach = await world.capture("take", await claim(world, data, "other"), mode="Detach")
        await world.live(minutes=15)
        assert not await world.exists(detach)
        written = {(call.method, call.kind) for call in mine.writes}
        assert written == {
            ("create", "PersistentVolume"),
            ("create", "PersistentVolumeClaim"),
            ("patch", "PersistentVolumeClaim"),
            ("patch_status", "PersistentVolume"),
            ("patch_status", "PersistentVolumeClaim"),
            ("patch_status", "VolumeSnapshotContent"),
        }


async def test_contents_and_claims_of_other_drivers_are_left_alone(world: World) -> None:
    foreign = await world.snapshot("foreign", ready=False)
    body = {"metadata": {"namespace": NAMESPACE, "name": "theirs"}, "spec": {"storageClassName": "fast"}}
    theirs = await world.store.create(PERSISTENT_VOLUME_CLAIM, body)
    await world.live(minutes=5)
    assert (await world.fresh(foreign)).metadata.resource_version == foreign.metadata.resource_version
    assert (await world.fresh(theirs)).metadata.resource_version == theirs.metadata.resource_version


async def test_the_classes_are_there_and_those_of_a_user_are_kept(world: World) -> None:
    assert await world.names(STORAGE_CLASS) == ["local"]
    await world.store.patch(VOLUME_SNAPSHOT_CLASS, ObjectKey(None, "local"), {"deletionPolicy": "Retain"})
    await world.restart()
    (found,) = await world.all(VOLUME_SNAPSHOT_CLASS)
    assert (found.driver, found.deletion_policy) == (DRIVER, "Retain")


# --- when archives go -------------------------------------------------------------------------------------------------


async def test_an_archive_is_removed_only_after_its_content_is_gone(world: World, data: Path) -> None:
    request = await captured(world, data)
    content = await content_of(world, request)
    name = f"{content.metadata.name}.tar.gz"
    await world.live(minutes=15)
    assert not await world.exists(request)
    await world.live(hours=23, step=3600)
    assert archives(world) == [name], "the keeper keeps it"
    await world.live(hours=2, step=600)
    assert not await world.exists(content)
    assert archives(world) == []


async def test_a_cache_that_lost_sight_of_a_content_does_not_cost_its_archive(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    world.requests.caches.of(VOLUME_SNAPSHOT_CONTENT)._remove(content.metadata.key)
    assert world.executor is not None
    await world.executor._services[0]._controller._reconcile(content.metadata.key)
    assert len(archives(world)) == 1


async def test_a_store_that_does_not_answer_does_not_cost_an_archive(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    world.requests.caches.of(VOLUME_SNAPSHOT_CONTENT)._remove(content.metadata.key)

    def away(_call: Call) -> None:
        raise StoreUnavailableError(problem="away")

    world.wire.before = away
    assert world.executor is not None
    with pytest.raises(StoreUnavailableError):
        await world.executor._services[0]._controller._reconcile(content.metadata.key)
    assert len(archives(world)) == 1


async def test_an_archive_of_a_class_that_retains_stays(world: World, data: Path) -> None:
    await world.store.patch(VOLUME_SNAPSHOT_CLASS, ObjectKey(None, "local"), {"deletionPolicy": "Retain"})
    content = await content_of(world, await captured(world, data))
    kept = world.folder / "retained" / f"{content.metadata.name}.tar.gz"
    assert kept.exists()
    await world.delete(content)
    await world.live(minutes=5)
    await world.restart()
    await world.live(minutes=5)
    assert kept.exists()


async def test_a_content_that_is_to_be_retained_after_all_keeps_its_archive(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    changes = {"spec": {"deletionPolicy": "Retain"}}
    await world.store.patch(VOLUME_SNAPSHOT_CONTENT, content.metadata.key, changes)
    await world.settle()
    back = await restored(world, await world.fresh(content))
    assert await world.reason(back) == ConditionReason.COMPLETED
    await world.delete(content)
    await world.live(minutes=5)
    assert (world.folder / "retained" / f"{content.metadata.name}.tar.gz").exists()


async def test_an_archive_whose_content_went_while_nobody_was_here_is_kept_because_a_lost_store_looks_the_same(
    world: World, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await content_of(world, await captured(world, data, "first"))
    later = await content_of(world, await captured(world, data, "second"))
    await world.stop()
    await world.delete(kept)
    await world.restart()
    await world.settle()
    assert len(archives(world)) == 2
    assert "archive_kept" in caplog.text

    await world.delete(later)  # seen by this run, so its end is no doubt
    await world.settle()
    assert len(archives(world)) == 1


# --- what goes wrong --------------------------------------------------------------------------------------------------


async def test_an_archive_cut_in_half_is_a_failed_restore_and_the_archive_is_kept(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    path = world.folder / "snapshots" / archives(world)[0]
    os.truncate(path, path.stat().st_size // 2)
    back = await restored(world, content)
    outcome = await world.outcome(back)
    assert outcome is not None
    assert outcome[0] == ConditionReason.RESTORE_FAILED
    assert "the archive is damaged" in outcome[1]
    assert path.exists()
    assert not (world.folder / "volumes" / NAMESPACE / "back-claim").exists()
    assert parts(world) == []


async def test_a_full_disk_during_a_capture_is_a_failed_capture_that_leaves_nothing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_write", full)
    request = await world.capture("nightly", await claim(world, data))
    await world.live(minutes=2, step=30)
    outcome = await world.outcome(request)
    assert outcome == (ConditionReason.FAILED, f"capturing {data} failed: No space left on device.")
    assert archives(world) == []
    assert contents(data)["file"] == b"precious"


async def test_a_full_disk_during_a_restore_is_a_failed_restore_that_leaves_nothing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = await content_of(world, await captured(world, data))

    def full(*_args: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "_copy_sparsely", full)
    back = await restored(world, content)
    outcome = await world.outcome(back)
    assert outcome is not None
    assert outcome[0] == ConditionReason.RESTORE_FAILED
    assert "No space left on device" in outcome[1]
    assert parts(world) == []
    assert len(archives(world)) == 1


async def test_a_directory_that_is_gone_is_a_failed_capture(world: World, data: Path) -> None:
    found = await claim(world, data)
    move_away(data)
    request = await world.capture("nightly", found)
    await world.live(3, step=1)
    assert await world.outcome(request) == (
        ConditionReason.FAILED,
        f"capturing {data} failed: there is no such directory.",
    )


async def test_a_claim_that_names_no_directory_says_so(world: World, tmp_path: Path) -> None:
    found = await claim(world, tmp_path / "nothing-here")
    assert found.status is not None
    assert found.status.conditions is not None
    assert "is not a directory" in found.status.conditions[0].message
    assert await world.all(PERSISTENT_VOLUME) == []


async def test_a_restore_into_a_directory_with_files_fails_and_leaves_them(
    world: World, data: Path, tmp_path: Path
) -> None:
    content = await content_of(world, await captured(world, data))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("keep")
    back = await restored(world, content, directory=taken)
    assert await world.reason(back) == ConditionReason.RESTORE_FAILED
    assert contents(taken) == {"mine": b"keep"}


# --- outdated caches and restarts -------------------------------------------------------------------------------------


async def test_a_cache_that_is_behind_does_not_capture_a_second_time(world: World, data: Path) -> None:
    request = await captured(world, data)
    content = await content_of(world, request)
    assert content.status is not None
    (data / "file").write_text("changed since")
    cache = world.requests.caches.of(VOLUME_SNAPSHOT_CONTENT)
    cache._objects[content.metadata.key] = _without_status(VOLUME_SNAPSHOT_CONTENT, content)
    assert world.executor is not None
    await world.executor._services[0]._controller._reconcile(content.metadata.key)
    assert (await world.fresh(content)).status == content.status
    cache._objects[content.metadata.key] = content
    back = await restored(world, content)
    assert await world.reason(back) == ConditionReason.COMPLETED


async def test_a_cache_that_is_behind_does_not_fail_a_restore_that_has_succeeded(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))
    request = await world.restore("back", content, claim="back-claim")
    await world.caught_up()
    await world.reconcile(request)  # which makes its keeper
    await world.caught_up()
    await world.stop()  # the caches hear of nothing any more
    assert world.executor is not None
    reconcile = world.executor._services[2]._controller._reconcile
    await reconcile(request.metadata.key)
    key = ObjectKey(NAMESPACE, "back-claim")
    bound = await world.store.get(PERSISTENT_VOLUME_CLAIM, key)
    cache = world.requests.caches.of(PERSISTENT_VOLUME_CLAIM)
    cache._objects[key] = _without_status(PERSISTENT_VOLUME_CLAIM, bound)
    await reconcile(request.metadata.key)
    found = await world.store.get(PERSISTENT_VOLUME_CLAIM, key)
    assert found.status is not None
    assert (found.status.phase, found.status.conditions) == ("Bound", None)


def _without_status(kind: Any, obj: Any) -> Any:  # noqa: ANN401
    body = kind.body(obj)
    body.pop("status")
    return kind.convert(body)


async def test_the_volume_of_a_claim_that_went_while_nobody_was_here_is_released_at_the_start(
    world: World, data: Path
) -> None:
    found = await claim(world, data)
    await world.stop()
    await world.delete(found)
    await world.restart()
    await world.settle()
    (volume,) = await world.all(PERSISTENT_VOLUME)
    assert volume.status is not None
    assert volume.status.phase == "Released"


async def test_the_volume_of_a_claim_that_was_replaced_is_released(world: World, data: Path) -> None:
    found = await claim(world, data)
    await world.stop()
    await world.delete(found)
    await world.restart()
    await claim(world, data)
    phases = sorted(volume.status.phase or "" for volume in await world.all(PERSISTENT_VOLUME) if volume.status)
    assert phases == ["Bound", "Released"]


@pytest.mark.parametrize("applied", [False, True], ids=["before", "answer-lost"])
async def test_a_crash_at_any_call_of_a_capture_or_restore_is_made_up_for(
    tmp_path: Path, data: Path, *, applied: bool
) -> None:
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with local(folder) as world:
            world.wire.applied, world.wire.crash_at = applied, len(world.wire.calls) + number
            if not await _survives(world, data):
                break
    assert number > 15


async def _survives(world: World, data: Path) -> bool:
    """Capture and restore; whether there was a crash."""
    crashed = False
    request: Any = None
    back: Any = None
    for _ in range(2):
        try:
            await world.apply(
                PERSISTENT_VOLUME_CLAIM,
                {"metadata": {"namespace": NAMESPACE, "name": "data", "annotations": {DIRECTORY: str(data)}}},
            )
            found = await world.store.get(PERSISTENT_VOLUME_CLAIM, ObjectKey(NAMESPACE, "data"))
            request = request or await world.capture("nightly", found)
            await world.live(4, step=2)
            assert await world.reason(request) == ConditionReason.COMPLETED
            back = back or await world.restore("back", await content_of(world, request), claim="back-claim")
            await world.live(4, step=2)
            assert await world.reason(back) == ConditionReason.COMPLETED
        except (Crash, BaseExceptionGroup):
            crashed = True
            await world.restart(wire=Wire(world.store))
        else:
            break
    assert contents(world.folder / "volumes" / NAMESPACE / "back-claim") == contents(data)
    assert parts(world) == []
    assert len(archives(world)) == 1
    return crashed


class KilledError(BaseException):
    """The process ends in the middle of blocking work."""


@pytest.mark.parametrize("what", ["pack", "unpack"])
async def test_a_crash_in_the_middle_of_the_work_leaves_nothing_of_the_final_name_and_a_restart_resumes(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    found = await claim(world, data)
    request = await world.capture("nightly", found)
    module = executor if what == "pack" else provisioner
    real = getattr(module, what)

    def killed(*args: Any, **more: Any) -> None:  # noqa: ANN401
        target: Path = args[1] if what == "pack" else args[2]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_name(f".{target.name[:40]}.token.part").touch()
        raise KilledError

    if what == "unpack":
        await world.live(3, step=1)
        await world.restore("back", await content_of(world, request), claim="back-claim")
    monkeypatch.setattr(module, what, killed)
    with pytest.raises(KilledError):
        await world.live(3, step=1)
    assert [path for path in archives(world) if not path.startswith(".")] == ([] if what == "pack" else archives(world))
    assert not (world.folder / "volumes" / NAMESPACE / "back-claim").exists()
    assert len(parts(world)) == 1
    monkeypatch.setattr(module, what, real)
    await world.restart()
    await world.live(3, step=1)
    assert parts(world) == []
    assert await world.reason(request) == ConditionReason.COMPLETED
    if what == "unpack":
        assert contents(world.folder / "volumes" / NAMESPACE / "back-claim") == contents(data)


async def test_a_restart_between_the_arrival_of_the_data_and_its_claim_goes_on(world: World, data: Path) -> None:
    content = await content_of(world, await captured(world, data))

    def crash(call: Call) -> None:
        if str(call) == "create PersistentVolume":
            raise Crash

    world.wire.before = crash
    back = await world.restore("back", content, claim="back-claim")
    with pytest.raises(Crash):
        await world.live(3, step=1)
    inode = (world.folder / "volumes" / NAMESPACE / "back-claim").stat().st_ino
    await world.restart()
    await world.live(3, step=1)
    assert await world.reason(back) == ConditionReason.COMPLETED
    assert (world.folder / "volumes" / NAMESPACE / "back-claim").stat().st_ino == inode
