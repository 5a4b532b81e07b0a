"""The object store in one SQLite file: what an API server does for controllers, for one machine and without a server.

Guarantees, beyond those of the port. A write is answered when it is durable as the database's ``synchronous`` says, and
shares its commit with the process's other writers. Versions are one counter for the whole store, in the order of the
commits, so a watch misses nothing. A read sees every write, of any process, that was answered before it began. Several
processes may use one file; each sees the others' changes within a tenth of a second. ``delete(also=...)`` writes in the
deletion's own transaction.

As Kubernetes has it, and on purpose: names, labels, annotations and sizes are bounded; a patch that changes nothing is
no change; a patch that names a uid or resource version of its own is held to it. Unlike it: namespaces are not objects,
any valid one exists; there are no finalizers, so a deletion is done when it is answered; what is held is no garbage.

Not guaranteed: how long the past is kept, only how much of it (``changes_kept``, ``bytes_kept``): a list in pages or a
watch that fell behind that gets `GoneError`. What was deleted stays in the file until its log is trimmed. A store
belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from lapse.core.clock import UnixNs
from lapse.core.identity import uuid
from lapse.core.timestamps import to_timestamp
from lapse.db.errors import CommitUnknownError, DatabaseClosedError, DatabaseError
from lapse.db.sqlite.database import Database
from lapse.db.sqlite.file import Schema, SQLiteFile, Synchronous
from lapse.engine.journal.sqlite import INTENT_SCRIPTS
from lapse.engine.journal.sqlite import SCHEMA_SCRIPTS as JOURNAL_SCRIPTS
from lapse.engine.plans.sqlite import PLANS_SCRIPTS
from lapse.engine.running.database_lease import SCHEMA_SCRIPTS as LEASE_SCRIPTS
from lapse.engine.safety.holds import held_error
from lapse.engine.safety.sqlite import EXTENSIONS_SCRIPTS, HOLDS_SCRIPTS, NOTES_SCRIPTS
from lapse.engine.safety.sqlite import SCHEMA_SCRIPTS as GATE_SCRIPTS
from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NoSuchKindError,
    NotFoundError,
    ObjectError,
    StoreUnavailableError,
    UnknownKindError,
)
from lapse.kube.resources import (
    NO_LABELS,
    Document,
    Event,
    EventType,
    Json,
    Kind,
    Object,
    ObjectKey,
    Page,
    by_word,
    words_of,
)
from lapse.objects import documents
from lapse.objects.change_log import ListQuery, Wakeups, changes_after, page, read_cursor, read_version, summary
from lapse.objects.documents import as_json, check_namespace, decode, encode
from lapse.objects.gc import Collector
from lapse.objects.tables import (
    SQL,
    ChangeRetention,
    Holds,
    ObjectRecord,
    ObjectRemoval,
    Tables,
    find,
    kind_name,
    next_version,
    owners_text,
    place_of,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import apsw

    from lapse.core.clock import Clock
    from lapse.core.errors import LapseError
    from lapse.db.sqlite.group_commit import Operation
    from lapse.engine.safety.holds import HeldError, Hold
    from lapse.objects.change_log import Change
    from lapse.objects.port import Deletion, LabelSummary

T = TypeVar("T", bound=Object)
A = TypeVar("A")

# Files remember how many of these they have: what is new goes to the end.
_SCRIPTS: Final = (
    SQL["schema_1"], *JOURNAL_SCRIPTS, *GATE_SCRIPTS, SQL["schema_2"], SQL["schema_3"], *NOTES_SCRIPTS,
    *HOLDS_SCRIPTS, *LEASE_SCRIPTS, *INTENT_SCRIPTS,
    *EXTENSIONS_SCRIPTS, *PLANS_SCRIPTS,
)  # fmt: skip
SCHEMA: Final = Schema(application_id=0x4C61704F, scripts=_SCRIPTS)  # "LapO"
CHANGES_KEPT: Final = 100_000
BYTES_KEPT: Final = 256 * 1024 * 1024
_QUICK_PAGE: Final = 500
"""A list up to this long is read where it is asked for; longer ones in a thread, else the event loop stands still."""
_BOOKMARK_NS: Final = 1_000_000_000
_SECOND: Final = 1_000_000_000


def open_embedded(
    path: Path, *, kinds: Iterable[Kind[Any]], clock: Clock, synchronous: Synchronous = Synchronous.FULL
) -> EmbeddedStore:
    """Open or create the file; raises `StoreUnavailableError` when it cannot be used."""
    try:
        database = Database(SQLiteFile(path, synchronous=synchronous), SCHEMA)
    except DatabaseError as error:
        raise StoreUnavailableError(problem=f"{path}: {error.problem}") from error.__cause__
    return EmbeddedStore(database, kinds=kinds, clock=clock)


class EmbeddedStore:
    """See the module. It owns ``database`` from now on."""

    def __init__(
        self,
        database: Database,
        *,
        kinds: Iterable[Kind[Any]],
        clock: Clock,
        changes_kept: int = CHANGES_KEPT,
        bytes_kept: int = BYTES_KEPT,
    ) -> None:
        """Touch nothing yet."""
        self._database = database
        self._kinds = {(kind.api_version, kind.kind): kind for kind in kinds}
        self._clock = clock
        self._holds = Holds(self._kinds.values())
        self._tables = Tables(ChangeRetention(changes_kept, bytes_kept))
        self._wakeups = Wakeups(database.file, clock=clock, noticed=self._look_for_garbage)
        self._collector = Collector(
            self._submit, tables=self._tables, holds=self._holds, clock=clock, done=self._wakeups.wake
        )
        self._looked = False

    @property
    def database(self) -> Database:
        """See `ObjectStore`."""
        return self._database

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """See `Reader`."""
        check_namespace(self._known(kind), key, key.namespace)
        self._begin()
        found = self._read(lambda cursor: rows(cursor, SQL["body"], place_of(kind, key)))
        if not found:
            raise _not_found(kind, key)
        return _decode(kind, found[0][0])

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """See `Reader`."""
        return await self._list(kind, ListQuery(kind_name(kind), namespace, labels, limit), after)

    async def list_created_before(
        self,
        kind: Kind[T],
        moment: str,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """See `Summarising`."""
        return await self._list(kind, ListQuery(kind_name(kind), namespace, labels, limit, moment), after)

    async def _list(self, kind: Kind[T], question: ListQuery, after: str | None) -> Page[T]:
        known, limit = self._known(kind), question.limit
        if question.namespace is not None:
            check_namespace(known, "list", question.namespace)
        if limit is not None and limit < 0:
            raise InvalidError(kind=kind.kind, name="list", problem=f"limit is {limit}; expected a positive number")
        start = None if after is None else read_cursor(kind.kind, after)

        def look() -> Page[T]:
            found = self._read(lambda cursor: page(cursor, question, start))
            items = tuple(_decode(kind, body) for body in found.bodies)
            return Page(items, str(found.moment), None if found.next is None else str(found.next))

        self._begin()
        is_quick = limit and limit <= _QUICK_PAGE and not question.created_before
        return look() if is_quick else await asyncio.to_thread(look)

    async def summary(
        self, kind: Kind[Any], *, namespace: str | None = None, labels: Mapping[str, str] = NO_LABELS, at_most: int
    ) -> Sequence[LabelSummary] | None:
        """See `Summarising`."""
        known = self._known(kind)
        if namespace is not None:
            check_namespace(known, "list", namespace)
        question = ListQuery(kind_name(kind), namespace, labels, at_most)
        self._begin()
        return await asyncio.to_thread(self._read, lambda cursor: summary(cursor, question))

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        """See `Reader`."""
        try:
            return self._kinds[api_version, kind]
        except KeyError:
            raise UnknownKindError(kind=kind, api_version=api_version) from None

    async def resolve_word(self, word: str) -> Kind[Any]:
        """See `ObjectStore`."""
        found = by_word(self._kinds.values(), word)
        if found is None:
            *first, last = words_of(self._kinds.values())
            raise NoSuchKindError(given=word, place="this store", known=f"{', '.join(first)} or {last}")
        return found

    async def watch(self, kind: Kind[T], *, namespace: str | None = None, since: str) -> AsyncGenerator[Event[T], None]:
        """See `ObjectStore`. Ends when the store is closed."""
        known = self._known(kind)
        if namespace is not None:
            check_namespace(known, "list", namespace)
        name = kind_name(kind)
        seen = read_version(kind.kind, since)
        told_ns = -_BOOKMARK_NS
        self._begin()
        async with self._wakeups.listening(name) as woken:
            while True:
                woken.clear()
                before = seen
                batch = self._read(partial(changes_after, version=before, kind=name, namespace=namespace))
                for change in batch.changes:
                    yield _event(kind, change)
                seen = batch.seen
                now_ns = self._clock.monotonic_ns()
                if not batch.changes and seen > before and now_ns - told_ns >= _BOOKMARK_NS:
                    told_ns = now_ns
                    yield Event(EventType.BOOKMARK, None, str(seen))
                if not batch.more:
                    await woken.wait()
                    if self._wakeups.closed:
                        return

    # --- writing -----------------------------------------------------------------------------------------------------
    # An operation that finds a reason to refuse returns it. One that raises would be undone with a savepoint, and its
    # whole group with it would be run again.

    async def create(self, kind: Kind[T], obj: T | Json, *, uid: str | None = None) -> T:
        """See `ObjectStore`. A fresh ``uid`` is given by a caller who has to note it before the object is there."""
        draft = documents.draft(self._known(kind), obj)
        key = ObjectKey(draft.metadata.get("namespace"), draft.metadata["name"])
        place, uid, owners = place_of(kind, key), uid or uuid(), owners_text(draft.owners)

        def create(cursor: apsw.Cursor) -> tuple[Any, bool]:
            version = next_version(cursor)
            created = to_timestamp(self._clock.wall_ns() // _SECOND * _SECOND)
            body = draft.encode(uid=uid, version=version, created=created)
            record = ObjectRecord(uid, version, len(body), owners, body)
            garbage = self._tables.insert(cursor, place, record=record)
            if garbage is None:
                return AlreadyExistsError(kind=kind.kind, name=key), False
            return body, garbage

        return _decode(kind, await self._write(place.kind, create))

    async def patch(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """See `ObjectStore`."""
        known = self._known(kind)
        asked = as_json(kind, key, changes)
        make = self._patching(known, key, lambda old: documents.patched(known, old, asked), uid=uid, version=version)
        return _decode(kind, await self._write(kind_name(kind), make))

    async def patch_status(
        self, kind: Kind[T], key: ObjectKey, changes: Json, *, uid: str | None = None, version: str | None = None
    ) -> T:
        """See `ObjectStore`."""
        known = self._known(kind)
        if not known.status:
            raise InvalidError(kind=kind.kind, name=key, problem="its status cannot be patched apart from the rest")
        asked = as_json(kind, key, changes)
        make = self._patching(
            known, key, lambda old: documents.with_status(known, old, asked), uid=uid, version=version
        )
        return _decode(kind, await self._write(kind_name(kind), make))

    async def delete(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        version: str | None = None,
        also: Callable[[Any], object] | None = None,
    ) -> None:
        """See `ObjectStore`."""
        check_namespace(self._known(kind), key, key.namespace)
        place, number = place_of(kind, key), None if version is None else _number(version)

        def delete(cursor: apsw.Cursor) -> tuple[ObjectError | None, bool]:
            garbage = self._tables.remove(cursor, place, uid=uid, version=number)
            if garbage is None:
                return _why_not(cursor, kind, key, uid=uid, version=version), False
            if also is not None:
                also(cursor)
            return None, garbage

        await self._write(place.kind, delete)

    async def delete_all(
        self, deletions: Sequence[Deletion], *, also: Callable[[Any, Sequence[int]], object]
    ) -> Sequence[LapseError | None]:
        """See `TransactionalStore`."""
        for one in deletions:
            check_namespace(self._known(one.kind), one.key, one.key.namespace)
        removals = [ObjectRemoval(place_of(one.kind, one.key), one.uid, _number(one.version)) for one in deletions]
        # What is asked for twice goes once: the first one does it, the second finds nothing.
        numbers = {one: number for number, one in reversed(list(enumerate(removals)))}

        patches = {number: self._ending(one) for number, one in enumerate(deletions) if one.instead is not None}

        def delete(cursor: apsw.Cursor) -> tuple[Sequence[LapseError | None], bool]:
            held = self._holds.over(cursor, [one.uid for one in deletions], UnixNs(self._clock.wall_ns()))
            kept = held.keys() | patches.keys()
            free = {one: number for one, number in numbers.items() if number not in kept} if kept else numbers
            gone, garbage = self._tables.remove_all(cursor, free)
            removed = sorted(free[one] for one in gone)
            refusals: list[LapseError | None] = [None] * len(removals)
            for number in patches.keys() - held.keys():
                answer, is_garbage = patches[number](cursor)
                refusals[number] = answer if isinstance(answer, ObjectError) else None
                garbage = garbage or is_garbage
                removed += [] if isinstance(answer, ObjectError) else [number]
            if removed:
                also(cursor, sorted(removed))
            for number in set(range(len(removals))).difference(removed, set(patches) - held.keys()):
                one = deletions[number]
                refusals[number] = (
                    _held(one, held[number])
                    if number in held
                    else _why_not(cursor, one.kind, one.key, uid=one.uid, version=one.version)
                )
            return refusals, garbage

        if not removals:
            return []
        refusals: Sequence[LapseError | None] = await self._write(removals[0].place.kind, delete)
        for kind in {one.place.kind for one in removals[1:]}:
            self._wakeups.wake(kind)
        return refusals

    def _ending(self, deletion: Deletion) -> Operation[tuple[Any, bool]]:
        """Make the operation that patches an object instead of removing it."""
        kind, key = self._known(deletion.kind), deletion.key
        asked = as_json(kind, key, cast("Json", deletion.instead))
        change = partial(documents.patched, kind, changes=asked)
        return self._patching(kind, key, change, uid=deletion.uid, version=deletion.version)

    async def prepare(self, kind: Kind[Any]) -> None:
        """See `lapse.objects.holds.cluster.Dependants`: everything is known."""

    def owned_by(self, uid: str) -> Sequence[tuple[Kind[Any], Any]]:
        """See `lapse.objects.holds.cluster.Dependants`."""
        found = self._read(lambda cursor: rows(cursor, SQL["owned"], (uid,)))
        kinds = {kind_name(kind): kind for kind in self._kinds.values()}
        return [(kinds[name], _decode(kinds[name], body)) for name, body in found if name in kinds]

    def owning(self, uids: Sequence[str]) -> set[str]:
        """See `lapse.objects.holds.cluster.Dependants`."""
        asked = encode(list(uids)).decode()
        return {uid for (uid,) in self._read(lambda cursor: rows(cursor, SQL["owning"], (asked,)))}

    async def holds_over(self, deletions: Sequence[Deletion], now: UnixNs) -> Sequence[Hold | None]:
        """See `HoldLookup`. What it finds may change at once; `delete_all` looks again."""
        self._begin()
        held = self._read(lambda cursor: self._holds.over(cursor, [one.uid for one in deletions], now))
        return [held.get(number) for number in range(len(deletions))]

    def last_change(self) -> int:
        """Return the version of the last write, of any process: a number that goes up with every one."""
        ((tip,),) = self._read(lambda cursor: rows(cursor, SQL["tip"]))
        return int(tip)

    async def check(self) -> None:
        """See `ObjectStore`."""
        self._read(lambda cursor: rows(cursor, SQL["check"]))

    async def close(self) -> None:
        """See `ObjectStore`."""
        await self._wakeups.close()
        await self._collector.close()
        await asyncio.to_thread(self._database.close)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _patching(
        self, kind: Kind[Any], key: ObjectKey, change: Callable[[Json], Json], *, uid: str | None, version: str | None
    ) -> Operation[tuple[Any, bool]]:
        """Make the operation that reads, compares, changes and writes; it answers with the new body."""
        check_namespace(kind, key, key.namespace)
        place = place_of(kind, key)

        def patch(cursor: apsw.Cursor) -> tuple[Any, bool]:
            old = find(cursor, place)
            if old is None:
                return _not_found(kind, key), False
            if (conflict := _conflict(kind, key, found=(old.uid, old.version), uid=uid, version=version)) is not None:
                return conflict, False
            try:
                new = change(decode(old.body))
                if encode(new) == old.body:
                    return old.body, False
                number = next_version(cursor)
                body = documents.stamped(new, number)
                documents.check_size(kind, key, len(body))
            except ObjectError as error:
                return error, False
            record = ObjectRecord(old.uid, number, len(body), owners_text(documents.owners_of(new)), body)
            return body, self._tables.replace(cursor, place, old=old, new=record)

        return patch

    async def _write(self, kind: str, operation: Operation[tuple[Any, bool]]) -> Any:  # noqa: ANN401 - the body, or nothing
        try:
            answer, garbage = await self._submit(operation)
        except asyncio.CancelledError:
            self._looked = False  # it may be written, and have left garbage
            raise
        if isinstance(answer, ObjectError):
            raise answer
        self._wakeups.wake(kind)
        if garbage:
            self._collector.call()
        return answer

    async def _submit(self, operation: Operation[A]) -> A:
        self._begin()
        try:
            return await self._database.write(operation)
        except DatabaseError as error:
            raise _unavailable(error) from error.__cause__

    def _read(self, look: Callable[[apsw.Cursor], A]) -> A:
        try:
            return self._database.read_together(look)
        except DatabaseError as error:
            raise _unavailable(error) from error.__cause__

    def _begin(self) -> None:
        """At first use, go on with what a process that was killed left to collect."""
        if not self._looked:
            self._look_for_garbage()

    def _look_for_garbage(self) -> None:
        with suppress(StoreUnavailableError):  # the next call of anything else says so
            self._looked = True
            if self._read(lambda cursor: rows(cursor, SQL["is_anything_queued"]))[0][0]:
                self._collector.call()

    def _known(self, kind: Kind[Any]) -> Kind[Any]:
        """Return the kind as the store was told of it; a caller may use another view of it, such as documents."""
        try:
            return self._kinds[kind.api_version, kind.kind]
        except KeyError:
            raise UnknownKindError(kind=kind.kind, api_version=kind.api_version) from None


def _decode(kind: Kind[T], body: bytes) -> T:
    try:
        return kind.decode(body)
    except msgspec.ValidationError as error:
        problem = f"what is stored cannot be read as this kind ({error})"
        raise InvalidError(kind=kind.kind, name="object", problem=problem) from error


def _event(kind: Kind[T], change: Change) -> Event[T]:
    version = str(change.version)
    if change.type is not EventType.DELETED:
        return Event(change.type, _decode(kind, change.body), version)
    return Event(change.type, _at_version(_decode(kind, change.body), version), version)


def _at_version(obj: T, version: str) -> T:
    """Return an object as it was last, but at the version of its deletion."""
    if isinstance(obj, Document):
        obj.body["metadata"]["resourceVersion"] = version  # nobody else has it yet
        return obj
    metadata = msgspec.structs.replace(obj.metadata, resource_version=version)
    return cast("T", msgspec.structs.replace(cast("msgspec.Struct", obj), metadata=metadata))


def _number(version: str) -> int:
    """Return a version as the tables have it; a text that is none is the version of nothing."""
    return int(version) if version.isascii() and version.isdigit() else -1


def _why_not(
    cursor: apsw.Cursor, kind: Kind[Any], key: ObjectKey, *, uid: str | None, version: str | None
) -> ObjectError:
    found = rows(cursor, SQL["identity"], place_of(kind, key))
    conflict = _conflict(kind, key, found=found[0], uid=uid, version=version) if found else None
    return conflict or _not_found(kind, key)


def _conflict(
    kind: Kind[Any], key: ObjectKey, *, found: tuple[str, int], uid: str | None, version: str | None
) -> ConflictError | None:
    found_uid, found_version = found
    if uid is not None and uid != found_uid:
        problem = f"its uid is {found_uid}, expected {uid}"
    elif version is not None and version != str(found_version):
        problem = f"its resource version is {found_version}, expected {version}"
    else:
        return None
    return ConflictError(kind=kind.kind, name=key, problem=problem)


def _held(deletion: Deletion, hold: Hold) -> HeldError:
    return held_error(deletion.kind.address(deletion.key), hold)


def _not_found(kind: Kind[Any], key: ObjectKey) -> NotFoundError:
    return NotFoundError(kind=kind.kind, name=key)


def _unavailable(error: DatabaseError) -> StoreUnavailableError:
    match error:
        case CommitUnknownError():
            problem = f"it is not known whether the change was made; read it again ({error.problem})"
        case DatabaseClosedError():
            problem = "it is closed"
        case _:
            problem = error.problem
    return StoreUnavailableError(problem=problem)
