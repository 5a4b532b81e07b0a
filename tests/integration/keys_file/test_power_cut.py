"""Power cuts at every sync and every acknowledgement: what was acknowledged is there, and the file is sound.

The real backend works on a file layer that records what it writes and syncs. From the record follows what a power cut
at any moment may leave on the disk: all that was synced, and any part of what was not. Each such disk is
rebuilt, opened by SQLite's own file layer, and looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random  # noqa: TID251 - seeded, for what a cut leaves
from typing import Any

import apsw
import pytest

from lapse.core.clock import VirtualClock
from lapse.db.sqlite.file import Synchronous
from lapse.keys.backends.file import FileBackend, FileSpace
from lapse.keys.backends.layout import Prefix
from lapse.keys.port import NewItem
from tests.sqlite_disks import Disk, disk

SECTOR = 512
Change = Callable[[bytearray], None]
Records = frozenset[tuple[Any, ...]]


@dataclass
class Blueprint:
    """One file: what is on the disk for sure, and the changes that may or may not have reached it."""

    synced: bytes = b""
    exists: bool = False
    pending: list[Change] = field(default_factory=list)


@dataclass
class Cut:
    """A moment at which the power may go."""

    acknowledged: int
    disks: list[dict[str, bytes]]


class Recorder:
    """Watches a disk. Cuts are derived as the workload goes, so that each sees exactly what was synced by then."""

    def __init__(self, watched: Disk) -> None:
        self._files: dict[str, Blueprint] = {}
        self._chance = Random(20)
        self.acknowledged = 0
        self.cuts: list[Cut] = []
        self.events: Counter[str] = Counter()
        watched.on_write, watched.on_truncate = self._write, self._truncate
        watched.on_sync, watched.on_delete = self._sync, self._delete

    def acknowledge(self) -> None:
        self.acknowledged += 1
        self._cut("acknowledgement")

    def _write(self, path: str, offset: int, data: bytes) -> None:
        for start in range(0, len(data), SECTOR):  # a disk writes whole sectors or nothing, in any order
            self._file(path).pending.append(_writing(offset + start, data[start : start + SECTOR]))

    def _truncate(self, path: str, size: int) -> None:
        self._file(path).pending.append(_truncating(size))

    def _sync(self, path: str) -> None:
        self._cut("before a sync")
        file = self._file(path)
        file.synced, file.exists, file.pending = _apply(file.synced, file.pending), True, []
        self._cut("after a sync")

    def _delete(self, path: str) -> None:
        self._cut("before a removal")
        self._files.pop(Path(path).name, None)
        self._cut("after a removal")

    def _file(self, path: str) -> Blueprint:
        return self._files.setdefault(Path(path).name, Blueprint())

    def _cut(self, event: str) -> None:
        self.events[event] += 1
        self.cuts.append(Cut(self.acknowledged, list(self._possible_disks())))

    def _possible_disks(self) -> Iterator[dict[str, bytes]]:
        yield self._disk(lambda changes: [])
        if any(file.pending for file in self._files.values()):
            yield self._disk(lambda changes: changes)
            yield self._disk(lambda changes: changes[: self._chance.randrange(len(changes) + 1)])
            yield self._disk(lambda changes: [change for change in changes if self._chance.random() < 0.5])
            yield self._disk(lambda changes: changes[-1:])

    def _disk(self, survivors: Callable[[list[Change]], list[Change]]) -> dict[str, bytes]:
        return {
            name: _apply(file.synced, survivors(file.pending))
            for name, file in self._files.items()
            if file.exists or survivors(file.pending)
        }


def _writing(offset: int, data: bytes) -> Change:
    def write(content: bytearray) -> None:
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data

    return write


def _truncating(size: int) -> Change:
    def truncate(content: bytearray) -> None:
        del content[size:]

    return truncate


def _apply(synced: bytes, changes: list[Change]) -> bytes:
    content = bytearray(synced)
    for change in changes:
        change(content)
    return bytes(content)


# --- the workload ----------------------------------------------------------------------------------------------------


def steps(space: FileSpace, clock: VirtualClock) -> Iterator[None]:
    """Write in every way there is; after each step the answer has been given."""
    for number in range(8):
        yield space.insert(f"inserted:{number}", "value" * 50 * number, 100 + number)
    yield space.put("put", "first", 50)
    yield space.put("put", "second" * 1000, 60)
    yield space.swap("inserted:1", "value" * 50, "swapped", 70)
    yield space.swap("inserted:2", "wrong", "swapped", 70)
    yield space.touch("inserted:3", 500)
    yield space.delete("inserted:4")
    yield space.delete_if("inserted:5", "value" * 250)
    clock.advance(105)
    yield space.insert("inserted:0", "again, after it had expired", 10)
    yield space.insert_many([NewItem(f"many:{number}", "x" * 400, 900) for number in range(30)])
    for number in range(8):
        yield space.put(f"many:{number}", "y" * 900, 900)


def records_of(rows: list[tuple[Any, ...]]) -> Records:
    return frozenset(tuple(row) for row in rows)


ALL_RECORDS = "SELECT partition, key, value, expires_ms FROM records"


@dataclass
class Run:
    history: list[Records]
    """What was stored after 0, 1, 2, ... acknowledgements."""
    cuts: list[Cut]
    events: Counter[str]


def run_workload(folder: Path, synchronous: Synchronous, pragmas: dict[str, str] | None = None) -> Run:
    clock = VirtualClock()
    with disk() as recorded:
        recorder = Recorder(recorded)
        file = recorded.file(folder / "keys.db", synchronous, {"wal_autocheckpoint": "12"} | (pragmas or {}))
        backend = FileBackend(file, name="file:///keys.db", clock=clock)

        def stored() -> Records:
            return records_of(backend._commit.run(lambda cursor: cursor.execute(ALL_RECORDS).fetchall()))

        history = [stored()]
        for _ in steps(backend.space(Prefix.APPLICATION_TTL, 7), clock):
            history.append(stored())
            recorder.acknowledge()
        backend.close()
    return Run(history, recorder.cuts, recorder.events)


# --- the check -------------------------------------------------------------------------------------------------------


def after_the_cut(folder: Path, files: dict[str, bytes]) -> Records | str:
    """Return what is stored on such a disk, or what is wrong with it."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    db = apsw.Connection(str(folder / "keys.db"))
    try:
        verdict = db.execute("PRAGMA integrity_check").fetchall()
        if verdict != [("ok",)]:
            return f"damaged: {verdict}"
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'records'").fetchall():
            return frozenset()  # cut before the file was set up: nothing can have been acknowledged
        return records_of(db.execute(ALL_RECORDS).fetchall())
    except apsw.Error as error:
        return f"unreadable: {error!r}"
    finally:
        db.close()


def losses(run: Run, folder: Path, *, allow_lost_tail: bool) -> list[str]:
    """Return every cut after which the disk does not hold a state that it may hold."""
    found = []
    seen: dict[tuple[tuple[str, bytes], ...], Records | str] = {}
    for number, cut in enumerate(run.cuts):
        allowed = run.history if allow_lost_tail else run.history[cut.acknowledged :]
        for variant, files in enumerate(cut.disks):
            content = tuple(sorted(files.items()))
            if content not in seen:
                seen[content] = after_the_cut(folder / f"{number}-{variant}", files)
            if seen[content] not in allowed:
                found.append(f"cut {number}, variant {variant}, after {cut.acknowledged} acknowledgements")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path


def test_with_sync_full_no_acknowledged_write_is_lost_by_a_power_cut_at_any_sync_point(folder: Path) -> None:
    run = run_workload(folder / "work", Synchronous.FULL)

    assert run.events["acknowledgement"] == len(run.history) - 1 == 25
    assert run.events["after a sync"] > 40  # the log of every write, and several checkpoints
    assert losses(run, folder, allow_lost_tail=False) == []


def test_the_same_test_catches_a_database_that_does_not_sync(folder: Path) -> None:
    run = run_workload(folder / "work", Synchronous.FULL, {"synchronous": "OFF"})

    assert losses(run, folder, allow_lost_tail=False) != []


def test_with_sync_normal_a_power_cut_leaves_a_sound_file_with_a_beginning_of_the_acknowledged_writes(
    folder: Path,
) -> None:
    run = run_workload(folder / "work", Synchronous.NORMAL)

    assert run.events["after a sync"] > 10
    assert losses(run, folder, allow_lost_tail=True) == []


def test_with_sync_normal_the_last_writes_may_be_lost_which_is_why_full_is_the_default(folder: Path) -> None:
    run = run_workload(folder / "work", Synchronous.NORMAL)

    assert losses(run, folder, allow_lost_tail=False) != []
