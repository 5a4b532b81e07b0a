"""The makers of the demo's things, one per domain, and in which order they come.

Guarantees. The uid of a thing is noted before it is made (of a file, a word in it), so a process that is killed in
between leaves nothing unknown. What others have of a name stays theirs. At most `MOST` things are there at once.
Nothing is made in a domain that is frozen, or whose deletion budget would be spent on it. What the demo shortens is its
own: TTLs are those of its things, and its retention policy selects by its label.

Not guaranteed: that everything comes: what a store refuses is told in the log, and the others come all the same.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.app.demo.note import APP, FILES, FOLDER, LABEL, LABELS, MARK, POLICY, PREFIX, SCRATCH, WORKSPACE, written
from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.duration import SECOND
from lapse.core.errors import LapseError
from lapse.core.identity import uuid
from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.engine.domain import decided
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    HISTORY,
    RETENTION_POLICY,
    Execution,
    ExecutionStatus,
    ExperimentRef,
    HistorySpec,
    KeepLast,
)
from lapse.history.policy.default_policy import history_document
from lapse.history.records import record
from lapse.keys.registration import KEYS
from lapse.kube.errors import AlreadyExistsError, NotFoundError
from lapse.kube.resources import ObjectKey, ObjectMeta
from lapse.requests.api.kinds import TTL, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.local.places import DIRECTORY
from lapse.requests.registration import KEEPERS, REQUESTS
from lapse.workspaces.errors import WorkspaceExistsError
from lapse.workspaces.model import Ms, NewWorkspace, WorkspaceId
from lapse.workspaces.registration import WORKSPACES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lapse.app.demo.note import DemoContext, DemoMade
    from lapse.kube.resources import Json, Kind

OWNER: Final = "demo"
"""Of its workspace; also the namespace of its experiments."""
_COMMAND: Final = (sys.executable, "-m", "lapse.workspaces.example")
MOST: Final = 40
"""So many things of it are there at once, at most, beside what a capture makes."""
_ROOM: Final = 2 * MOST
"""With less than so much left of a deletion budget, nothing is made: it is for things of others."""
_NAMESPACE: Final = "default"
_KEPT: Final = 3
"""How many records of an experiment stay."""
_EXPERIMENTS: Final = ("nightly-backup", "kill-pods")
_CLAIM: Final = "demo-notes"
_REQUEST_TTL: Final = "20s"
_ARTIFACT_TTL: Final = "3m"
_STANDBY_SECONDS: Final = 45
_ARCHIVE_SECONDS: Final = 900
_LIVES: Final = (20, 35, 60, 90, 150, 210, 300, 400, 520)
"""For how many seconds keys and files live, in turn."""
_TURNS: Final = ("key", "record", "scratch", "key", "record", "capture")
"""What comes, one after the other."""
_FIRST: Final = ("policy", "workspace", "capture", "success", *10 * ("record",), *9 * ("key", "scratch"))
"""What comes at once where there is hardly anything: more records than the policy keeps."""
_FEW: Final = 8
_DOMAINS: Final = {
    "policy": HISTORY,
    "success": HISTORY,
    "record": HISTORY,
    "workspace": WORKSPACES.name,
    "capture": REQUESTS.name,
    "key": KEYS.name,
    "scratch": SCRATCH,
}
"""In which domain a thing lapses."""
_MOST_CAPTURES: Final = 100
_LOOPBACK: Final = "127.0.0.1"
_MS: Final = 1_000_000
_log = get_logger("lapse.app.demo")


class Maker:
    """Makes things of the demo; for the process that leads."""

    def __init__(self, context: DemoContext) -> None:
        """Make nothing yet."""
        self._context = context

    async def make_more(self, made: DemoMade, *, alive: int) -> None:
        """Make what comes next, or what comes first where hardly anything is ``alive``; ``made`` is noted with it."""
        turns = _FIRST if alive < _FEW else (_TURNS[made.serial % len(_TURNS)],)
        for what in islice(turns, max(0, MOST - alive)):
            made.serial += 1
            if await self._has_room(_DOMAINS[what]):
                try:
                    await self._maker(what)(made)
                except LapseError as error:  # the others come all the same
                    _log.warning("demo_not_made", what=what, problem=str(error))
                await self._context.write_made(made)
        await self._context.write_made(made)

    async def _has_room(self, domain: str) -> bool:
        """Whether things of a domain may come: what ends them must not be what its budget ends by, or freezes it."""
        place, now = self._context.place, self._context.now
        if domain == KEYS.name:
            return True
        gate = await place.freezes.load(now)
        left = place.budgets.room(gate.spent, domain, UnixNs(now)).most
        return gate.freeze_of(domain) is None and (left is None or left >= _ROOM)

    def _maker(self, what: str) -> Callable[[DemoMade], Awaitable[None]]:
        makers: dict[str, Callable[[DemoMade], Awaitable[None]]] = {
            "policy": self._make_policy,
            "success": self._make_success,
            "record": self._make_record,
            "workspace": self._make_workspace,
            "capture": self._make_capture,
            "key": self._make_key,
            "scratch": self._make_scratch,
        }
        return makers[what]

    async def _create(self, made: DemoMade, kind: Kind[Any], obj: Any, *, uid: str) -> None:  # noqa: ANN401 - of the kind
        """Make an object under a uid that is noted before; what others have of its name stays what it is."""
        made.know([uid])
        await self._context.write_made(made)
        with suppress(AlreadyExistsError):
            await self._context.objects.create(kind, obj, uid=uid)

    async def _make_key(self, made: DemoMade) -> None:
        await self._context.keys.app(APP).insert_if_not_exists(f"{PREFIX}{made.serial:04}", MARK, _life(made.serial))

    async def _make_policy(self, made: DemoMade) -> None:
        """Make the policy: the newest of each experiment, and the last good one; of records of the demo alone."""
        spec = history_document(namespace=self._context.settings.history_namespace, keep_last_success=1).spec
        assert isinstance(spec.keep_last, KeepLast)  # noqa: S101 - asked for
        spec = msgspec.structs.replace(
            spec,
            selector=msgspec.structs.replace(spec.selector, labels=LABELS),
            max_age=None,
            max_count=_KEPT,
            dry_run=False,
        )
        body = {"metadata": _metadata(POLICY), "spec": msgspec.to_builtins(spec)}
        await self._create(made, RETENTION_POLICY, body, uid=uuid())
        # What is made after a policy was first seen is made under it, and waits for no first pass.
        wanted = (HISTORY, REQUESTS.name, KEEPERS.name, WORKSPACES.name)
        for name in [one for one in wanted if one in self._context.place.names]:
            await (await self._context.place.domain(name)).look_at_policies(self._context.place.gate.policies)

    async def _make_success(self, made: DemoMade) -> None:
        """Record the one good run of an experiment whose other runs fail: its policy keeps that."""
        await self._record(made, _EXPERIMENTS[0], ExecutionStatus.SUCCESS)

    async def _make_record(self, made: DemoMade) -> None:
        name = _EXPERIMENTS[made.serial % len(_EXPERIMENTS)]
        fails = name == _EXPERIMENTS[0]
        await self._record(made, name, ExecutionStatus.FAILURE if fails else ExecutionStatus.SUCCESS)

    async def _record(self, made: DemoMade, experiment: str, status: str) -> None:
        end = self._context.now
        spec = HistorySpec(
            experiment_ref=ExperimentRef(name=experiment, namespace=OWNER, uid=made.run),
            execution=Execution(
                start_time=to_timestamp(end - 60 * SECOND), end_time=to_timestamp(end), status=status, message=MARK
            ),
        )
        given = ObjectMeta(name=f"{PREFIX}{experiment}-{made.serial:04}", labels=LABELS)
        wanted = record(spec, namespace=self._context.settings.history_namespace, given=given)
        await self._create(made, CHAOS_EXPERIMENT_HISTORY, wanted, uid=uuid())

    async def _make_capture(self, made: DemoMade) -> None:
        """Capture the demo's own directory; request and snapshot have TTLs of their own."""
        claim = await self._claim(made)
        if claim is None:
            return
        name = f"{PREFIX}capture-{made.serial:04}"
        target = {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIM.kind, "name": _CLAIM, "uid": claim}
        metadata = {**_metadata(name), "namespace": _NAMESPACE}
        body = {
            "metadata": {**metadata, "annotations": {TTL: _REQUEST_TTL}},
            "spec": {"mode": "Snapshot", "target": target, "artifactTTL": _ARTIFACT_TTL},
        }
        uid = uuid()
        made.captures = [*made.captures, uid][-_MOST_CAPTURES:]
        await self._create(made, VOLUME_CAPTURE_REQUEST, body, uid=uid)

    async def _claim(self, made: DemoMade) -> str | None:
        """Return the uid of the claim for the directory, which is made if need be; None where others have its name."""
        folder = self._context.settings.state_dir / FOLDER
        await asyncio.to_thread(_fill, folder)
        body = {
            "metadata": {**_metadata(_CLAIM), "namespace": _NAMESPACE, "annotations": {DIRECTORY: str(folder)}},
            "spec": {},
        }
        key = ObjectKey(_NAMESPACE, _CLAIM)
        try:
            found = await self._context.objects.get(PERSISTENT_VOLUME_CLAIM, key)
        except NotFoundError:
            made.claim = uuid()
            await self._create(made, PERSISTENT_VOLUME_CLAIM, body, uid=made.claim)
            found = await self._context.objects.get(PERSISTENT_VOLUME_CLAIM, key)
        meta = found.metadata
        return meta.uid if meta.labels.get(LABEL) and meta.uid in made.uids else None

    async def _make_workspace(self, made: DemoMade) -> None:
        from lapse.app.workspaces import node_of

        if self._context.workspaces is None:
            return
        settings = self._context.settings
        new = NewWorkspace(
            name=WORKSPACE,
            owner=OWNER,
            command=_COMMAND,
            # Beside the proxy's, where it stays from start to start; any, where the proxy takes any, too.
            port=free_port(settings.proxy_port and settings.proxy_port + 1),
            node_id=node_of(settings),
            standby_ttl_seconds=_STANDBY_SECONDS,
            archive_ttl_seconds=_ARCHIVE_SECONDS,
        )
        uid = uuid()
        made.know([uid])
        await self._context.write_made(made)
        with suppress(WorkspaceExistsError):
            await self._context.workspaces.create(new, now=Ms(self._context.now // _MS), uid=WorkspaceId(uid))

    async def _make_scratch(self, made: DemoMade) -> None:
        """Write a file, and set its time back so far that it is over when it should be, as its domain decides."""
        folder = self._context.scratch
        if folder is None:
            return
        domain, now = await self._context.place.domain(SCRATCH), UnixNs(self._context.now)
        address, word = Address(SCRATCH, None, f"{PREFIX}{made.serial:04}.txt"), uuid()
        path = folder / address.name
        made.files[str(address)] = word
        await self._context.write_made(made)
        if not await asyncio.to_thread(_write_new, path, now, word):
            del made.files[str(address)]
            return
        found = await domain.find(address)
        deadline = None if found is None else decided(domain, found, now).deadline
        if found is None or deadline is None:  # a domain of this name that is not the example
            await asyncio.to_thread(path.unlink, missing_ok=True)
            return
        made.files[str(address)] = found.uid
        back = deadline - (now + _life(made.serial) * SECOND)
        if back > 0:
            await asyncio.to_thread(os.utime, path, ns=(now, now - back))


def _metadata(name: str) -> Json:
    return {"name": name, "labels": dict(LABELS)}


def _life(serial: int) -> int:
    return _LIVES[serial // 2 % len(_LIVES)]


def _fill(folder: Path) -> None:
    """Write the files of the directory that is captured."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in FILES.items():
        _write_new(folder / name, None, text)


def _write_new(path: Path, now: int | None, text: str = "") -> bool:
    """Write a file with the mark, as of a time, unless there is one of its name; return whether there was none."""
    try:
        with path.open("x") as file:
            file.write(written(text))
    except FileExistsError:
        return False
    if now is not None:
        os.utime(path, ns=(now, now))
    return True


def free_port(wanted: int) -> int:
    """Return the port that is wanted, or, where that is taken or there is none such, one that is free now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just left is free
        try:
            probe.bind((_LOOPBACK, wanted))
        except (OSError, OverflowError):
            probe.bind((_LOOPBACK, 0))
        found: int = probe.getsockname()[1]
        return found
