"""What a running Lapse keeps, over HTTP, awaited: keys, requests, schedules, history, policies and workspaces.

Each method is one request of docs/reference/http-api.md, and its answer the view that the domain has for it. A list is
one page; its ``next`` is the ``after`` of the following one. A change that takes ``if_match`` is made only in the
version with this ETag, which is the ``etag`` of what was shown.

The views are imported where they are needed: a program that steers workspaces does not wait for those of requests.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.client.calls import path_of
from lapse.client.errors import RemoteError
from lapse.core.errors import UsageError
from lapse.engine.view import ViewPage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from lapse.client.calls import ApiCalls
    from lapse.engine.verbs.demo import DemoView
    from lapse.history.view import Findings, PassView, PolicyView, RecordDetails, Recorded, RecordView
    from lapse.keys.view import KeyView
    from lapse.requests.schedules.view import ScheduleDetails, ScheduleView
    from lapse.requests.view import Manifests, ObjectDetails
    from lapse.workspaces.logs import LogPage
    from lapse.workspaces.model import Changes
    from lapse.workspaces.view import BusyLeaseView, Opened, WorkspaceDetails

_UNCHANGED: Final = {
    ("KeyAbsentError", HTTPStatus.NOT_FOUND),
    ("PreconditionFailedError", HTTPStatus.PRECONDITION_FAILED),
}
_PLACES: Final = {
    "VolumeCaptureRequest": "/requests/vcr",
    "VolumeRestoreRequest": "/requests/vrr",
    "ManifestCaptureRequest": "/requests/mcr",
    "PersistentVolumeClaim": "/claims",
    "ObjectKeeper": "/keepers",
    "VolumeSnapshotContent": "/artifacts/vsc",
    "ManifestCheckpoint": "/artifacts/mcp",
    "PersistentVolume": "/artifacts/pv",
}
"""Where the objects of a kind are."""


class NoRouteError(UsageError):
    """{kind} is not one kind that is served over HTTP. Expected {known}."""


class RemoteNoun:
    """Things of one kind on a server."""

    def __init__(self, calls: ApiCalls) -> None:
        """Ask the server of ``calls``."""
        self._calls = calls


class RemoteKeys(RemoteNoun):
    """Keys, by application and name.

    As in `lapse.keys`, a key that is not there and a condition that does not hold are no errors: they are answered with
    None or False, and nothing was changed.
    """

    async def list(
        self, app: int, *, prefix: str = "", limit: int = 100, after: str | None = None
    ) -> ViewPage[KeyView]:
        """Return a page of live keys in byte order, with their values."""
        from lapse.keys.view import KeyView

        place = _app(app)
        return await self._calls.get(place, ViewPage[KeyView], prefix=prefix or None, limit=limit, after=after)

    async def show(self, app: int, key: str) -> KeyView | None:
        """Return a live key."""
        from lapse.keys.view import KeyView

        try:
            return await self._calls.get(_key(app, key), KeyView)
        except RemoteError as error:
            if (error.code, error.status) not in _UNCHANGED:
                raise
            return None

    async def get(self, app: int, key: str) -> str | None:
        """Return the value of a live key."""
        value = getattr(await self.show(app, key), "value", None)
        return value if isinstance(value, str) else None

    async def get_many(self, app: int, keys: Sequence[str]) -> dict[str, str]:
        """Return the values of those that are live."""
        from lapse.keys.view import Found

        asked = {"keys": [*keys]}
        return (await self._calls.change("POST", f"{_app(app)}:get-many", Found, asked)).values

    async def put(self, app: int, key: str, value: str, *, ttl_seconds: int) -> None:
        """Write a key; one that is there is replaced."""
        from lapse.keys.view import Written

        await self._calls.change("PUT", _key(app, key), Written, {"value": value, "ttl_seconds": ttl_seconds})

    async def insert(self, app: int, key: str, value: str, *, ttl_seconds: int) -> bool:
        """Write a key unless a live one is there."""
        from lapse.keys.view import Written

        body = {"value": value, "ttl_seconds": ttl_seconds}
        return await _is_done(self._calls.change("PUT", _key(app, key), Written, body, if_absent=True))

    async def insert_many(self, app: int, items: Sequence[tuple[str, str, int]]) -> Sequence[bool]:
        """Write each of key, value and TTL in seconds unless a live one is there; tell of each whether it was."""
        from lapse.keys.view import Inserted

        asked = [{"key": key, "value": value, "ttl_seconds": seconds} for key, value, seconds in items]
        return (await self._calls.change("POST", _app(app), Inserted, {"items": asked})).inserted

    async def swap(self, app: int, key: str, expected: str, new: str, *, ttl_seconds: int) -> bool:
        """Replace a value and restart its TTL, if it is the expected one."""
        from lapse.keys.view import Written

        body = {"value": new, "ttl_seconds": ttl_seconds, "expected": expected}
        return await _is_done(self._calls.change("PUT", _key(app, key), Written, body))

    async def touch(self, app: int, key: str, *, ttl_seconds: int) -> bool:
        """Restart the TTL of a live key; its value stays."""
        from lapse.keys.view import Written

        return await _is_done(self._calls.change("PATCH", _key(app, key), Written, {"ttl_seconds": ttl_seconds}))

    async def delete(self, app: int, key: str, *, expected: str | None = None) -> bool:
        """Delete a live key; with ``expected`` only if that is its value."""
        body = None if expected is None else {"expected": expected}
        return await _is_done(self._calls.change("DELETE", _key(app, key), type(None), body))


class RemoteRequests(RemoteNoun):
    """Requests, the claims that they name, their keepers and artifacts, by address, as in ``vcr/default/nightly``."""

    async def list(
        self, kind: str, *, namespace: str | None = None, limit: int = 100, after: str | None = None
    ) -> ViewPage[ObjectDetails]:
        """Return a page of a kind: vcr, vrr, mcr, pvc, keeper, snapshot, checkpoint or volume."""
        from lapse.requests.view import ObjectDetails

        place = _place(kind)
        return await self._calls.get(place, ViewPage[ObjectDetails], namespace=namespace, limit=limit, after=after)

    async def show(self, address: str) -> ObjectDetails:
        """Return one of them."""
        from lapse.requests.view import ObjectDetails

        return await self._calls.get(_object(address), ObjectDetails)

    async def create(self, kind: str, document: Mapping[str, Any]) -> ObjectDetails:
        """Make a request or a claim: a document with ``metadata`` and ``spec``."""
        from lapse.requests.view import ObjectDetails

        return await self._calls.change("POST", _place(kind), ObjectDetails, document)

    async def capture(self, document: Mapping[str, Any]) -> ObjectDetails:
        """Ask for a capture of a volume: `create` of a vcr."""
        return await self.create("vcr", document)

    async def restore(self, document: Mapping[str, Any]) -> ObjectDetails:
        """Ask for a claim with captured data: `create` of a vrr."""
        return await self.create("vrr", document)

    async def capture_manifests(self, document: Mapping[str, Any]) -> ObjectDetails:
        """Ask for a capture of manifests: `create` of an mcr."""
        return await self.create("mcr", document)

    async def delete(self, address: str, *, if_match: str | None = None) -> None:
        """Delete a request or a claim before its time."""
        await self._calls.change("DELETE", _object(address), type(None), if_match=if_match)

    async def manifests(self, checkpoint: str) -> Manifests:
        """Return the manifests of the checkpoint of a name, proven to be what was captured."""
        from lapse.requests.view import Manifests

        return await self._calls.get(path_of("checkpoints", checkpoint, "manifests"), Manifests)


class RemoteSchedules(RemoteNoun):
    """Schedules of captures, by address, as in ``csched/default/nightly``."""

    async def list(
        self, *, namespace: str | None = None, limit: int = 100, after: str | None = None
    ) -> ViewPage[ScheduleView]:
        """Return a page of schedules, with their last and next runs."""
        from lapse.requests.schedules.view import ScheduleView

        page = ViewPage[ScheduleView]
        return await self._calls.get("/schedules", page, namespace=namespace, limit=limit, after=after)

    async def show(self, address: str) -> ScheduleDetails:
        """Return a schedule with its runs, and why each stays."""
        from lapse.requests.schedules.view import ScheduleDetails

        return await self._calls.get(_schedule(address), ScheduleDetails)

    async def create(self, document: Mapping[str, Any]) -> ScheduleDetails:
        """Make a schedule: a document with ``metadata`` and ``spec``."""
        from lapse.requests.schedules.view import ScheduleDetails

        return await self._calls.change("POST", "/schedules", ScheduleDetails, document)

    async def edit(self, address: str, spec: Mapping[str, Any], *, if_match: str | None = None) -> ScheduleDetails:
        """Merge ``spec`` into that of a schedule, where None removes."""
        from lapse.requests.schedules.view import ScheduleDetails

        asked = {"spec": {**spec}}
        return await self._calls.change("PATCH", _schedule(address), ScheduleDetails, asked, if_match=if_match)

    async def suspend(self, address: str, *, if_match: str | None = None) -> ScheduleDetails:
        """Let a schedule make no runs until it is resumed."""
        return await self.edit(address, {"suspend": True}, if_match=if_match)

    async def resume(self, address: str, *, if_match: str | None = None) -> ScheduleDetails:
        """Let a schedule make runs again."""
        return await self.edit(address, {"suspend": False}, if_match=if_match)

    async def delete(self, address: str, *, if_match: str | None = None) -> None:
        """Delete a schedule; what it has kept stays for a while."""
        await self._calls.change("DELETE", _schedule(address), type(None), if_match=if_match)


class RemoteHistory(RemoteNoun):
    """Records of runs."""

    async def list(  # noqa: PLR0913 - all of them named, one per parameter
        self,
        *,
        experiment: str | None = None,
        experiment_namespace: str | None = None,
        namespace: str | None = None,
        status: str | None = None,
        ttl: str | None = None,
        retention_limit: int | None = None,
        keep_last_success: int | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> ViewPage[RecordView]:
        """Return a page of records: of the experiment NAMESPACE/NAME, of experiments in a namespace, with a status.

        ``namespace`` is that of the records themselves; without it, of all. ``ttl``, ``retention_limit`` and
        ``keep_last_success`` tell what would be if the history had these limits.
        """
        from lapse.history.view import RecordView

        of = {"experiment": experiment, "experiment_namespace": experiment_namespace, "status": status}
        limits = _limits(ttl, retention_limit, keep_last_success)
        page = {"namespace": namespace, "limit": limit, "after": after}
        return await self._calls.get("/history", ViewPage[RecordView], **of, **limits, **page)

    async def show(
        self,
        namespace: str,
        name: str,
        *,
        ttl: str | None = None,
        retention_limit: int | None = None,
        keep_last_success: int | None = None,
    ) -> RecordDetails:
        """Return a record, how long it stays and why; with limits, as for `list`, what would be."""
        from lapse.history.view import RecordDetails

        limits = _limits(ttl, retention_limit, keep_last_success)
        return await self._calls.get(path_of("history", namespace, name), RecordDetails, **limits)

    async def record(self, document: Mapping[str, Any]) -> Recorded:
        """Record a run that has ended, a document with ``spec`` and perhaps ``metadata``; one run has one record."""
        from lapse.history.view import Recorded

        return await self._calls.change("POST", "/history", Recorded, document)

    async def prune(
        self,
        *,
        dry_run: bool = False,
        confirm: bool = False,
        ttl: str | None = None,
        retention_limit: int | None = None,
        keep_last_success: int | None = None,
    ) -> PassView:
        """End the records that are too old or too many, now; with ``dry_run`` say which.

        ``ttl``, ``retention_limit`` and ``keep_last_success`` take the place of the limits of the history, this time.
        """
        limits = _limits(ttl, retention_limit, keep_last_success)
        return await _run(self._calls, "/history/prune", dry_run=dry_run, confirm=confirm, **limits)


class RemoteRetention(RemoteNoun):
    """Retention policies."""

    async def list(self, *, limit: int = 100, after: str | None = None) -> ViewPage[PolicyView]:
        """Return a page of policies, with what their last passes did."""
        from lapse.history.view import PolicyView

        return await self._calls.get("/retention", ViewPage[PolicyView], limit=limit, after=after)

    async def show(self, name: str) -> PolicyView:
        """Return a policy."""
        from lapse.history.view import PolicyView

        return await self._calls.get(path_of("retention", name), PolicyView)

    async def run(self, name: str, *, dry_run: bool = False, confirm: bool = False) -> PassView:
        """Let a policy pass now; with ``dry_run`` say what it would end."""
        return await _run(self._calls, path_of("retention", name, "run"), dry_run=dry_run, confirm=confirm)

    async def lint(self, policies: Sequence[Mapping[str, Any]]) -> Findings:
        """Find mistakes in policies, which are documents; nothing is stored."""
        from lapse.history.view import Findings

        return await self._calls.change("POST", "/retention/lint", Findings, {"policies": [*policies]})


class RemoteWorkspaces(RemoteNoun):
    """Workspaces, by name."""

    async def list(
        self, *, owner: str | None = None, limit: int = 100, after: str | None = None
    ) -> ViewPage[WorkspaceDetails]:
        """Return a page of workspaces, by name."""
        from lapse.workspaces.view import WorkspaceDetails

        return await self._calls.get("/workspaces", ViewPage[WorkspaceDetails], owner=owner, limit=limit, after=after)

    async def show(self, name: str) -> WorkspaceDetails:
        """Return a workspace."""
        from lapse.workspaces.view import WorkspaceDetails

        return await self._calls.get(path_of("workspaces", name), WorkspaceDetails)

    async def create(
        self,
        name: str,
        *,
        command: Sequence[str],
        port: int,
        owner: str | None = None,
        standby_ttl_seconds: int | None = None,
        archive_ttl_seconds: int | None = None,
        probe: str | None = None,
        start: bool = True,
    ) -> WorkspaceDetails:
        """Create a workspace; what is None is as the server has it."""
        from lapse.workspaces.view import WorkspaceDetails

        asked = {
            "name": name,
            "command": [*command],
            "port": port,
            "owner": owner,
            "standby_ttl_seconds": standby_ttl_seconds,
            "archive_ttl_seconds": archive_ttl_seconds,
            "probe": probe,
            "start": start,
        }
        return await self._calls.change("POST", "/workspaces", WorkspaceDetails, asked)

    async def set(self, name: str, changes: Changes, *, if_match: str | None = None) -> WorkspaceDetails:
        """Change command, port, owner, TTLs or probe; its data stays."""
        from lapse.workspaces.view import WorkspaceDetails

        asked = msgspec.structs.asdict(changes)
        return await self._calls.change(
            "PATCH", path_of("workspaces", name), WorkspaceDetails, asked, if_match=if_match
        )

    async def start(self, name: str, *, if_match: str | None = None) -> WorkspaceDetails:
        """Let it run, from standby or from the archive."""
        return await self._want(name, "start", if_match)

    async def stop(self, name: str, *, if_match: str | None = None) -> WorkspaceDetails:
        """Stop it; its data stays in place."""
        return await self._want(name, "stop", if_match)

    async def archive(self, name: str, *, if_match: str | None = None) -> WorkspaceDetails:
        """Stop it and move its data to the archive."""
        return await self._want(name, "archive", if_match)

    async def delete(self, name: str, *, if_match: str | None = None) -> WorkspaceDetails:
        """Delete it with its data and its archive."""
        from lapse.workspaces.view import WorkspaceDetails

        return await self._calls.change("DELETE", path_of("workspaces", name), WorkspaceDetails, if_match=if_match)

    async def logs(self, name: str, *, tail: int | None = None, after: int = 0) -> LogPage:
        """Return a page of what its program wrote: from the beginning, the last lines, or where the last page ended."""
        from lapse.workspaces.logs import LogPage

        return await self._calls.get(path_of("workspaces", name, "logs"), LogPage, tail=tail, after=after)

    async def open(self, name: str) -> Opened:
        """Return an address that opens it in a browser: once, within a minute."""
        from lapse.workspaces.view import Opened

        return await self._calls.change("POST", path_of("workspaces", name, "open"), Opened, {})

    async def busy(self, name: str, lease: str | None = None) -> BusyLeaseView:
        """Begin a lease that keeps it from lapsing, or renew one."""
        from lapse.workspaces.view import BusyLeaseView

        return await self._calls.change("POST", path_of("workspaces", name, "busy"), BusyLeaseView, {"lease": lease})

    async def end_busy(self, name: str, lease: str) -> None:
        """End such a lease."""
        await self._calls.change("DELETE", path_of("workspaces", name, "busy", lease), type(None))

    async def _want(self, name: str, verb: str, if_match: str | None) -> WorkspaceDetails:
        from lapse.workspaces.view import WorkspaceDetails

        return await self._calls.change(
            "POST", path_of("workspaces", name, verb), WorkspaceDetails, {}, if_match=if_match
        )


class RemoteDemo(RemoteNoun):
    """The demo: things with short TTLs, for people who see Lapse for the first time."""

    async def status(self) -> DemoView:
        """Return whether it runs, and what there is of it now."""
        from lapse.engine.verbs.demo import DemoView

        return await self._calls.get("/demo", DemoView)

    async def start(self) -> DemoView:
        """Let it run for an hour; one that runs goes on as it is."""
        from lapse.engine.verbs.demo import DemoView

        return await self._calls.change("POST", "/demo/start", DemoView, {})

    async def stop(self) -> DemoView:
        """End it, and everything that it has made."""
        from lapse.engine.verbs.demo import DemoView

        return await self._calls.change("POST", "/demo/stop", DemoView, {})


# --- paths ------------------------------------------------------------------------------------------------------------


def _app(app: int) -> str:
    return path_of("apps", str(app), "keys")


def _key(app: int, key: str) -> str:
    return f"{_app(app)}{path_of(key)}"


def _object(address: str) -> str:
    from lapse.requests.addresses import locate

    found = locate(address)
    return f"{_place(found.kind.kind)}{path_of(*filter(None, (found.key.namespace, found.key.name)))}"


def _schedule(address: str) -> str:
    from lapse.requests.addresses import locate
    from lapse.requests.api.kinds import CAPTURE_SCHEDULE

    found = locate(address)
    if found.kind is not CAPTURE_SCHEDULE:
        raise NoRouteError(kind=found.kind.kind, known="CaptureSchedule, as in csched/default/nightly")
    return path_of("schedules", *filter(None, found.key))


def _place(word: str) -> str:
    """Return the path of the objects of a kind."""
    from lapse.requests.addresses import find_kinds, short_name

    kinds = find_kinds([word])
    place = _PLACES.get(kinds[0].kind) if len(kinds) == 1 else None
    if place is None:
        words = (short_name(kind) for one in _PLACES for kind in find_kinds([one]))
        raise NoRouteError(kind=word, known=f"one of {', '.join(words)}; schedules (csched) have methods of their own")
    return place


# --- what becomes of a change -----------------------------------------------------------------------------------------


async def _is_done(change: Awaitable[object]) -> bool:
    """Whether a change of a key was made; False if the key is not there or the condition does not hold."""
    try:
        await change
    except RemoteError as error:
        if (error.code, error.status) not in _UNCHANGED:
            raise
        return False
    return True


async def _run(calls: ApiCalls, path: str, *, dry_run: bool, confirm: bool, **limits: object) -> PassView:
    from lapse.history.view import PassView

    return await calls.change("POST", path, PassView, {"dryRun": dry_run, "confirm": confirm, **limits})


def _limits(ttl: str | None, retention_limit: int | None, keep_last_success: int | None) -> dict[str, object]:
    return {"ttl": ttl, "retention_limit": retention_limit, "keep_last_success": keep_last_success}
