"""Garbage collection of the embedded store: objects whose owners are all gone go, down the chain.

A dependent goes when none of its owners exists; while one lives it stays, and the references to the dead ones are taken
from it, as Kubernetes does. An owner exists when an object has its uid. Unlike Kubernetes it may live in any namespace.

The work is a queue in the database. The transaction that removes an owner, or that stores an object with an owner that
is gone, writes the owner's uid to the queue; the collector takes it from there in small transactions of its own. The
other way, removing all dependents in the owner's transaction, lost: ten thousand of them would keep every writer
waiting. As the queue is written with its cause and emptied with its effect, a crash at any moment loses nothing:
the next process that opens the file, or sees a commit in it, goes on. Two collectors on one file are harmless; each
step decides on what it finds under the write lock.

What is held, or owns what is, stays although its owners are gone: somebody may have removed them past Lapse, or a hold
came after an owner had been ended. It is looked at again when a hold on it changes or is removed.

It is apart from `lapse.engine.executor` on purpose: that one ends what lapses, by decision; this one follows from it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lapse.core.clock import UnixNs
from lapse.core.jitter import backoff
from lapse.core.log import get_logger
from lapse.kube.errors import StoreUnavailableError
from lapse.objects.documents import decode, stamped, without_owners
from lapse.objects.tables import (
    SQL,
    Holds,
    ObjectRecord,
    ObjectRow,
    Tables,
    find,
    is_alive,
    next_version,
    owners_text,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import apsw

    from lapse.core.clock import Clock
    from lapse.db.sqlite.group_commit import Operation

_log = get_logger("lapse.objects.gc")
_STEP: Final = 100
"""Dependents in one transaction: a few milliseconds, for which other writers wait."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one transaction did: the kinds whose objects it touched, and whether there is more to do."""

    touched: frozenset[str]
    more: bool


def collect_some(tables: Tables, holds: Holds, clock: Clock, at_most: int = _STEP) -> Operation[Step]:
    """Make one step: at most so many dependents of the first owner in the queue."""

    def collect(cursor: apsw.Cursor) -> Step:
        queued = rows(cursor, SQL["first_queued"])
        if not queued:
            return Step(frozenset(), more=False)
        number, owner = queued[0]
        touched: list[str] = []
        # Uids do not come back; but if ever one did, doubt keeps what depends on it.
        is_over, after = is_alive(cursor, owner), ""
        while not is_over and len(touched) < at_most:
            dependents = rows(cursor, SQL["dependents"], (owner, after, at_most))
            held = holds.over(cursor, [uid for *_, uid in dependents], UnixNs(clock.wall_ns()))
            for place, (kind, namespace, name, owners, uid) in enumerate(dependents):
                after = uid
                if _settle(
                    tables, cursor, ObjectRow(kind, namespace, name), owners=decode(owners), keeps=place in held
                ):
                    touched.append(kind)
            is_over = len(dependents) < at_most
        if is_over:
            cursor.execute(SQL["unqueue"], (number,))
        return Step(frozenset(touched), more=True)

    return collect


def _settle(tables: Tables, cursor: apsw.Cursor, place: ObjectRow, *, owners: list[str], keeps: bool) -> bool:
    """Remove one dependent, unless it is held, or take its dead owners from it; return whether it was changed."""
    gone = {owner for owner in owners if not is_alive(cursor, owner)}
    if len(gone) == len(owners):
        if not keeps:
            tables.remove(cursor, place, uid=None, version=None)
        return not keeps
    old = find(cursor, place)
    if old is None:
        return False
    version = next_version(cursor)
    body = stamped(without_owners(decode(old.body), gone), version)
    left = owners_text([owner for owner in owners if owner not in gone])
    tables.replace(cursor, place, old=old, new=ObjectRecord(old.uid, version, len(body), left, body))
    return True


class Collector:
    """Works the queue off in the background, whenever it is called. Belongs to one event loop."""

    def __init__(
        self,
        write: Callable[[Operation[Step]], Awaitable[Step]],
        *,
        tables: Tables,
        holds: Holds,
        clock: Clock,
        done: Callable[[str], None],
    ) -> None:
        """Do nothing yet. ``done`` is told after each step which kinds changed."""
        self._write = write
        self._step = collect_some(tables, holds, clock)
        self._clock = clock
        self._done = done
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def call(self) -> None:
        """See that the queue is worked off. Must be called on the event loop."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="lapse-object-garbage")

    async def close(self) -> None:
        """Stop between two steps; the next process that opens the file goes on."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    async def _work(self) -> None:
        failures = 0
        while self._again:
            self._again = False
            if await self._succeed():
                failures = 0
                continue
            self._again = True
            await self._clock.sleep(backoff(failures))
            failures += 1

    async def _succeed(self) -> bool:
        """Work until nothing is queued; tell whether that was possible."""
        try:
            while (step := await self._write(self._step)).more:
                for kind in step.touched:
                    self._done(kind)
        except StoreUnavailableError as error:
            _log.warning("garbage_collection_failed", problem=str(error))
            return False
        except Exception:  # noqa: BLE001 - a mistake of ours must not stop collection for good
            _log.exception("garbage_collection_failed")
            return False
        return True
