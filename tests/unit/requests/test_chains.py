"""Pages of chains: what is left out of them leaves no page empty, as far as one answer looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lapse.core.clock import VirtualClock
from lapse.core.duration import Duration
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import SQLiteFile, Synchronous
from lapse.objects.embedded import SCHEMA, EmbeddedStore
from lapse.objects.trash.rules import IN_TRASH, TRASH
from lapse.requests.api.kinds import OBJECT_KEEPER, OUR_KINDS, VOLUME_CAPTURE_REQUEST
from lapse.requests.chains import ChainReader
from lapse.requests.lifecycle.policy import TTLRule

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

LIMIT = 3
TARGET = {"uid": "u", "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"}


class OwnsNothing:
    """Dependants of a store in which no keeper has an artifact."""

    async def prepare(self, kind: object) -> None:
        return

    def owned_by(self, uid: str) -> Sequence[tuple[Any, Any]]:
        return []

    def owning(self, uids: Sequence[str]) -> set[str]:
        return set()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    file = SQLiteFile(tmp_path / "objects.db", synchronous=Synchronous.NORMAL)
    opened = EmbeddedStore(Database(file, SCHEMA), kinds=OUR_KINDS, clock=VirtualClock())
    yield opened
    await opened.close()


async def fill(store: EmbeddedStore, kept: str) -> None:
    """Make keepers by name: ``k`` of a request that has lapsed, ``r`` of one that is there, ``t`` of the trash."""
    for number, what in enumerate(kept):
        name = f"keeper-{number:04}"
        uid = "u"
        if what == "r":
            request = {
                "metadata": {"namespace": "default", "name": name},
                "spec": {"mode": "Snapshot", "target": TARGET},
            }
            uid = (await store.create(VOLUME_CAPTURE_REQUEST, request)).metadata.uid
        ref = {
            "apiVersion": VOLUME_CAPTURE_REQUEST.api_version,
            "kind": VOLUME_CAPTURE_REQUEST.kind,
            "namespace": "default",
            "name": name,
            "uid": uid,
        }
        labels = {TRASH: IN_TRASH} if what == "t" else {}
        spec = {"mode": "FollowObject", "followObjectRef": ref}
        await store.create(OBJECT_KEEPER, {"metadata": {"name": name, "labels": labels}, "spec": spec})


async def pages(store: EmbeddedStore) -> list[int]:
    """Go from page to page; return how many chains each has, each of which was shown once and in order."""
    reader = ChainReader(store, OwnsNothing(), rule=TTLRule(Duration.parse("10m")), now=0)
    sizes, shown, after = [], [], None
    while True:
        page = await reader.page(OBJECT_KEEPER, limit=LIMIT, after=after)
        sizes.append(len(page.items))
        shown += [one.asked for one in page.items]
        if page.next is None:
            break
        after = page.next
    every = [one.metadata.name for one in (await store.list(OBJECT_KEEPER)).items if TRASH not in one.metadata.labels]
    requests = {one.metadata.name for one in (await store.list(VOLUME_CAPTURE_REQUEST)).items}
    assert shown == [f"vcr/default/{name}" for name in every if name not in requests]
    return sizes


@pytest.mark.parametrize(
    ("kept", "sizes"),
    [
        ("", [0]),
        ("kk", [2]),
        ("kkk", [3]),
        ("kkkk", [3, 1]),
        ("tttkkkk", [3, 1]),
        ("ktktktkt", [3, 1]),
        ("krkrkrkr", [3, 1]),
        ("kkkttttt", [3]),
        ("kkktttttk", [3, 1]),
        ("tttttttt", [0]),
        ("kk" + 20 * "t" + "k", [2, 1]),
        ("kkk" + 40 * "t" + "k", [3, 1]),
        ("kkk" + 70 * "t" + "k", [3, 0, 1]),
        (35 * "t" + "k", [0, 1]),
    ],
)
async def test_a_page_is_full_or_the_last_and_no_next_page_is_empty(
    store: EmbeddedStore, kept: str, sizes: list[int]
) -> None:
    await fill(store, kept)
    assert await pages(store) == sizes
