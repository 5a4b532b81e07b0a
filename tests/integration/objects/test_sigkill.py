"""Several processes work on one file and are killed in the middle: what they were told is true, and nothing is half."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapse.core.clock import SystemClock
from lapse.kube.resources import EventType
from tests.integration.objects.writer import BOX, BOXES, COUNTER, SHELF, open_store, prepare

if TYPE_CHECKING:
    from lapse.kube.resources import Document, Kind, ObjectKey
    from lapse.objects.embedded import EmbeddedStore

ROUNDS = 3
AT_ONCE = 3
LINES_BEFORE_THE_KILL = 60
ROOT = Path(__file__).parents[3]
State = dict["ObjectKey", dict[str, Any]]


async def work_and_die(path: Path, name: str, said: dict[str, list[str]]) -> None:
    """Run one writer, listen to it, kill it with SIGKILL, and take what it had still said."""
    program = [sys.executable, "-m", "tests.integration.objects.writer", str(path), name]
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    number = 0
    async for line in process.stdout:
        what, detail = line.decode().split()
        said[what].append(detail)
        number += 1
        if number == LINES_BEFORE_THE_KILL:
            process.kill()
    assert await process.wait() == -9
    assert number >= LINES_BEFORE_THE_KILL


async def follow(store: EmbeddedStore, kind: Kind[Document], seen: State, stop: asyncio.Event) -> None:
    """Keep ``seen`` up to date by one watch from the beginning, until ``stop`` and the store's version is reached."""
    version = 1
    watch = store.watch(kind, since="1")
    async for event in watch:
        assert int(event.resource_version) > version
        version = int(event.resource_version)
        if event.object is not None:
            key = event.object.metadata.key
            assert (key in seen) == (event.type is not EventType.ADDED)
            if event.type is EventType.DELETED:
                del seen[key]
            else:
                seen[key] = event.object.body
            if stop.is_set() and event.object.metadata.name == "end" and event.type is EventType.ADDED:
                break
    await watch.aclose()


async def quiet(store: EmbeddedStore) -> None:
    await store.list(BOX, limit=1)
    while store.database.read("SELECT EXISTS (SELECT 1 FROM garbage)")[0][0]:
        await SystemClock().sleep(0.01)


async def contents(store: EmbeddedStore, kind: Kind[Document]) -> State:
    return {item.metadata.key: item.body for item in (await store.list(kind)).items}


async def test_acknowledged_work_survives_and_garbage_does_not(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    said: dict[str, list[str]] = defaultdict(list)
    store = open_store(path)
    await prepare(store)
    seen: dict[str, State] = {SHELF.kind: {}, BOX.kind: {}}
    stop = asyncio.Event()
    watches = [asyncio.ensure_future(follow(store, kind, seen[kind.kind], stop)) for kind in (SHELF, BOX)]
    for turn in range(ROUNDS):
        await asyncio.gather(*(work_and_die(path, f"w{turn}{one}", said) for one in range(AT_ONCE)))
    await quiet(store)
    check_shelves(await contents(store, SHELF), await contents(store, BOX), said, beside(store))
    check_counter((await store.get(BOX, COUNTER)).body["spec"]["number"], [int(number) for number in said["counted"]])

    stop.set()
    await store.create(SHELF, {"metadata": {"name": "end"}})
    await store.create(BOX, {"metadata": {"name": "end", "namespace": "n"}})
    await asyncio.wait_for(asyncio.gather(*watches), 30)
    for kind in (SHELF, BOX):
        assert seen[kind.kind] == await contents(store, kind), "watches of foreign changes lost or doubled something"
    await store.close()


def beside(store: EmbeddedStore) -> list[str]:
    return [name for (name,) in store.database.read("SELECT name FROM beside")]


def check_shelves(shelves: State, boxes: State, said: dict[str, list[str]], noted: list[str]) -> None:
    there = {key.name for key in shelves}
    assert set(said["deleted"]) <= set(noted), "an acknowledged deletion is not durable"
    assert len(noted) == len(set(noted))
    assert not there & set(noted), "a note without its deletion"
    assert set(said["made"]) <= there | set(noted), "an acknowledged creation is gone"
    uids = {body["metadata"]["uid"] for body in shelves.values()}
    owners = [body["metadata"]["ownerReferences"][0]["uid"] for key, body in boxes.items() if key != COUNTER]
    assert set(owners) <= uids, "garbage was left"
    whole = [uid for uid in uids if owners.count(uid) == BOXES]
    assert len(uids) - len(whole) <= ROUNDS * AT_ONCE * 4, "boxes of living shelves were taken"


def check_counter(number: int, counted: list[int]) -> None:
    assert len(counted) == len(set(counted)), "two were told the same number"
    assert max(counted) <= number <= len(counted) + ROUNDS * AT_ONCE, "a count was lost, or made by nobody"
