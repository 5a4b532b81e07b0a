"""Freezes and holds in the PostgreSQL database of the journal; what was spent is counted from the journal's rows.

What `lapse.engine.safety.sqlite` is for one machine. Freezes and budgets of what is in a state folder are those of that
folder; those of what is in the database are seen and counted by all machines. What a person freezes for all domains
stops all machines. A clock that jumped is one machine's: it stops what that machine ends, and is resumed from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.identity import uuid
from lapse.db.postgres.pool import run
from lapse.db.statements import load_statements
from lapse.engine.journal.postgres import HERE, SQL
from lapse.engine.safety.budget import TOTAL
from lapse.engine.safety.counted import RECORD_NAME, RESERVED, CountedGateStore, GateRow
from lapse.engine.safety.freeze import ABOUT_CLOCK, ALL, CLOCK, FreezeReason
from lapse.engine.safety.holds import demand_placeable, demand_releasable
from lapse.engine.safety.sqlite import stored_hold

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from psycopg import AsyncCursor

    from lapse.db.postgres.pool import Postgres, Row
    from lapse.engine.journal.port import Entry
    from lapse.engine.journal.postgres import PostgresJournal
    from lapse.engine.safety.budget import Budgets
    from lapse.engine.safety.counted import MovedRows
    from lapse.engine.safety.freeze import Freeze
    from lapse.engine.safety.holds import Hold, HoldStore, PlacedExtension, PlacedHold

_HOLDS: Final = load_statements("lapse.engine.safety", "postgres.sql")


class PostgresNotes:
    """`Notes` about one store: a state folder, or what is in the database itself."""

    def __init__(self, database: Postgres, store: str = HERE) -> None:
        """Read nothing yet; ``store`` is the name of the folder."""
        self._database, self._store = database, store

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        rows = await self._database.read(SQL["note"], {"store": self._store, "name": name})
        return str(rows[0][0]) if rows else None

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        await self._database.write(SQL["write_note"], {"store": self._store, "name": name, "text": text})

    async def list_notes(self, prefix: str) -> dict[str, str]:
        """See `Notes`."""
        rows = await self._database.read(SQL["notes"], {"store": self._store, "prefix": prefix})
        return {str(name): str(text) for name, text in rows}


class PostgresGateStore(CountedGateStore):
    """See the module."""

    def __init__(self, journal: PostgresJournal, *, budgets: Budgets, domains: Iterable[str]) -> None:
        """See `CountedGateStore`."""
        super().__init__(budgets=budgets, domains=domains)
        self._journal = journal
        self._notes = PostgresNotes(journal.database, journal.store)

    async def name(self) -> str:
        """See `CountedGateStore`."""
        rows = await self._journal.database.write(
            SQL["lock_note"], {"store": HERE, "name": RECORD_NAME, "text": uuid()}
        )
        return str(rows[0][0])

    async def freeze(self, name: str, freeze: Freeze, row: Entry) -> None:
        """See `GateStore`."""
        store = self._store_of(name, row.reason)
        values = {"name": name, "since": freeze.since or row.time_ns, "reason": freeze.reason, "by": freeze.by}

        async def work(cursor: AsyncCursor[Row]) -> None:
            await run(cursor, SQL["freeze"], {**values, "store": store})
            await self._write(cursor, row, store=store)

        await self._journal.database.transact(work)

    async def resume(self, name: str, row: Entry, *, mark: str | None = None) -> list[str]:
        """See `GateStore`."""
        mine = self._journal.store
        stores = [mine] if row.reason == FreezeReason.CLOCK_CONFIRMED else self._journal.stores

        async def work(cursor: AsyncCursor[Row]) -> list[str]:
            frozen = await run(cursor, SQL["frozen"], {"stores": stores})
            resumed = [(str(store), str(found), str(why)) for store, found, why in frozen if name in {ALL, found}]
            if resumed:
                await self._write(cursor, row, store=self._store_of(name, row.reason))
                ((last,),) = await run(cursor, SQL["last_row"], {})
                for store, found, _ in resumed:
                    await run(cursor, SQL["resume"], {"store": store, "name": found, "last": last})
                await run(cursor, SQL["count_anew"], {"store": mine, "name": TOTAL, "last": last})
            if any(why.startswith(ABOUT_CLOCK) for _, _, why in resumed):
                believe = SQL["forget_note"] if mark is None else SQL["write_note"]
                await run(cursor, believe, {"store": mine, "name": CLOCK, "text": mark})
            return sorted({found for _, found, _ in resumed})

        return await self._journal.database.transact(work)

    async def read_note(self, name: str) -> str | None:
        """See `Notes`."""
        return await self._notes.read_note(name)

    async def write_note(self, name: str, text: str) -> None:
        """See `Notes`."""
        await self._notes.write_note(name, text)

    async def list_notes(self, prefix: str) -> dict[str, str]:
        """See `Notes`."""
        return await self._notes.list_notes(prefix)

    async def take(self, moved: MovedRows) -> None:
        """See `CountedGateStore`. All that is taken is about the folder that it comes from."""
        store = self._journal.store

        async def work(cursor: AsyncCursor[Row]) -> None:
            ((found,),) = await run(cursor, SQL["lock_note"], {"store": store, "name": moved.note, "text": ""})
            if str(found) != str(moved.before):
                return
            if moved.entries:
                await self._write(cursor, *moved.entries, store=store)
            for row in moved.freezes:
                await run(cursor, SQL["take"], {**row._asdict(), "store": store})
            await run(cursor, SQL["write_note"], {"store": store, "name": moved.note, "text": str(moved.after)})

        await self._journal.database.transact(work)

    def _store_of(self, name: str, reason: str) -> str:
        """Return which store a freeze is about."""
        if reason == FreezeReason.CLOCK_JUMPED or (name == ALL and reason != FreezeReason.BY_PERSON):
            return self._journal.store
        return HERE if name == ALL else self._journal.store_of(name)

    def _store_of_things(self, domain: str) -> str:
        return self._journal.store_of(domain)

    async def _reservations(self) -> str | None:
        return await PostgresNotes(self._journal.database).read_note(RESERVED)

    async def _change_reservations(self, change: Callable[[str | None], str]) -> str:
        """See `CountedGateStore`. One row for all machines, which is locked meanwhile."""
        row = {"store": HERE, "name": RESERVED}

        async def work(cursor: AsyncCursor[Row]) -> str:
            ((found,),) = await run(cursor, SQL["lock_note"], {**row, "text": ""})
            text = change(str(found))
            await run(cursor, SQL["write_note"], {**row, "text": text})
            return text

        return await self._journal.database.transact(work)

    async def _rows(self) -> list[GateRow]:
        """Return one row for each name: a freeze of this folder, or else of the database, and what counts for us."""
        found: dict[str, GateRow] = {}
        for store, *values in await self._journal.database.read(SQL["brakes"], {"stores": self._journal.stores}):
            row, before = GateRow(*values), found.get(values[0])
            counts = store == (self._journal.store if row.name == TOTAL else self._journal.store_of(row.name))
            after = row.counted_after if counts else 0 if before is None else before.counted_after
            frozen = row if before is None or row.since_ns is not None else before
            found[row.name] = frozen._replace(counted_after=after)
        return list(found.values())

    async def _acts(self, domain: str, *, since_ns: int, after: int, slice_ns: int) -> dict[int, int]:
        return await self._journal.acts(domain, since_ns=since_ns, after=after, slice_ns=slice_ns)

    async def _write(self, cursor: AsyncCursor[Row], *rows: Entry, store: str) -> None:
        written: Awaitable[Any] | None = self._journal.writer(*rows, store=store)(cursor)
        if written is not None:
            await written


class PostgresHolds:
    """A `HoldStore`: holds on what is in a state folder are those of that folder."""

    def __init__(self, journal: PostgresJournal) -> None:
        """Read nothing yet; the journal knows which store the things of a domain are in."""
        self._journal = journal

    async def held(self, domain: str, uids: Sequence[str]) -> dict[str, Hold]:
        """See `HoldStore`."""
        rows = await self._journal.database.read(_HOLDS["held"], {**self._of(domain), "uids": list(uids)})
        return {uid: stored_hold(*hold) for uid, *hold in rows}

    async def hold(self, placed: PlacedHold, *, replace: bool = False) -> Hold | None:
        """See `HoldStore`."""
        hold = placed.hold
        values = {
            **self._of(placed.domain),
            "uid": placed.uid, "address": placed.address, "reason": hold.reason, "until": hold.until,
            "since": placed.since, "by": hold.by, "is_legal": hold.is_legal,
        }  # fmt: skip

        async def work(cursor: AsyncCursor[Row]) -> Hold | None:
            found = await _locked(cursor, values)
            demand_placeable(placed.address, hold, found, placed.since, replace=replace)
            if found is None:
                if await run(cursor, _HOLDS["hold_first"], values):
                    return None
                found = await _locked(cursor, values)
                demand_placeable(placed.address, hold, found, placed.since, replace=replace)
            await run(cursor, _HOLDS["hold"], values)
            return found

        return await self._journal.database.transact(work)

    async def release(
        self,
        domain: str,
        uid: str,
        *,
        by: str,
        legal: bool = True,
        only: str | None = None,
        address: str | None = None,
    ) -> Hold | None:
        """See `HoldStore`."""
        values = {**self._of(domain), "uid": uid}

        async def work(cursor: AsyncCursor[Row]) -> Hold | None:
            found = await _locked(cursor, values)
            demand_releasable(address or uid, found, by=by, legal=legal, only=only)
            await run(cursor, _HOLDS["release"], values)
            return found

        return await self._journal.database.transact(work)

    async def extended(self, domain: str, uids: Sequence[str]) -> dict[str, UnixNs]:
        """See `HoldStore`."""
        rows = await self._journal.database.read(_HOLDS["extended"], {**self._of(domain), "uids": list(uids)})
        return {str(uid): UnixNs(until) for uid, until in rows}

    async def extend(self, placed: PlacedExtension) -> UnixNs:
        """See `HoldStore`."""
        values = {**self._of(placed.domain), **placed._asdict()}
        return UnixNs((await self._journal.database.write(_HOLDS["extend"], values))[0][0])

    def _of(self, domain: str) -> dict[str, Any]:
        return {"store": self._journal.store_of(domain), "domain": domain}


async def _locked(cursor: AsyncCursor[Row], values: Mapping[str, Any]) -> Hold | None:
    rows = await run(cursor, _HOLDS["lock_held"], values)
    return stored_hold(*rows[0]) if rows else None


if TYPE_CHECKING:
    _holds: type[HoldStore] = PostgresHolds
