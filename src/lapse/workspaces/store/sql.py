"""The workspace stores' shared part: every call of the port, written once for SQLite and PostgreSQL.

Both keep one table with the same columns and have statements of the same names, so each call of the port is written
once, here. A store adds how a statement is run, and how a step over many rows is.

A change is one statement that compares and writes. Only if it changed nothing the row is read to say why: so the usual
case is one round trip, and nobody waits for a lock that is held while somebody decides. The answer to a refusal may be
about a moment later than the refusal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET

from lapse.core.identity import uuid
from lapse.core.log import get_logger
from lapse.db.errors import CommitUnknownError, DatabaseClosedError, DatabaseError, DatabaseMisfitError
from lapse.db.statements import load_statements
from lapse.workspaces.errors import (
    ChangedMeanwhileError,
    InvalidWorkspaceError,
    OperationUnderWayError,
    StoreClosedError,
    StoreMisfitError,
    UnknownWorkspaceError,
    WorkspaceError,
    WorkspaceExistsError,
    WorkspaceOutcomeUnknownError,
    WorkspaceStoreError,
    WorkspaceStoreUnavailableError,
)
from lapse.workspaces.model import (
    LARGEST_VERSION,
    Changes,
    CheckPlace,
    DesiredBy,
    ObservedStatus,
    Operation,
    Workspace,
    check_extension,
    check_hold,
    check_limit,
    is_id,
    is_name,
    storable,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from msgspec import UnsetType

    from lapse.workspaces.model import (
        DesiredState,
        Ms,
        NewWorkspace,
        OpId,
        ProbeAnswer,
        WorkspaceCandidate,
        WorkspaceId,
    )
    from lapse.workspaces.store.port import Also

    Row = tuple[Any, ...]
    Values = Mapping[str, Any]
    Columns = Mapping[str, Sequence[Any]]

COLUMNS: Final = Workspace.__struct_fields__
_log = get_logger("lapse.workspaces.store.port")
_ATTEMPTS: Final = 5
_BEFORE_ALL: Final = -(2**63)


def load_sql(file_name: str) -> dict[str, str]:
    """Return the named statements of a store's file, with the model's columns put in."""
    columns = ", ".join(COLUMNS)
    statements = load_statements("lapse.workspaces.store", file_name)
    return {name: sql.replace("{columns}", columns) for name, sql in statements.items()}


def workspace_of(row: Sequence[Any]) -> Workspace:
    """Make a workspace of a row whose values are of the types that the model asks for, or texts of enums."""
    return msgspec.convert(dict(zip(COLUMNS, row, strict=True)), Workspace)


def translate(error: DatabaseError) -> WorkspaceStoreError:
    """Say in words of this domain what is wrong with a database."""
    match error:
        case DatabaseClosedError():
            return StoreClosedError()
        case CommitUnknownError():
            return WorkspaceOutcomeUnknownError(problem=error.problem)
        case DatabaseMisfitError():
            return StoreMisfitError(problem=error.problem)
        case _:
            return WorkspaceStoreUnavailableError(problem=error.problem)


class SqlStore(ABC):
    """A `lapse.workspaces.store.port.WorkspaceStore` without its database."""

    # --- to be added by a store --------------------------------------------------------------------------------------

    @abstractmethod
    async def _read(self, name: str, values: Values) -> Sequence[Workspace]:
        """Run a statement that only looks."""

    @abstractmethod
    async def _count(self, name: str) -> Sequence[Row]:
        """Run a statement that only looks, at many rows, and returns numbers of them."""

    @abstractmethod
    async def _write(self, name: str, values: Values) -> Sequence[Row]:
        """Run a statement in a transaction of its own; return its rows when they are durable."""

    @abstractmethod
    async def _write_each(
        self, name: str, columns: Columns, *, shared: Values, also: Also | None, places: Mapping[WorkspaceId, int]
    ) -> AbstractSet[WorkspaceId]:
        """Run a statement for many rows in one transaction; return the ids it returned.

        ``also`` is called in the same transaction, with the places of these ids.
        """

    @abstractmethod
    def _workspace(self, row: Row) -> Workspace:
        """Make a workspace of what the database has."""

    @abstractmethod
    def _command(self, command: Sequence[str]) -> object:
        """Make of a command what the database has."""

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, workspace: WorkspaceId) -> Workspace:
        """See `Reading`."""
        found = await self._find(workspace)
        if found is None:
            raise UnknownWorkspaceError(workspace=storable(workspace))
        return found

    async def by_name(self, name: str) -> Workspace:
        """See `Reading`."""
        found = await self._read("by_name", {"name": name}) if is_name(name) else ()
        if not found:
            raise UnknownWorkspaceError(workspace=storable(name))
        return found[0]

    async def list(
        self, *, owner: str | None = None, limit: int = 100, after: str | None = None
    ) -> Sequence[Workspace]:
        """See `Reading`."""
        check_limit(limit)
        values = {"limit": limit, "after": storable(after or "")}
        if owner is None:
            return await self._read("list", values)
        return await self._read("list_of_owner", {**values, "owner": storable(owner)})

    async def standby_candidates(
        self, now: Ms, *, limit: int = 1000, after: CheckPlace | None = None
    ) -> Sequence[Workspace]:
        """See `Reading`."""
        return await self._candidates("standby_candidates", now, limit=limit, after=after)

    async def archive_candidates(
        self, now: Ms, *, limit: int = 1000, after: CheckPlace | None = None
    ) -> Sequence[Workspace]:
        """See `Reading`."""
        return await self._candidates("archive_candidates", now, limit=limit, after=after)

    async def pending_work(self, *, limit: int = 1000, after: WorkspaceId | None = None) -> Sequence[Workspace]:
        """See `Reading`."""
        check_limit(limit)
        return await self._read("pending_work", {"limit": limit, "after": storable(after or "")})

    async def trashed(
        self, *, before: Ms | None = None, limit: int = 1000, after: WorkspaceId | None = None
    ) -> Sequence[Workspace]:
        """See `Reading`."""
        check_limit(limit)
        ends = LARGEST_VERSION if before is None else before
        return await self._read("trashed", {"before": ends, "limit": limit, "after": storable(after or "")})

    async def at_port(self, port: int, *, node: str | None) -> Sequence[Workspace]:
        """See `Reading`."""
        return await self._read("at_port", {"port": port, "node": node})

    async def count_by_status(self) -> Mapping[ObservedStatus, int]:
        """See `Reading`."""
        counts = {ObservedStatus(status): int(count) for status, count in await self._count("count_by_status")}
        return {status: counts.get(status, 0) for status in ObservedStatus}

    async def fingerprint(self) -> Hashable:
        """See `Reading`."""
        return tuple(map(tuple, await self._count("fingerprint")))

    # --- wanting -----------------------------------------------------------------------------------------------------

    async def create(self, new: NewWorkspace, *, now: Ms, uid: WorkspaceId | None = None) -> Workspace:
        """See `Wanting`."""
        new.check()
        asked = msgspec.structs.asdict(new)
        values = {**asked, "id": uid or uuid(), "command": self._command(new.command), "now": now}
        rows = await self._write("create", {**values, "desired_state": new.desired_state.value})
        if not rows:
            raise WorkspaceExistsError(workspace=new.name)
        return self._workspace(rows[0])

    async def set_desired(
        self, workspace: WorkspaceId, state: DesiredState, by: DesiredBy, *, version: int | None = None, now: Ms
    ) -> Workspace:
        """See `Wanting`."""
        values = {"state": state.value, "by": by.value, "now": now}
        busy = by is not DesiredBy.ACCESS
        return await self._change("set_desired", workspace, values, version=version, unless_busy=busy)

    async def configure(
        self, workspace: WorkspaceId, changes: Changes, *, version: int | None = None, now: Ms
    ) -> Workspace:
        """See `Wanting`."""
        changes.check()
        busy = changes.of_the_program
        command = None if changes.command is None else self._command(changes.command)
        values = {**msgspec.structs.asdict(changes), "command": command, "now": now, "unless_busy": busy}
        return await self._change("configure", workspace, values, version=version, unless_busy=busy)

    async def hold(
        self,
        workspace: WorkspaceId,
        reason: str,
        *,
        until: Ms | None = None,
        by: str | None = None,
        is_legal: bool = False,
        version: int | None = None,
        now: Ms,
    ) -> Workspace:
        """See `Wanting`."""
        check_hold(reason, until, now=now)
        kept_by = None if by is None else storable(by)
        values = {"reason": reason, "until": until, "by": kept_by, "is_legal": is_legal, "now": now}
        return await self._change("hold", workspace, values, version=version)

    async def extend(self, workspace: WorkspaceId, until: Ms, *, version: int | None = None, now: Ms) -> Workspace:
        """See `Wanting`."""
        check_extension(until, now=now)
        return await self._change("extend", workspace, {"until": until}, version=version)

    async def release(self, workspace: WorkspaceId, *, version: int | None = None, now: Ms) -> Workspace:
        """See `Wanting`."""
        return await self._change("release", workspace, {"now": now}, version=version)

    async def mark_deleted(
        self, workspace: WorkspaceId, *, trash_until: Ms | None = None, version: int | None = None, now: Ms
    ) -> Workspace:
        """See `Wanting`."""
        values = {"now": now, "trash_until": trash_until}
        return await self._change("mark_deleted", workspace, values, version=version, unless_busy=True)

    async def bring_back(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        """See `Wanting`."""
        rows = await self._write("bring_back", {"id": workspace, "now": now}) if is_id(workspace) else ()
        if rows:
            return self._workspace(rows[0])
        found = await self._find(workspace)
        if found is None or found.trash_until is None:
            raise UnknownWorkspaceError(workspace=storable(workspace))
        raise WorkspaceExistsError(workspace=found.name)

    async def clear_error(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        """See `Wanting`."""
        return await self._change("clear_error", workspace, {})

    async def revive(self, workspace: WorkspaceId, *, before: Ms, seen: Ms, now: Ms) -> Workspace | None:
        """See `Wanting`."""
        rows = await self._write("revive", {"id": workspace, "before": before, "seen": seen, "now": now})
        return self._workspace(rows[0]) if rows else None

    async def connected(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        """See `Wanting`."""
        return await self._change("connected", workspace, {"now": now})

    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        """See `Wanting`."""
        items = sorted(times.items())
        columns: Columns = {"id": [one for one, _ in items], "time": [time for _, time in items]}
        await self._each("flush_access", columns)

    # --- lapsing -----------------------------------------------------------------------------------------------------

    async def advance_checks(self, checks: Mapping[WorkspaceCandidate, Ms]) -> None:
        """See `Lapsing`."""
        items = sorted(checks.items(), key=lambda item: item[0].id)
        columns: Columns = {
            "id": [one.id for one, _ in items],
            "version": [one.version for one, _ in items],
            "status_changed_at": [one.status_changed_at for one, _ in items],
            "check_after": [time for _, time in items],
        }
        await self._each("advance_checks", columns)

    async def to_standby(
        self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Also | None = None
    ) -> AbstractSet[WorkspaceId]:
        """See `Lapsing`."""
        return await self._transition("to_standby", candidates, also)

    async def to_pending(
        self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Also | None = None
    ) -> AbstractSet[WorkspaceId]:
        """See `Lapsing`."""
        return await self._transition("to_pending", candidates, also)

    async def to_removal(
        self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Also | None = None
    ) -> AbstractSet[WorkspaceId]:
        """See `Lapsing`."""
        return await self._transition("to_removal", candidates, also)

    # --- working -----------------------------------------------------------------------------------------------------

    async def claim(
        self, workspace: WorkspaceId, operation: Operation, op_id: OpId, *, version: int | None = None, now: Ms
    ) -> bool:
        """See `Working`."""
        if operation is Operation.NONE:
            raise InvalidWorkspaceError(field="operation", given="NONE", expected="one that can be claimed")
        values = {"operation": operation.value, "op_id": op_id, "version": version, "now": now}
        return bool(await self._write("claim", {"id": workspace, **values}))

    async def tried(self, workspace: WorkspaceId, op_id: OpId) -> int | None:
        """See `Working`."""
        rows = await self._write("tried", {"id": workspace, "op_id": op_id})
        return int(rows[0][0]) if rows else None

    async def complete(
        self, workspace: WorkspaceId, op_id: OpId, *, now: Ms, archive_key: str | UnsetType | None = UNSET
    ) -> bool:
        """See `Working`."""
        keeps = archive_key is UNSET
        archive = {"keeps_archive": keeps, "archive_key": None if keeps else archive_key}
        return bool(await self._write("complete", {"id": workspace, "op_id": op_id, "now": now, **archive}))

    async def fail(self, workspace: WorkspaceId, op_id: OpId, *, reason: str, message: str, now: Ms) -> bool:
        """See `Working`."""
        error = {"reason": storable(reason), "message": storable(message)}
        return bool(await self._write("fail", {"id": workspace, "op_id": op_id, "now": now, **error}))

    async def note_exit(
        self, workspace: WorkspaceId, *, status: int | None, output: str, at: Ms, steady: bool
    ) -> int | None:
        """See `Working`."""
        ended = {"status": status, "output": storable(output), "at": at, "steady": steady}
        rows = await self._write("note_exit", {"id": workspace, **ended})
        return int(rows[0][0]) if rows else None

    async def note_operation(self, workspace: WorkspaceId, op_id: OpId, note: str | None) -> bool:
        """See `Working`."""
        kept = None if note is None else storable(note)
        return bool(await self._write("note_operation", {"id": workspace, "op_id": op_id, "note": kept}))

    async def forget(self, workspace: WorkspaceId, op_id: OpId) -> bool:
        """See `Working`."""
        return bool(await self._write("forget", {"id": workspace, "op_id": op_id}))

    async def probed(self, answers: Mapping[WorkspaceId, ProbeAnswer]) -> None:
        """See `Working`."""
        items = sorted(answers.items())
        columns: Columns = {
            "id": [one for one, _ in items],
            "probe": [answer.probe for _, answer in items],
            "at": [answer.at for _, answer in items],
            "problem": [None if answer.problem is None else storable(answer.problem) for _, answer in items],
        }
        await self._each("probed", columns)

    async def observe(self, statuses: Mapping[WorkspaceId, ObservedStatus], *, now: Ms) -> AbstractSet[WorkspaceId]:
        """See `Working`."""
        items = sorted(statuses.items())
        columns: Columns = {"id": [one for one, _ in items], "status": [status.value for _, status in items]}
        return await self._each("observe", columns, shared={"now": now})

    # --- inside ------------------------------------------------------------------------------------------------------

    def _workspaces(self, name: str, rows: Sequence[Row]) -> Sequence[Workspace]:
        """Make workspaces of what a statement found. Where it is for all, one that somebody has spoilt is left out."""
        if name not in _FOR_ALL:
            return [self._workspace(row) for row in rows]
        found = []
        for row in rows:
            try:
                found.append(self._workspace(row))
            except msgspec.MsgspecError as error:
                _log.warning(
                    "workspace_unreadable", workspace=row[0], effect="the workspace is not changed", problem=str(error)
                )
        return found

    async def _find(self, workspace: WorkspaceId) -> Workspace | None:
        found = await self._read("get", {"id": workspace}) if is_id(workspace) else ()
        return found[0] if found else None

    async def _candidates(self, name: str, now: Ms, *, limit: int, after: CheckPlace | None) -> Sequence[Workspace]:
        check_limit(limit)
        place = {"after_check": after.check_after, "after_id": after.id} if after else _FIRST
        return await self._read(name, {"now": now, "limit": limit, **place})

    async def _change(
        self,
        name: str,
        workspace: WorkspaceId,
        values: Values,
        *,
        version: int | None = None,
        unless_busy: bool = False,
    ) -> Workspace:
        """Change one row, or raise what was against it."""
        if not is_id(workspace):
            raise UnknownWorkspaceError(workspace=storable(workspace))
        # What no database could compare stands for 0: no workspace has either.
        compared = version if version is None or 0 <= version <= LARGEST_VERSION else 0
        for _ in range(_ATTEMPTS):
            rows = await self._write(name, {"id": workspace, "version": compared, **values})
            if rows:
                return self._workspace(rows[0])
            found = await self._find(workspace)
            refused = _refusal(workspace, found, version=version, unless_busy=unless_busy)
            if refused is not None:
                raise refused
            # What was against it has gone in between: ask again.
        raise WorkspaceStoreUnavailableError(problem=f"the workspace {workspace} changes faster than it can be changed")

    async def _transition(
        self, name: str, candidates: Sequence[WorkspaceCandidate], also: Also | None
    ) -> AbstractSet[WorkspaceId]:
        in_order = sorted(candidates, key=lambda one: one.id)
        columns = {field: [getattr(one, field) for one in in_order] for field in _COMPARED}
        return await self._each(name, columns, also=also, places={one.id: at for at, one in enumerate(candidates)})

    async def _each(
        self,
        name: str,
        columns: Columns,
        *,
        shared: Values | None = None,
        also: Also | None = None,
        places: Mapping[WorkspaceId, int] | None = None,
    ) -> AbstractSet[WorkspaceId]:
        if not columns["id"]:
            return frozenset()
        return await self._write_each(name, columns, shared=shared or {}, also=also, places=places or {})


_FOR_ALL: Final = frozenset({"standby_candidates", "archive_candidates", "pending_work", "trashed"})
_FIRST: Final = {"after_check": _BEFORE_ALL, "after_id": ""}
_COMPARED: Final = ("id", "version", "last_access_at", "status_changed_at")


def _refusal(
    workspace: WorkspaceId, found: Workspace | None, *, version: int | None, unless_busy: bool
) -> WorkspaceError | None:
    """Say what is against a change, if anything is."""
    if found is None or found.deleted_at is not None:
        return UnknownWorkspaceError(workspace=workspace if found is None else found.name)
    if version is not None and found.version != version:
        return ChangedMeanwhileError(workspace=found.name, found=found.version, expected=version)
    if unless_busy and found.operation is not Operation.NONE:
        return OperationUnderWayError(workspace=found.name, operation=found.operation.value)
    return None
