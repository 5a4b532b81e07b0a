"""One file, many users: threads, event loops, processes that open it at the same moment, and forks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from random import Random  # noqa: TID251 - seeded, for keys
from typing import TYPE_CHECKING

import pytest

import lapse
from lapse.core.clock import VirtualClock
from lapse.db.sqlite import file as sqlite
from lapse.db.sqlite.file import Schema, SQLiteFile
from lapse.keys.errors import BackendClosedError, BackendUnavailableError
from tests.integration.keys_file.conftest import Store

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

OPEN_AND_RACE = """
import sys, threading
from lapse import open_keys
url, name = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
won = []
with open_keys(url, sweep=False) as keys:
    app = keys.app(7)
    def race(thread):
        for number in range(30):
            if app.insert_if_not_exists(f"contested:{number}", f"{name}.{thread}", 3600):
                won.append(number)
            app.insert_if_not_exists("counter", "0", 3600)
            while not app.compare_and_swap("counter", now := app.ttl_get("counter"), str(int(now) + 1), 3600):
                pass
    threads = [threading.Thread(target=race, args=(number,)) for number in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(*won)
"""


def test_processes_that_create_the_same_file_at_once_agree_on_every_winner(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/keys.db?sync=normal&timeout=30s"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AND_RACE, url, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(5)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    wins = [worker.communicate()[0].split() for worker in workers]

    assert [worker.returncode for worker in workers] == [0] * 5
    assert Counter(number for won in wins for number in won) == Counter(str(number) for number in range(30))
    with lapse.open_keys(url, sweep=False) as keys:
        assert keys.app(7).ttl_get("counter") == str(5 * 3 * 30)
        for number in range(30):
            winner = keys.app(7).ttl_get(f"contested:{number}")
            assert winner is not None
            assert str(number) in wins[int(winner.partition(".")[0])]


def test_a_file_that_another_creates_between_two_looks_at_it_is_not_taken_for_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SQLiteFile(tmp_path / "made.db")
    schema = Schema(application_id=7, scripts=["CREATE TABLE made(it)"])
    look = sqlite._value
    others = iter([file])

    def look_and_be_overtaken(db: apsw.Connection, sql: str) -> object:
        seen = look(db, sql)
        if sql == "PRAGMA application_id":
            for other in others:  # once
                sqlite.open_writer(other, schema).close()
        return seen

    monkeypatch.setattr(sqlite, "_value", look_and_be_overtaken)
    sqlite.open_writer(file, schema).close()


def test_threads_that_read_one_after_the_other_share_a_connection_and_leave_none_behind(store: Store) -> None:
    store.app.put("key", "value", 60)
    answers: list[str | None] = []
    for _ in range(30):
        thread = threading.Thread(target=lambda: answers.append(store.app.ttl_get("key")))
        thread.start()
        thread.join()

    assert answers == ["value"] * 30
    backend = store.keys.backend
    assert len(backend.readers._opened) == 1  # type: ignore[attr-defined]


def test_a_store_that_is_closed_under_its_readers_and_writers_answers_or_says_that_it_is_closed(store: Store) -> None:
    store.app.put("key", "value", 60)
    outcomes: Counter[str] = Counter()
    busy = threading.Barrier(9)

    def use(number: int) -> None:
        busy.wait()
        try:
            while True:
                if number % 2:
                    store.app.put("key", "value", 60)
                assert store.app.ttl_get("key") == "value"
                assert store.app.get_many(["key"]) == {"key": "value"}
        except BaseException as error:  # noqa: BLE001 - counted
            outcomes[type(error).__name__] += 1

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    busy.wait()
    threading.Event().wait(0.05)
    store.keys.close()
    for thread in threads:
        thread.join()

    assert outcomes == {"BackendClosedError": 8}
    assert [file.name for file in store.path.parent.iterdir()] == ["keys.db"]
    with pytest.raises(BackendClosedError):
        store.app.ttl_get("key")
    store.keys.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_to_open_the_store_itself_and_does_not_harm_the_parents(store: Store) -> None:
    store.app.put("key", "value", 60)
    store.app.ttl_get("key")
    child = os.fork()
    if child == 0:
        code = 0
        for use in (lambda: store.app.ttl_get("key"), lambda: store.app.put("key", "child", 60), store.keys.sweep):
            try:
                use()
                code = 1
            except BackendUnavailableError as error:
                code = code or (0 if "open it again in the child" in str(error) else 2)
        store.keys.close()
        again = Store(store.path)
        code = code or (0 if again.app.ttl_get("key") == "value" else 3)
        again.keys.close()
        os._exit(code)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.app.ttl_get("key") == "value"
    assert store.app.compare_and_swap("key", "value", "parent", 60) is True
    assert store.query("PRAGMA integrity_check") == [("ok",)]


# --- event loops -----------------------------------------------------------------------------------------------------


async def test_the_awaitable_face_does_the_same_as_the_blocking_one(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with lapse.open_keys_async(f"file://{tmp_path}/keys.db", clock=clock, sweep=False) as keys:
        app = keys.app(7)
        assert await app.insert_if_not_exists("key", "value", 60) is True
        assert await app.insert_if_not_exists("key", "other", 60) is False
        assert await app.ttl_get("key") == "value"
        assert await app.compare_and_swap("key", "value", "new", 90) is True
        assert await app.query_ttl("key") == 90.0
        assert await app.touch("key", 30) is True
        assert await app.insert_many([(f"many:{number}", "x", 60) for number in range(1200)]) == [True] * 1200
        assert len(await app.get_many(f"many:{number}" for number in range(1200))) == 1200
        assert await app.compare_and_delete("key", "new") is True
        await app.put("key", "again", 60)
        assert await app.delete("key") is True
        clock.advance(60)
        assert (await keys.sweep(5000)).removed == 1200


async def test_many_tasks_write_at_once_and_each_gets_its_own_answer(tmp_path: Path) -> None:
    async with lapse.open_keys_async(f"file://{tmp_path}/keys.db", sweep=False) as keys:
        app = keys.app(7)
        answers = await asyncio.gather(
            *(app.insert_if_not_exists(f"key:{number % 100}", str(number), 60) for number in range(300))
        )

        assert sum(answers) == 100
        for number, won in enumerate(answers):
            assert (await app.ttl_get(f"key:{number % 100}") == str(number)) is won


async def test_a_cancelled_write_leaves_the_store_usable(tmp_path: Path) -> None:
    async with lapse.open_keys_async(f"file://{tmp_path}/keys.db", sweep=False) as keys:
        app = keys.app(7)
        tasks = [asyncio.ensure_future(app.put(f"key:{number}", "value", 60)) for number in range(50)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

        assert await app.insert_if_not_exists("after", "value", 60) is True


# --- buckets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets", [1, 2, 7, 300])
def test_a_scan_is_in_byte_order_across_buckets_whatever_the_page(tmp_path: Path, buckets: int) -> None:
    chance = Random(buckets)
    alphabet = "ab\0\x7f\u00e9\u4e2d\U0001f600\U0010ffff"
    names = {"".join(chance.choices(alphabet, k=chance.randint(1, 6))) for _ in range(600)}
    store = Store(tmp_path / "keys.db", f"?buckets={buckets}&sync=normal")
    store.app.insert_many([(name, name[::-1], 60) for name in names])
    store.app.insert_many([(f"zz{number}", "expires", 5) for number in range(50)])
    store.clock.advance(10)

    for prefix in ("", "a", "\u00e9", "\U0010ffff", "b\0"):
        expected = sorted(name.encode() for name in names if name.startswith(prefix))
        for limit in (1, 3, 50, 1000):
            found: list[bytes] = []
            after = None
            while page := store.app.scan(prefix, after=after, limit=limit):
                assert [item.value for item in page] == [item.key[::-1] for item in page]
                found += [item.key.encode() for item in page]
                after = page[-1].key
                if len(found) > 10 * limit and limit < 50:
                    break
            assert found == expected[: len(found)]
            assert limit < 50 or len(found) == len(expected)
    used = {partition for (partition,) in store.query("SELECT DISTINCT partition FROM records")}
    assert {len(partition) for partition in used} == {8 if buckets == 1 else 10}
    assert buckets > 100 or len(used) == buckets
    store.keys.close()
