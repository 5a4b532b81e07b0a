"""A domain of things with a time to live, over the real embedded store: what the engine's tests play with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.core.address import Address
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.verdict import Due, DueReason, Keep, KeepReason, Unknown, UnknownReason, Verdict
from lapse.db.database import Database
from lapse.db.sqlite import Schema, SQLiteFile, Synchronous
from lapse.engine.deadlines import Deadlines
from lapse.engine.ending import Ending
from lapse.engine.holds import HOLD, HOLD_UNTIL, Hold, hold_of
from lapse.engine.journal import SCHEMA_SCRIPTS, Outcome, SQLiteJournal
from lapse.engine.sweep import Candidate
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Document, ObjectKey, untyped
from lapse.objects.embedded import EmbeddedStore, open_embedded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lapse.engine.metrics import Metrics

NS = 1_000_000_000
START = 1_700_000_000
THING = untyped("test.lapse.dev/v1", "Thing", "things")


def open_store(path: Path, clock: VirtualClock) -> EmbeddedStore:
    return open_embedded(path, kinds=[THING], clock=clock, synchronous=Synchronous.NORMAL)


def open_journal(path: Path) -> SQLiteJournal:
    """Open a journal in a database of its own."""
    file = SQLiteFile(path, synchronous=Synchronous.NORMAL)
    return SQLiteJournal(Database(file, Schema(application_id=0x4C54, scripts=SCHEMA_SCRIPTS)))


def key(name: str) -> ObjectKey:
    return ObjectKey("default", name)


def series(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.exposition().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def play(target: object, **methods: Callable[..., object]) -> None:
    """Let an object act differently from now on."""
    vars(target).update(methods)


def ending_of(thing: Document, hold: Hold | None = None) -> Ending:
    meta = thing.metadata
    return Ending(
        domain="things",
        address=Address("Thing.test.lapse.dev", meta.namespace, meta.name),
        kind=THING,
        key=meta.key,
        uid=meta.uid,
        version=meta.resource_version,
        reason=DueReason.TTL_EXPIRED,
        since=UnixNs(START * NS),
        anchor_ns=(START - 60) * NS,
        policy="p1",
        hold=hold,
        details={"shelf": 7},
    )


@dataclass
class Things:
    """A domain: a thing is due when its spec says so, and unknown when it says nothing."""

    store: EmbeddedStore
    clock: VirtualClock
    name: str = "things"
    policy: str = "p1"
    reasons: tuple[DueReason, ...] = (DueReason.TTL_EXPIRED,)
    deadlines: Deadlines[ObjectKey] = field(default_factory=Deadlines)
    known: dict[ObjectKey, Document] = field(default_factory=dict)
    settlements: dict[str, tuple[Outcome, UnixNs | None]] = field(default_factory=dict)
    looked: list[str] = field(default_factory=list)
    """Every decision, by name."""
    during_refresh: Callable[[str], object] = lambda _name: None
    """May be a coroutine function."""
    covered: bool = False
    """Whether the version covers all that is decided on, so that nothing needs to be read."""

    async def add(self, name: str, *, expires: float | None = 0, hold: str | None = None, until: str = "") -> Document:
        """Put a thing on the shelf that expires so many seconds after the start; None: it does not say."""
        annotations = {} if hold is None else {HOLD: hold} | ({HOLD_UNTIL: until} if until else {})
        spec = {} if expires is None else {"expires": round((START + expires) * NS)}
        metadata = {"name": name, "namespace": "default", "annotations": annotations}
        made = await self.store.create(THING, {"metadata": metadata, "spec": spec})
        self.learn(made)
        return made

    def learn(self, thing: Document) -> None:
        """Take note of a thing as a watch would report it."""
        self.known[thing.metadata.key] = thing
        self.deadlines.set(thing.metadata.key, UnixNs(thing.body["spec"].get("expires", START * NS)))

    async def patch(self, name: str, changes: dict[str, Any]) -> Document:
        """Change a thing without the domain's knowledge."""
        return await self.store.patch(THING, key(name), changes)

    async def left(self) -> list[str]:
        return [thing.metadata.name for thing in (await self.store.list(THING)).items]

    # --- what the sweep asks ---

    def due(self, now: UnixNs) -> Iterator[Candidate[Document]]:
        for found in self.deadlines.due(now):
            yield candidate_of(self.known[found])

    def next_deadline(self) -> UnixNs | None:
        return self.deadlines.next()

    def decide(self, candidate: Candidate[Document], now: UnixNs) -> Verdict:
        self.looked.append(candidate.key.name)
        expires = candidate.state.body["spec"].get("expires")
        if expires is None:
            return Unknown(UnknownReason.MISSING_ANCHOR, UnixNs(now + 30 * NS))
        if now < expires:
            return Keep(KeepReason.NOT_YET, UnixNs(expires))
        return Due("delete", DueReason.TTL_EXPIRED, UnixNs(expires))

    async def refresh(self, candidate: Candidate[Document]) -> Candidate[Document] | None:
        waiting: Any = self.during_refresh(candidate.key.name)
        if waiting is not None:
            await waiting
        if self.covered:
            return candidate
        try:
            return candidate_of(await self.store.get(THING, candidate.key))
        except NotFoundError:
            return None

    def details(self, candidate: Candidate[Document]) -> dict[str, Any] | None:
        return {"shelf": 7}

    def anchor(self, candidate: Candidate[Document]) -> UnixNs | None:
        return UnixNs((START - 60) * NS)

    def settled(self, candidate: Candidate[Document], outcome: Outcome, next_check: UnixNs | None) -> None:
        self.settlements[candidate.key.name] = (outcome, next_check)
        if next_check is None:
            self.deadlines.discard(candidate.key)
        else:
            self.deadlines.set(candidate.key, next_check)


def candidate_of(thing: Document) -> Candidate[Document]:
    meta = thing.metadata
    return Candidate(
        address=Address("Thing.test.lapse.dev", meta.namespace, meta.name),
        kind=THING,
        key=meta.key,
        uid=meta.uid,
        version=meta.resource_version,
        state=thing,
        hold=hold_of(meta.annotations),
    )
