"""A domain of things with a time to live, over the real embedded store, for the tests of the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lapse.core.address import Address
from lapse.core.clock import UnixNs, VirtualClock
from lapse.core.decision import Decision, Due, DueReason, Keep, KeepReason, Unknown, UnknownReason
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.deadlines import Deadlines
from lapse.engine.domain import DELETE, Action, Candidate, Settled
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS, SQLiteJournal
from lapse.engine.safety.gate import Grant, OpenGate
from lapse.engine.safety.holds import HOLD, HOLD_UNTIL, Hold, hold_of
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import Document, ObjectKey, untyped
from lapse.objects.embedded import EmbeddedStore, open_embedded
from lapse.objects.target import ObjectHandle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from lapse.engine.executor import Executor
    from lapse.engine.journal.port import Outcome
    from lapse.engine.running.metrics import Metrics

NS = 1_000_000_000
START = 1_700_000_000
ANCHOR = UnixNs((START - 60) * NS)
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


async def end(executor: Executor, action: Action) -> Outcome:
    """Carry out one action; return what came of it."""
    (result,) = await executor.execute([action])
    return result.outcome


async def end_all(executor: Executor, actions: Sequence[Action]) -> list[Outcome]:
    return [result.outcome for result in await executor.execute(actions)]


class Against(OpenGate):
    """A gate that refuses everything."""

    async def allow(self, domain: str, count: int = 1) -> Grant:
        return Grant(0, UnknownReason.CLOCK_JUMPED)


def action_of(thing: Document, hold: Hold | None = None) -> Action:
    meta = thing.metadata
    return Action(
        domain="things",
        address=Address("Thing.test.lapse.dev", meta.namespace, meta.name),
        handle=ObjectHandle(THING, meta.key),
        uid=meta.uid,
        version=meta.resource_version,
        action=DELETE,
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
    is_indexed: bool = True
    reasons: tuple[DueReason, ...] = (DueReason.TTL_EXPIRED,)
    deadlines: Deadlines[ObjectKey] = field(default_factory=Deadlines)
    known: dict[ObjectKey, Document] = field(default_factory=dict)
    settlements: dict[str, tuple[Outcome, UnixNs | None]] = field(default_factory=dict)
    problems: dict[str, Exception | None] = field(default_factory=dict)
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

    def due(self, now: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[Document]], None]:
        return self.deadlines.pages(now, size=size, find=lambda key: candidate_of(self.known[key]))

    def next_deadline(self) -> UnixNs | None:
        return self.deadlines.next()

    def decide(self, candidate: Candidate[Document], now: UnixNs) -> Decision:
        self.looked.append(candidate.handle.key.name)
        expires = candidate.state.body["spec"].get("expires")
        if expires is None:
            return Decision(Unknown(UnknownReason.MISSING_ANCHOR, UnixNs(now + 30 * NS)), ANCHOR)
        if now < expires:
            return Decision(Keep(KeepReason.NOT_YET, UnixNs(expires)), ANCHOR, UnixNs(expires))
        return Decision(Due(DELETE, DueReason.TTL_EXPIRED, UnixNs(expires)), ANCHOR, UnixNs(expires))

    async def refresh(self, candidates: Sequence[Candidate[Document]]) -> Sequence[Candidate[Document] | None]:
        return await asyncio.gather(*[self._fresh(one) for one in candidates])

    async def _fresh(self, candidate: Candidate[Document]) -> Candidate[Document] | None:
        waiting: Any = self.during_refresh(candidate.handle.key.name)
        if waiting is not None:
            await waiting
        if self.covered:
            return candidate
        try:
            return candidate_of(await self.store.get(THING, candidate.handle.key))
        except NotFoundError:
            return None

    def details(self, candidate: Candidate[Document]) -> dict[str, Any] | None:
        return {"shelf": 7}

    def policy(self, candidate: Candidate[Document]) -> str:
        return "p1"

    def policy_name(self, candidate: Candidate[Document]) -> str:
        return self.name

    def policies(self) -> dict[str, str]:
        return {self.name: "test"}

    async def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[Document]], None]:
        yield [candidate_of(one) for one in self.known.values()]

    async def settle(self, settled: Sequence[Settled[Document]]) -> None:
        for one in settled:
            self.settlements[one.candidate.handle.key.name] = (one.outcome, one.next_check)
            self.problems[one.candidate.handle.key.name] = one.problem
            self.deadlines.look_again(one.candidate.handle.key, one.next_check)


def candidate_of(thing: Document) -> Candidate[Document]:
    meta = thing.metadata
    return Candidate(
        address=Address("Thing.test.lapse.dev", meta.namespace, meta.name),
        handle=ObjectHandle(THING, meta.key),
        uid=meta.uid,
        version=meta.resource_version,
        state=thing,
        hold=hold_of(meta.annotations),
    )
