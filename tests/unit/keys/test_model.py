"""Every operation in any order against a model of a few lines, on each embedded backend, in virtual time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import lapse
from lapse.core.clock import VirtualClock
from lapse.keys.backends.layout import Prefix
from tests.examples import examples

if TYPE_CHECKING:
    from lapse.keys.store import AppKeys

KEYS = st.sampled_from(["a", "ab", "b", "\0", "é", "e\u0301", "\uffff", "\U0001f600", "a/b", " "])
VALUES = st.sampled_from(["", "x", "y", "ü\0"])
TTLS = st.one_of(st.integers(1, 5), st.sampled_from([60, 4000, 31_536_000]))
STEPS_NS = st.one_of(st.integers(1, 2_000_000), st.integers(1, 5 * 10**9), st.sampled_from([60 * 10**9, 4000 * 10**9]))


class KeysMachine(RuleBasedStateMachine):
    """The model is a dict of value and expiry; a key is there while ``now < expiry``, and that is all."""

    url: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = VirtualClock()
        self.keys = lapse.open_keys(self.url.format(folder=Path(self.folder.name)), clock=self.clock, sweep=False)
        self.apps: dict[int, AppKeys] = {0: self.keys.app(0), 7: self.keys.app(7)}
        self.model: dict[int, dict[str, tuple[str, int]]] = {0: {}, 7: {}}

    def teardown(self) -> None:
        self.keys.close()
        self.folder.cleanup()

    def live(self, app: int) -> dict[str, tuple[str, int]]:
        return {key: record for key, record in self.model[app].items() if self.clock.wall_ns() < record[1]}

    def write(self, app: int, key: str, value: str, ttl: int) -> None:
        milliseconds = -(-self.clock.wall_ns() // 1_000_000) + ttl * 1000
        self.model[app][key] = (value, milliseconds * 1_000_000)

    @rule(app=st.sampled_from([0, 7]), key=KEYS, value=VALUES, ttl=TTLS)
    def insert(self, app: int, key: str, value: str, ttl: int) -> None:
        expected = key not in self.live(app)
        assert self.apps[app].insert_if_not_exists(key, value, ttl) is expected
        if expected:
            self.write(app, key, value, ttl)

    @rule(app=st.sampled_from([0, 7]), key=KEYS, value=VALUES, ttl=TTLS)
    def put(self, app: int, key: str, value: str, ttl: int) -> None:
        self.apps[app].put(key, value, ttl)
        self.write(app, key, value, ttl)

    @rule(app=st.sampled_from([0, 7]), key=KEYS, expected=VALUES, value=VALUES, ttl=TTLS)
    def swap(self, app: int, key: str, expected: str, value: str, ttl: int) -> None:
        matches = self.live(app).get(key, (None, 0))[0] == expected
        assert self.apps[app].compare_and_swap(key, expected, value, ttl) is matches
        if matches:
            self.write(app, key, value, ttl)

    @rule(app=st.sampled_from([0, 7]), key=KEYS, expected=VALUES)
    def compare_and_delete(self, app: int, key: str, expected: str) -> None:
        matches = self.live(app).get(key, (None, 0))[0] == expected
        assert self.apps[app].compare_and_delete(key, expected) is matches
        if matches:
            del self.model[app][key]

    @rule(app=st.sampled_from([0, 7]), key=KEYS)
    def delete(self, app: int, key: str) -> None:
        assert self.apps[app].delete(key) is (key in self.live(app))
        self.model[app].pop(key, None)

    @rule(app=st.sampled_from([0, 7]), key=KEYS, ttl=TTLS)
    def touch(self, app: int, key: str, ttl: int) -> None:
        live = self.live(app)
        assert self.apps[app].touch(key, ttl) is (key in live)
        if key in live:
            self.write(app, key, live[key][0], ttl)

    @rule(app=st.sampled_from([0, 7]), items=st.lists(st.tuples(KEYS, VALUES, TTLS), max_size=4))
    def insert_many(self, app: int, items: list[tuple[str, str, int]]) -> None:
        expected = []
        answers = self.apps[app].insert_many(items)
        for key, value, ttl in items:
            expected.append(key not in self.live(app))
            if expected[-1]:
                self.write(app, key, value, ttl)
        assert answers == expected

    @rule(app=st.sampled_from([0, 7]), prefix=st.sampled_from(["", "a", "e", "\uffff"]), after=st.none() | KEYS)
    def scan(self, app: int, prefix: str, after: str | None) -> None:
        expected = sorted(
            (key for key in self.live(app) if key.startswith(prefix) and (after is None or key > after)), key=str.encode
        )
        for limit in (1, 3, 1000):
            page = self.apps[app].scan(prefix, after=after, limit=limit)
            assert [item.key for item in page] == expected[:limit]

    @rule(ahead=st.one_of(STEPS_NS, st.sampled_from([0, 40_000_000 * 10**9])))
    def expiring(self, ahead: int) -> None:
        until = self.clock.wall_ns() + ahead
        ends = {app: [end for _, end in self.live(app).values() if end <= until] for app in self.apps}
        told = {app: (Prefix.APPLICATION_TTL, app, len(found), min(found)) for app, found in ends.items() if found}
        assert self.keys.backend.expiring(until) == [(*one, ()) for one in told.values()]
        edge = until - ahead // 2
        parts = {
            app: tuple(sum((end <= edge) is first for end in ends[app]) for first in (True, False)) for app in told
        }
        assert self.keys.backend.expiring(until, [edge]) == [(*one, parts[app]) for app, one in told.items()]

    @rule(step=STEPS_NS)
    def pass_time(self, step: int) -> None:
        self.clock.advance(ns=step)

    @rule(limit=st.integers(1, 3))
    def sweep(self, limit: int) -> None:
        self.keys.sweep(limit)

    @invariant()
    def reads_agree(self) -> None:
        for app, keys in self.apps.items():
            live = self.live(app)
            assert keys.get_many(self.model[app]) == {key: value for key, (value, _) in live.items()}
            for key in self.model[app]:
                item = keys.get_item(key)
                assert keys.ttl_get(key) == live.get(key, (None,))[0]
                assert (item and (item.value, item.expires_ms * 1_000_000)) == live.get(key)
                left = keys.query_ttl(key)
                assert (left is None) == (key not in live)
                assert left is None or left > 0


class MemoryMachine(KeysMachine):
    url = "memory://"


class MemoryBucketsMachine(KeysMachine):
    url = "memory://?buckets=5"


class FileMachine(KeysMachine):
    url = "file://{folder}/keys.db?sync=normal"


class FileBucketsMachine(KeysMachine):
    url = "file://{folder}/keys.db?sync=normal&buckets=5"


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(stateful_step_count=60)
TestMemoryBuckets = MemoryBucketsMachine.TestCase
TestFile = FileMachine.TestCase
TestFile.settings = settings(max_examples=examples(50), stateful_step_count=40)
TestFileBuckets = FileBucketsMachine.TestCase
TestFileBuckets.settings = settings(max_examples=examples(25), stateful_step_count=40)
