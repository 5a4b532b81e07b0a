"""The record of a process: journal, deletion budgets, freezes and what was believed of the clock, in one place.

That place is the PostgreSQL database that ``database_url`` names, with the workspaces, for all machines; without it,
``objects.db`` in the state folder. Objects of requests and history are in the state folder either way. What an act and
its row share is one transaction where they are in one database, and an intent and an outcome elsewhere.

A state folder has one record. With the first ``lapse up`` that is given a ``database_url``, the folder joins that
database: it notes which one, and from then on is refused without it, or with another one, because freezes and budgets
are there (`leave_database` undoes it). Then its rows are moved, before anything is ended. Commands never join or move.
What an earlier version has left in ``workspaces.db`` is moved into the folder's record when that file is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from lapse.app.domains import ACTOR
from lapse.core.believed_clock import BelievedClock, synchronised_ns
from lapse.core.clock import SystemClock
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.db.sqlite.database import Database
from lapse.domains import REGISTRY, object_kinds
from lapse.engine.journal.retention import JournalRetention
from lapse.engine.journal.sqlite import SQLiteJournal
from lapse.engine.plans.sqlite import SQLitePlans
from lapse.engine.running.database_lease import SQLiteLease
from lapse.engine.running.election import LeaseElection
from lapse.engine.safety.blast_radius import PolicyApprovals, PolicyGuard
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.clock_guard import REFRESH_SECONDS, ClockGuard, GuardedGate, read_mark
from lapse.engine.safety.counted import is_copy, move_record, rename_record
from lapse.engine.safety.freeze import ALL, CLOCK, Freeze, FreezeReason, freeze_row
from lapse.engine.safety.gate import TRUST_SECONDS, SafetyGate
from lapse.engine.safety.sqlite import TRUST_SECONDS as FOLDER_TRUST_SECONDS
from lapse.engine.safety.sqlite import SQLiteGateStore, SQLiteHolds, note_in
from lapse.objects.embedded import open_embedded
from lapse.settings import show_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AsyncExitStack
    from pathlib import Path

    from lapse.core.clock import Clock, UnixNs
    from lapse.db.postgres.pool import Postgres
    from lapse.engine.journal.port import DatabaseJournal
    from lapse.engine.plans.proposed import PlanStore
    from lapse.engine.running.election import Leadership
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.clock_guard import Source
    from lapse.engine.safety.counted import CountedGateStore
    from lapse.engine.safety.freeze import Notes
    from lapse.engine.safety.holds import HoldStore
    from lapse.objects.embedded import EmbeddedStore
    from lapse.settings import Settings
    from lapse.workspaces.store.port import WorkspaceStore

FILE_NAME: Final = "objects.db"
_JOINED: Final = "joined"
"""The note of a state folder with the database that has its record."""
_NO_BUDGETS: Final = Budgets()
_log = get_logger("lapse.app.record")


def open_store(folder: Path, *, clock: Clock) -> EmbeddedStore:
    """Open or create the object store of a state folder, and the folder, for this user only.

    A `BelievedClock` goes on from what was last believed in this folder; its times are those of what is created.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = open_embedded(folder / FILE_NAME, kinds=object_kinds(), clock=clock)
    if isinstance(clock, BelievedClock):
        clock.recall(read_mark(note_in(store.database, CLOCK)), is_fresh_within=REFRESH_SECONDS)
    return store


class RecordError(LapseError):
    """The record of a state folder is not where the settings say. Base of what is raised for that."""


class RecordElsewhereError(RecordError):
    """The record of {folder} is in {place}, with what is frozen and what was spent. Set database_url to that database.

    To give that up, run lapse db leave: the folder has its record to itself then, with everything frozen until you
    have looked at it and run lapse resume all.
    """


class RecordNotMovedError(RecordError):
    """{folder} has a record of its own, with what is frozen and what was spent, and {place} does not have it yet.

    Start lapse up with this database_url, which moves it; or leave database_url out, or name another state_dir.
    """


class JoinedDatabase(msgspec.Struct, frozen=True):
    """The database that has the record of a state folder."""

    name: str
    """That of the record, so that another way to write its URL is no other database."""
    place: str
    """For messages."""


@dataclass(frozen=True)
class ProcessRecord:
    """See the module."""

    journal: DatabaseJournal[Any]
    safety: CountedGateStore
    """Freezes, what was spent, and notes."""
    holds: HoldStore
    """Holds and extensions on things of domains that have no place for them."""
    plans: PlanStore
    """Plans that are kept for others to find."""
    server: Postgres | None = None
    """The database; None where the state folder has the record."""

    @classmethod
    def in_folder(cls, store: EmbeddedStore, *, budgets: Budgets = _NO_BUDGETS) -> Self:
        """Return what a state folder has of a record, wherever its record is."""
        journal = SQLiteJournal(store.database)
        safety = SQLiteGateStore(journal, budgets=budgets, domains=REGISTRY.freezable())
        return cls(journal, safety, SQLiteHolds(store.database), SQLitePlans(store.database))

    @classmethod
    def on_server(cls, database: Postgres, *, folder: str = "", budgets: Budgets = _NO_BUDGETS) -> Self:
        """Return the record in an open database, of a state folder by its name, or of what is in the database alone."""
        from lapse.engine.journal.postgres import PostgresJournal
        from lapse.engine.plans.postgres import PostgresPlans
        from lapse.engine.safety.postgres import PostgresGateStore, PostgresHolds

        shared = [one.name for one in REGISTRY.built_in if one.is_in_database]
        journal = PostgresJournal(database, store=folder, shared=shared)
        safety = PostgresGateStore(journal, budgets=budgets, domains=REGISTRY.freezable())
        return cls(journal, safety, PostgresHolds(journal), PostgresPlans(journal), database)

    @classmethod
    async def open(
        cls, settings: Settings, store: EmbeddedStore, server: Postgres | None, *, joins: bool = False
    ) -> Self:
        """Return the record of a state folder that is open.

        ``server`` is the database that the settings name (`open_server`). With ``joins`` a folder joins it, and its
        rows are moved; without, one that has rows of its own and has not joined is refused. Raises `RecordError`.
        """
        from lapse.app.process import deletion_budgets

        budgets, joined = deletion_budgets(settings), _joined(store)
        here = cls.in_folder(store, budgets=budgets)
        if server is None:
            if joined is not None:
                raise RecordElsewhereError(folder=settings.state_dir, place=joined.place)
            return here
        there = cls.on_server(server, folder=await here.safety.name(), budgets=budgets)
        name, place = await there.safety.name(), show_value(settings.database_url)
        if joined is not None and joined.name != name:
            raise RecordElsewhereError(folder=settings.state_dir, place=joined.place)
        if joined is None and not joins and await here.has_rows():
            raise RecordNotMovedError(folder=settings.state_dir, place=place)
        if joins:
            # Noted first: from here on nobody freezes anything in the folder, where it would not be seen.
            await here.safety.write_note(_JOINED, msgspec.json.encode(JoinedDatabase(name, place)).decode())
            if await is_copy(store.database, there.safety):
                there = cls.on_server(server, folder=await store.database.write(rename_record), budgets=budgets)
            await _move(store, there, webhooks=[one.name for one in settings.webhooks])
        return there

    async def has_rows(self) -> bool:
        """Whether anything was ever written here, or is held by what stands here."""
        is_held = isinstance(self.holds, SQLiteHolds) and not self.holds.is_empty()
        return bool(is_held or await self.journal.entries(limit=1) or (await self.safety.load(0)).frozen)

    async def guard(self, clock: BelievedClock, *, sources: Sequence[Source] = ()) -> ClockGuard:
        """Return the clock guard of a process; the server knows the time as well, and ``sources`` do.

        ``clock`` goes on from what was believed before; that of a folder does so already (`open_store`).
        """
        server: list[Source] = [] if self.server is None else [self.server.now_ns]
        guard = ClockGuard(clock, notes=self.safety, sources=[*sources, *server, *kernel_of(clock)])
        if self.server is not None:
            await guard.prepare()
        return guard

    def retention(self, settings: Settings, guard: ClockGuard, *, domain: str) -> JournalRetention:
        """Return what removes old rows of the journal, where this process leads; its failures are of ``domain``."""
        return JournalRetention(
            self.journal,
            ttl=settings.journal_ttl,
            counted_ns=self.safety.budgets.longest_ns,
            clock=guard.clock,
            doubt=guard.doubt,
            domain=domain,
        )

    def policy_guard(
        self, settings: Settings, store: EmbeddedStore, *, clock: Clock, metrics: Metrics, actor: str = ACTOR
    ) -> PolicyGuard:
        """Return what stops policies that are new or changed; what is known of them is where their things are."""
        from lapse.app.process import dry_seconds

        return PolicyGuard(
            self._notes_of(store),
            journal=self.journal,
            clock=clock,
            metrics=metrics,
            actor=actor,
            domains=REGISTRY.freezable(),
            interval_seconds=dry_seconds(settings),
            dry=settings.dry_run_domains,
        )

    def approvals(self, settings: Settings, store: EmbeddedStore, *, clock: Clock) -> PolicyApprovals:
        """Return what keeps policies of the folder, and of the database, from acting, such as the lack of a yes."""
        from lapse.app.process import dry_seconds

        notes_of = self._notes_of(store)
        stores = {id(notes): notes for notes in map(notes_of, REGISTRY.freezable())}
        seconds = dry_seconds(settings)
        return PolicyApprovals(stores.values(), journal=self.journal, clock=clock, interval_seconds=seconds)

    def _notes_of(self, store: EmbeddedStore) -> Callable[[str], Notes]:
        """Return what finds the notes about a domain: in the database, if its things are there, or in the folder."""
        folder: Notes = ProcessRecord.in_folder(store).safety
        if self.server is None:
            return lambda _domain: folder
        from lapse.engine.safety.postgres import PostgresNotes

        shared, there = {one.name for one in REGISTRY.built_in if one.is_in_database}, PostgresNotes(self.server)
        return lambda domain: there if domain in shared else folder

    def gate(
        self,
        guard: ClockGuard,
        *,
        metrics: Metrics,
        domains: Iterable[str] | None = None,
        policies: PolicyGuard | None = None,
    ) -> GuardedGate:
        """Return the gate of a process that ends things of ``domains``; None: of all that can be frozen."""
        gate = SafetyGate(
            self.safety,
            budgets=self.safety.budgets,
            domains=REGISTRY.freezable() if domains is None else domains,
            clock=guard.clock,
            metrics=metrics,
            actor=ACTOR,
            trust_seconds=FOLDER_TRUST_SECONDS if self.server is None else TRUST_SECONDS,
        )
        return GuardedGate(gate, guard, policies)


def kernel_of(clock: BelievedClock) -> list[Source]:
    """Return the kernel as a source of time, unless the clock is not the machine's own."""
    return [synchronised_ns] if isinstance(clock.machine, SystemClock) else []


# --- the database -----------------------------------------------------------------------------------------------------


async def open_server(settings: Settings, stack: AsyncExitStack, *, upgrades: bool = False) -> Postgres | None:
    """Connect to the database that the settings name, None where they name none; ``stack`` closes it.

    With ``upgrades`` tables that an earlier version has made are brought up to date; otherwise they are refused.
    Raises `DatabaseError`.
    """
    if not settings.database_url:
        return None
    database = await _open_database(settings.database_url, upgrades=upgrades)
    stack.push_async_callback(database.close)
    return database


async def _open_database(url: str, *, upgrades: bool) -> Postgres:
    import asyncio

    from lapse.db.errors import DatabaseOutdatedError
    from lapse.db.postgres.pool import Postgres

    database = Postgres(url)
    try:
        await database.open()
    except DatabaseOutdatedError as error:
        if not upgrades:
            raise
        from lapse.db.postgres.migration import migrate

        _log.info("tables_brought_up_to_date", reason=error.problem)
        await asyncio.to_thread(migrate, url)
        await database.open()
    return database


async def open_workspace_store(settings: Settings, server: Postgres | None = None) -> WorkspaceStore:
    """Open the workspaces: in the database, which is ``server`` if that is open, or in a file.

    In one and the same `Postgres` as the record, a change of a workspace and its row are one transaction.
    """
    from lapse.workspaces.errors import WorkspaceStoreError
    from lapse.workspaces.opening import open_workspaces, path_of

    if server is not None:
        from lapse.workspaces.store.postgres import PostgresWorkspaceStore

        return PostgresWorkspaceStore(server)
    try:
        return await open_workspaces(settings.workspaces_url)
    except WorkspaceStoreError:
        if settings.database_url or not await _move_from_workspaces(settings, path_of(settings.workspaces_url)):
            raise
    return await open_workspaces(settings.workspaces_url)


async def open_shared_record(settings: Settings, store: EmbeddedStore, server: Postgres | None) -> ProcessRecord:
    """Return the record for a process that ends nothing of a state folder but what is in the database.

    It leaves the record of the folder where that is, and only has the folder's name: its clock is that of the machine.
    """
    from lapse.app.process import deletion_budgets

    if server is None:
        return await ProcessRecord.open(settings, store, None)
    name = await ProcessRecord.in_folder(store).safety.name()
    return ProcessRecord.on_server(server, folder=name, budgets=deletion_budgets(settings))


# --- who leads --------------------------------------------------------------------------------------------------------


def folder_election(store: EmbeddedStore, clock: Clock) -> Leadership:
    """Return the election of those who act on a state folder."""
    return LeaseElection(SQLiteLease(store.database, clock=clock), clock=clock)


async def workspace_election(
    settings: Settings, store: WorkspaceStore | None, clock: Clock, stack: AsyncExitStack
) -> Leadership | None:
    """Return the election of those who act on the workspaces, in their store; None where that is the state folder's."""
    from lapse.workspaces.opening import path_of

    if settings.database_url:
        return await _database_election(settings.database_url, clock, stack)
    if path_of(settings.workspaces_url).parent.resolve() == settings.state_dir.resolve():
        return None
    database = None if store is None else store.database
    return LeaseElection(SQLiteLease(database, clock=clock), clock=clock) if isinstance(database, Database) else None


async def _database_election(url: str, clock: Clock, stack: AsyncExitStack) -> Leadership:
    from lapse.db.postgres.pool import Patience, Postgres
    from lapse.engine.running.database_lease import PostgresLease

    # A connection of its own: a renewal must not wait for its turn behind the calls of a sweep.
    patience = Patience(connect=3.0, queue=3.0, lock=2.0, statement=2.0, answer=3.0)
    database = Postgres(url, patience=patience, connections=1, name="lapse leader")
    await database.open()
    stack.push_async_callback(database.close)
    return LeaseElection(PostgresLease(database, clock=clock), clock=clock)


# --- what is elsewhere ------------------------------------------------------------------------------------------------


async def leave_database(store: EmbeddedStore, *, by: str, now: UnixNs) -> str | None:
    """Let a state folder have its record to itself again; return which database had it, None if none had.

    All its domains are frozen before: what is frozen or spent in the database is not known here.
    """
    joined = _joined(store)
    if joined is None:
        return None
    safety = ProcessRecord.in_folder(store).safety
    freeze = Freeze(now, f"the record was left in {joined.place}; look at what is frozen there, then resume", by)
    await safety.freeze(ALL, freeze, freeze_row(ALL, freeze, reason=FreezeReason.BY_PERSON, now=now))
    await safety.write_note(_JOINED, "")
    return joined.place


def _joined(store: EmbeddedStore) -> JoinedDatabase | None:
    """Return the database that a folder has joined."""
    text = note_in(store.database, _JOINED)
    return msgspec.json.decode(text, type=JoinedDatabase) if text else None


async def _move(store: EmbeddedStore, record: ProcessRecord, *, webhooks: Iterable[str]) -> None:
    """Move the record of a state folder to the server; what is noted about its objects stays with them."""
    from lapse.engine.journal.outbox import note_of

    await SQLiteHolds(store.database).move(record.holds)  # first: nothing is ended before
    moved = await move_record(store.database, record.safety, notes=[CLOCK, *map(note_of, webhooks)])
    if moved:
        _log.info("record_moved", rows=moved, reason="database_url is set, and the state folder had a record")


async def _move_from_workspaces(settings: Settings, path: Path) -> bool:
    """Move what an earlier version has written into a file of workspaces; return whether that was the trouble."""
    import asyncio

    from lapse.db.errors import DatabaseError
    from lapse.db.sqlite.file import SQLiteFile
    from lapse.workspaces.store.sqlite import SCHEMA_WITH_RECORD

    try:
        database = Database(SQLiteFile(path), SCHEMA_WITH_RECORD)
    except DatabaseError:  # then it is not about the record
        return False
    store = open_store(settings.state_dir, clock=SystemClock())
    try:
        moved = await move_record(database, ProcessRecord.in_folder(store).safety, empties=True)
    finally:
        await asyncio.to_thread(database.close)
        await store.close()
    _log.info("record_moved", rows=moved, reason=f"{path.name} had a record of its own")
    return True
