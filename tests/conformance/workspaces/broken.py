"""Deliberately broken stores, each wrong in one way, around a real one.

They know nothing of its inside: they stand between a case and the port, and spoil what goes through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from lapse.workspaces.errors import ChangedMeanwhileError, OperationUnderWayError, WorkspaceExistsError
from lapse.workspaces.model import (
    Changes,
    CheckPlace,
    DesiredBy,
    DesiredState,
    Ms,
    NewWorkspace,
    ObservedStatus,
    Operation,
    OpId,
    Workspace,
    WorkspaceCandidate,
    WorkspaceId,
)
from tests.conformance.windows import window_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.workspaces.store.sqlite import SqliteWorkspaceStore

Ids = set[WorkspaceId]


class Passing:
    """Passes everything on. Subclasses spoil one thing."""

    def __init__(self, inner: SqliteWorkspaceStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)

    async def fresh(self, candidates: Sequence[WorkspaceCandidate]) -> list[WorkspaceCandidate]:
        return [(await self.inner.get(one.id)).candidate for one in candidates]


class Showing(Passing):
    """Spoils what is read one by one."""

    def shown(self, one: Workspace) -> Workspace:
        raise NotImplementedError

    async def get(self, workspace: WorkspaceId) -> Workspace:
        return self.shown(await self.inner.get(workspace))


# --- people -----------------------------------------------------------------------------------------------------------


class NamesAreTakenTwice(Passing):
    async def create(self, asked: NewWorkspace, *, now: Ms) -> Workspace:
        try:
            return await self.inner.create(asked, now=now)
        except WorkspaceExistsError:
            return await self.inner.by_name(asked.name)


class RulesAreForgotten(Passing):
    async def create(self, asked: NewWorkspace, *, now: Ms) -> Workspace:
        return await self.inner.create(replace(asked, standby_ttl_seconds=max(1, asked.standby_ttl_seconds)), now=now)


class VersionsAreIgnored(Passing):
    async def set_desired(self, workspace: WorkspaceId, state: DesiredState, by: DesiredBy, **how: Any) -> Workspace:  # noqa: ANN401
        return await self.inner.set_desired(workspace, state, by, now=how["now"])


class VersionsAreIgnoredByHolds(Passing):
    async def hold(self, workspace: WorkspaceId, reason: str, **how: Any) -> Workspace:  # noqa: ANN401
        return await self.inner.hold(workspace, reason, **{**how, "version": None})


class VersionsAreIgnoredByDeletion(Passing):
    async def mark_deleted(self, workspace: WorkspaceId, **how: Any) -> Workspace:  # noqa: ANN401
        return await self.inner.mark_deleted(workspace, now=how["now"])


class VersionsAreComparedInTwoSteps(Passing):
    async def set_desired(
        self, workspace: WorkspaceId, state: DesiredState, by: DesiredBy, *, version: int | None = None, now: Ms
    ) -> Workspace:
        found = await self.inner.get(workspace)
        if version is not None and found.version != version:
            raise ChangedMeanwhileError(workspace=found.name, found=found.version, expected=version)
        if version is not None:
            await window_of_this_loop().meet(workspace, version)
        return await self.inner.set_desired(workspace, state, by, now=now)


class OperationsStopNobody(Passing):
    async def set_desired(self, workspace: WorkspaceId, state: DesiredState, by: DesiredBy, **how: Any) -> Workspace:  # noqa: ANN401
        return await self.inner.set_desired(workspace, state, DesiredBy.ACCESS, **how)


class OperationsStopConnections(Passing):
    async def connected(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        found = await self.inner.get(workspace)
        if found.operation is not Operation.NONE:
            raise OperationUnderWayError(workspace=found.name, operation=found.operation)
        return await self.inner.connected(workspace, now=now)


class OneTtlResetsTheOther(Passing):
    async def configure(self, workspace: WorkspaceId, changes: Changes, **how: Any) -> Workspace:  # noqa: ANN401
        standby, archive = changes.standby_ttl_seconds or 300, changes.archive_ttl_seconds or 86_400
        both = replace(changes, standby_ttl_seconds=standby, archive_ttl_seconds=archive)
        return await self.inner.configure(workspace, both, **how)


class PortsChangeUnderPrograms(Passing):
    async def configure(self, workspace: WorkspaceId, changes: Changes, **how: Any) -> Workspace:  # noqa: ANN401
        changed = await self.inner.configure(workspace, changes, **how)
        return changed if changed.next_port is None else replace(changed, port=changed.next_port, next_port=None)


class SettingsResetTheProbe(Passing):
    async def configure(self, workspace: WorkspaceId, changes: Changes, **how: Any) -> Workspace:  # noqa: ANN401
        return await self.inner.configure(workspace, replace(changes, probe=changes.probe or ""), **how)


class PortsOfDeletedOnesAreTaken(Passing):
    async def at_port(self, port: int, *, node: str | None) -> Sequence[Workspace]:
        gone = [one for one in await self.inner.pending_work() if one.deleted_at is not None and one.port == port]
        return [*await self.inner.at_port(port, node=node), *gone]


class HoldsHaveNoEnd(Passing):
    async def hold(self, workspace: WorkspaceId, reason: str, **how: Any) -> Workspace:  # noqa: ANN401
        return await self.inner.hold(workspace, reason, **{**how, "until": None})


class ReleasesAreForgotten(Passing):
    async def release(self, workspace: WorkspaceId, *, version: int | None = None, now: Ms) -> Workspace:
        return await self.inner.get(workspace)


class DeletedOnesAreListed(Passing):
    async def list(self, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        gone = [one for one in await self.inner.pending_work() if one.deleted_at is not None]
        return [*gone, *await self.inner.list(**how)]


class PagesBeginWithTheLast(Passing):
    async def list(self, *, after: str | None = None, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        found = await self.inner.list(after=after, **how)
        return found if after is None or not found else [await self.inner.by_name(after), *found][: how["limit"]]


class PagesNeverEnd(Passing):
    async def list(self, *, after: str | None = None, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return await self.inner.list(**how)


class OwnersSeeEverybodys(Passing):
    async def list(self, *, owner: str | None = None, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return await self.inner.list(**how)


class ReadsComeFromACache(Passing):
    def __init__(self, inner: SqliteWorkspaceStore) -> None:
        super().__init__(inner)
        self.cache: dict[str, Workspace] = {}

    async def by_name(self, name: str) -> Workspace:
        return self.cache.setdefault(name, await self.inner.by_name(name))

    async def create(self, asked: NewWorkspace, *, now: Ms) -> Workspace:
        self.cache[asked.name] = await self.inner.create(asked, now=now)
        return self.cache[asked.name]


class ARestartForgetsAll(Passing):
    def __init__(self, inner: SqliteWorkspaceStore) -> None:
        super().__init__(inner)
        self.mine: set[str] = set()

    async def create(self, asked: NewWorkspace, *, now: Ms) -> Workspace:
        self.mine.add(asked.name)
        return await self.inner.create(asked, now=now)

    async def list(self, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return [one for one in await self.inner.list(**how) if one.name in self.mine]


# --- accesses and candidates ------------------------------------------------------------------------------------------


class ConnectionsAreNoVersion(Passing):
    async def connected(self, workspace: WorkspaceId, *, now: Ms) -> Workspace:
        await self.inner.flush_access({workspace: now})
        return await self.inner.get(workspace)


class FlushesAreVersions(Passing):
    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        await self.inner.flush_access(times)
        for one in list(times)[:1]:
            await self.inner.release(one, now=Ms(2**62))


class FlushesLoseSome(Passing):
    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        await self.inner.flush_access(dict(list(times.items())[:1]))


class AccessMovesBack(Showing):
    times: ClassVar[dict[WorkspaceId, Ms]] = {}

    async def flush_access(self, times: Mapping[WorkspaceId, Ms]) -> None:
        await self.inner.flush_access(times)
        self.times.update(times)

    def shown(self, one: Workspace) -> Workspace:
        return replace(one, last_access_at=self.times.get(one.id, one.last_access_at))


class CandidatesComeEarly(Passing):
    async def standby_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return await self.inner.standby_candidates(Ms(now + 1), **how)


class CandidatesComeLate(Passing):
    async def archive_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return await self.inner.archive_candidates(Ms(now - 1), **how)


class AllThatRunAreCandidates(Passing):
    async def standby_candidates(self, now: Ms, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return [one for one in await self.inner.list() if one.observed_status is ObservedStatus.RUNNING]


class CandidatesOfAMomentAreLost(Passing):
    async def standby_candidates(self, now: Ms, *, after: CheckPlace | None = None, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        beyond = None if after is None else replace(after, id=WorkspaceId("z"))
        return await self.inner.standby_candidates(now, after=beyond, **how)


class ChecksArePutOffBlindly(Passing):
    async def advance_checks(self, checks: Mapping[WorkspaceCandidate, Ms]) -> None:
        fresh = await self.fresh(list(checks))
        await self.inner.advance_checks(dict(zip(fresh, checks.values(), strict=True)))


class DeletedOnesAreCounted(Passing):
    async def count_by_status(self) -> Mapping[ObservedStatus, int]:
        rows = self.inner.database.read("SELECT observed_status, count(*) FROM workspaces GROUP BY observed_status")
        return dict.fromkeys(ObservedStatus, 0) | {ObservedStatus(status): number for status, number in rows}


class FingerprintsForgetStatuses(Passing):
    async def fingerprint(self) -> object:
        return self.inner.database.read("SELECT count(*), sum(version) FROM workspaces")


# --- transitions ------------------------------------------------------------------------------------------------------


class StandbyIsWrittenBlindly(Passing):
    """What the last one wrote counts."""

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Ids:  # noqa: ANN401
        for one in candidates:
            await self.inner.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=now)
        return {one.id for one in candidates}


class StandbyIsComparedInTwoSteps(Passing):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Ids:  # noqa: ANN401
        same = [one for one in candidates if (await self.inner.get(one.id)).candidate == one]
        if same:
            await window_of_this_loop().overtaken(lambda: self.changed(same))
        for one in same:
            await self.inner.set_desired(one.id, DesiredState.STANDBY, DesiredBy.TTL, now=now)
        return {one.id for one in same}

    async def changed(self, candidates: Sequence[WorkspaceCandidate]) -> bool:
        return await self.fresh(candidates) != list(candidates)


class StandbyIgnores(Passing):
    """Compares all but one thing, by name."""

    field: ClassVar[str]

    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Any:  # noqa: ANN401
        fresh = await self.fresh(candidates)
        spoiled = [
            replace(one, **{self.field: getattr(new, self.field)}) for one, new in zip(candidates, fresh, strict=True)
        ]
        return await self.inner.to_standby(spoiled, now=now, also=also)


class StandbyIgnoresTheVersion(StandbyIgnores):
    field = "version"


class StandbyIgnoresTheAccess(StandbyIgnores):
    field = "last_access_at"


class StandbyIgnoresWhenItBegan(StandbyIgnores):
    field = "status_changed_at"


class TransitionsClaimAll(Passing):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Ids:  # noqa: ANN401
        await self.inner.to_standby(candidates, now=now, also=also)
        return {one.id for one in candidates}


class RecordsTellOfAll(Passing):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Any:  # noqa: ANN401
        everybody = range(len(candidates))
        return await self.inner.to_standby(
            candidates, now=now, also=also and (lambda cursor, _: also(cursor, everybody))
        )


class RecordsAreWrittenAfterwards(Passing):
    async def to_pending(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Any:  # noqa: ANN401
        changed = await self.inner.to_pending(candidates, now=now)
        places = [place for place, one in enumerate(candidates) if one.id in changed]
        if also is not None and places:
            await self.inner.database.write(lambda cursor: also(cursor, places))
        return changed


# --- working ----------------------------------------------------------------------------------------------------------


class ClaimsTakeOver(Passing):
    async def claim(self, workspace: WorkspaceId, operation: Operation, op_id: OpId, **how: Any) -> bool:  # noqa: ANN401
        while not await self.inner.claim(workspace, operation, op_id, **how):
            before = (await self.inner.get(workspace)).op_id
            if before is None:
                return False
            await self.inner.complete(workspace, before, now=how["now"])
        return True


class ClaimsIgnoreTheVersion(Passing):
    async def claim(self, workspace: WorkspaceId, operation: Operation, op_id: OpId, **how: Any) -> bool:  # noqa: ANN401
        return await self.inner.claim(workspace, operation, op_id, now=how["now"])


class AnybodyCompletes(Passing):
    async def complete(self, workspace: WorkspaceId, op_id: OpId, **how: Any) -> bool:  # noqa: ANN401
        found = (await self.inner.get(workspace)).op_id
        return await self.inner.complete(workspace, found or op_id, **how)


class AnybodyFails(Passing):
    async def fail(self, workspace: WorkspaceId, op_id: OpId, **how: Any) -> bool:  # noqa: ANN401
        found = (await self.inner.get(workspace)).op_id
        return await self.inner.fail(workspace, found or op_id, **how)


class StoppingIsNoAccess(Showing):
    def shown(self, one: Workspace) -> Workspace:
        return replace(one, last_access_at=one.created_at)


class EveryLookIsAChange(Showing):
    def shown(self, one: Workspace) -> Workspace:
        return replace(one, status_changed_at=one.observed_at or one.status_changed_at)


class ObservationsHealErrors(Passing):
    async def observe(self, statuses: Mapping[WorkspaceId, ObservedStatus], *, now: Ms) -> Any:  # noqa: ANN401
        for one in statuses:
            await self.inner.clear_error(one, now=now)
        return await self.inner.observe(statuses, now=now)


class EveryObservationIsNews(Passing):
    async def observe(self, statuses: Mapping[WorkspaceId, ObservedStatus], *, now: Ms) -> Ids:
        await self.inner.observe(statuses, now=now)
        return set(statuses)


class DeletedOnesAreNoWork(Passing):
    async def pending_work(self, **how: Any) -> Sequence[Workspace]:  # noqa: ANN401
        return [one for one in await self.inner.pending_work(**how) if one.deleted_at is None]
