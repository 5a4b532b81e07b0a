"""The demo: things with short TTLs in every domain, for people who see Lapse for the first time.

It is a state of the folder: a note there says since when it runs and until when, so a process that is restarted goes on
with it. The process that leads makes its things, some at once and then one after the other, and ends it after an hour.

Guarantees. Everything that it makes is marked: objects by a label, keys by their application and their values, files by
their first line; workspaces, which have no place for a mark, are known by their ids. The uid of a thing is noted before
it is made, and of a file a word in it, so that a process which is killed leaves nothing unknown. Only what is marked
and noted is removed, by the engine's own deletion, under the uid that it was found with; what came back from the trash
is known by the row of its undo. Things of others stay, whatever they are called and labelled, copies of the demo's
among them. At most `MOST` things are there at once. Nothing is made in a domain that is frozen, or whose deletion
budget would be spent on it. When its time is over by itself, nothing that is held is removed, nothing of a domain that
is frozen, and nothing while the clock is in doubt; a person who stops it releases ordinary holds on its things.

What it shortens is its own: TTLs are those of its things, and its retention policy, which passes every few seconds,
selects by its label. ``lapse up --demo`` looks more often for idle workspaces and old scratch files (`demo_settings`),
where the settings do not say how often.

Not guaranteed: that a thing which is deleted by somebody within seconds after it was brought back from the trash leaves
the trash when the demo is stopped; that one goes which came back without a row in the journal, or a file that somebody
has replaced: in doubt they stay. A copy of a file that takes its place, and its inode, within seconds counts as it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from lapse.core.address import Address
from lapse.core.clock import UnixNs
from lapse.core.decision import Due
from lapse.core.duration import SECOND, Duration
from lapse.core.errors import LapseError
from lapse.core.identity import uuid
from lapse.core.log import get_logger
from lapse.core.timestamps import to_timestamp
from lapse.domains import REGISTRY
from lapse.engine.domain import Candidate, action_of, decided, deletion_by_person
from lapse.engine.executor import Executor, delete_by_person
from lapse.engine.journal.port import AUDIT, AuditReason, Outcome
from lapse.engine.plans.approvals import loop_gate
from lapse.engine.safety.holds import hold_of
from lapse.engine.service import LocalService
from lapse.engine.verbs.contract import ReleaseRequest
from lapse.engine.verbs.demo import DemoView
from lapse.engine.verbs.place import Caller
from lapse.engine.view import Moment
from lapse.history.api.kinds import (
    CHAOS_EXPERIMENT_HISTORY,
    HISTORY,
    RETENTION,
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
from lapse.kube.resources import ObjectKey, ObjectMeta, metadata_only
from lapse.objects.target import ObjectHandle, ObjectTarget
from lapse.objects.trash.rules import BROUGHT_BACK, IN_TRASH, TRASH, TrashWay, contents_of, is_trash, state_of
from lapse.requests.addresses import ARTIFACT_KINDS, keeper_name, snapshot_name
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS, TTL, VOLUME_CAPTURE_REQUEST
from lapse.requests.api.upstream import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import InvalidTTLAnnotationError, TTLMode, ttl_of
from lapse.requests.local.places import DIRECTORY
from lapse.requests.registration import KEEPERS, REQUESTS
from lapse.settings import SETTINGS, Origin
from lapse.workspaces.errors import UnknownWorkspaceError, WorkspaceExistsError
from lapse.workspaces.model import Ms, NewWorkspace, WorkspaceId
from lapse.workspaces.registration import WORKSPACES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from lapse.core.clock import Clock
    from lapse.engine.domain import Target
    from lapse.engine.running.coordinator import Turn
    from lapse.engine.safety.freeze import Notes
    from lapse.engine.verbs.place import Place
    from lapse.keys.aio import AsyncKeys
    from lapse.kube.resources import Json, Kind
    from lapse.objects.embedded import EmbeddedStore
    from lapse.objects.trash.rules import TrashContents
    from lapse.settings import LoadedSettings, Settings
    from lapse.workspaces.model import Workspace
    from lapse.workspaces.store.port import WorkspaceStore

LABEL: Final = "lapse.dev/demo"
LABELS: Final = {LABEL: "true"}
"""On every object of the demo."""
OWNER: Final = "demo"
"""Of its workspace; also the namespace of its experiments."""
APP: Final = 3366
"""The application of its keys."""
WORKSPACE: Final = "demo-notebook"
_COMMAND: Final = (sys.executable, "-m", "lapse.workspaces.example")
MARK: Final = "Made by lapse demo; lapse demo stop removes it."
"""The value of its keys, and the first line of its files."""
MOST: Final = 40
"""So many things of it are there at once, at most, beside what a capture makes."""
LASTS: Final = Duration.parse("1h")
EVERY_SECONDS: Final = 10.0
"""How often something new comes."""
SCRATCH: Final = "scratch"
"""The example domain of ``examples/domain``, by its name; and its folder in the state folder, unless it has another."""
_LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_ROOM: Final = 2 * MOST
"""With less than so much left of a deletion budget, nothing is made: it is for things of others."""
_KNOWN: Final = 2_000
"""How many uids are remembered: of more than are made within `LASTS`."""
_PREFIX: Final = "demo-"
_NAMESPACE: Final = "default"
_POLICY: Final = "demo-history"
_KEPT: Final = 3
"""How many records of an experiment stay."""
_EXPERIMENTS: Final = ("nightly-backup", "kill-pods")
_FOLDER: Final = "demo"
_CLAIM: Final = "demo-notes"
_FILES: Final = {"greeting.txt": "hello", "plan.txt": "capture this folder, see it lapse, bring it back"}
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
_MOST_ROWS: Final = 1000
"""So many rows about an object are looked at for that of its undo."""
_HEAD: Final = 200
"""Bytes of a file in which its mark and its word are."""
_STATE: Final = "demo"
_MADE: Final = "demo.made"
_LOOPBACK: Final = "127.0.0.1"
_MS: Final = 1_000_000
_ACTOR: Final = Caller("lapse demo", is_person=False)
_log = get_logger("lapse.app.demo")


class DemoState(msgspec.Struct, frozen=True):
    """Since when the demo runs and until when; or that it was stopped, and whether by a person."""

    started_ns: int
    ends_ns: int
    stopped: bool = False
    by_person: bool = False


class DemoMade(msgspec.Struct):
    """What must be remembered of what was made; written by the process that leads alone."""

    serial: int = 0
    claim: str = ""
    """The uid of the claim, before it is made."""
    captures: list[str] = []
    """The uids of captures of which something may be there, before they are made: what they make has its name from
    these."""
    uids: list[str] = []
    """The uids of everything, the latest last; those of objects and of the workspace before they are made."""
    files: dict[str, str] = {}
    """By address: the word in a file until its uid is noted, as it is not known before, and then the uid."""
    run: str = ""
    """The uid of its experiments, so that its records count towards no limit of others."""
    problems: dict[str, str] = {}
    """By address: what stayed when everything was last to be removed, and why."""

    def know(self, uids: Iterable[str]) -> None:
        """Remember uids, and forget the oldest of too many."""
        known = set(self.uids)
        self.uids = [*self.uids, *(one for one in uids if one not in known)][-_KNOWN:]


class DemoThing(NamedTuple):
    """Something of the demo that is there."""

    domain: str
    address: str
    uid: str
    handle: tuple[Kind[Any], Any] | None = None
    """Kind and object of what no verb has an address for."""


async def _nothing(_names: Collection[str], _labels: Mapping[str, str]) -> None:
    """Let no policy pass: a command does not."""


@dataclass
class Demo:
    """The demo of one place; a `lapse.engine.verbs.demo.DemoControl`."""

    settings: Settings
    place: Place
    objects: EmbeddedStore
    keys: AsyncKeys
    workspaces: WorkspaceStore | None
    """None where they are not served."""
    notes: Notes
    """Those of the folder."""
    pass_over: Callable[[Collection[str], Mapping[str, str]], Awaitable[object]] = _nothing
    """Lets policies pass now, by their names, over what has labels; in a running process."""
    served: bool = True
    """Whether a process runs that makes its things."""
    wake: Callable[[], None] = lambda: None
    """Lets the process look at once."""
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of a pass that makes things and one that removes them, the second waits."""

    # --- what people ask ----------------------------------------------------------------------------------------------

    async def status(self) -> DemoView:
        """See `DemoControl`."""
        return await self._view(await self.state())

    async def start(self) -> DemoView:
        """See `DemoControl`."""
        state = await self.state()
        if state is None or state.stopped:
            now = self._now
            state = DemoState(now, now + (LASTS.nanoseconds or 0))
            await self._write(_STATE, state)
        self.wake()
        return await self._view(state)

    async def resume(self) -> str:
        """Start it as ``lapse up --demo`` does: not where a person has stopped it; return what to do then."""
        state = await self.state()
        if state is not None and self._now >= state.ends_ns:  # its time was over while no process ran
            state = msgspec.structs.replace(state, stopped=True)
            await self._write(_STATE, state)
        if state is not None and state.stopped and state.by_person:
            return "lapse demo start starts it again"
        await self.start()
        return "lapse demo stop removes it"

    async def stop(self, caller: Caller) -> DemoView:
        """See `DemoControl`. Ordinary holds on things of the demo are released; a legal hold keeps what it is on."""
        state = await self.state()
        if state is None:
            return await self._view(None)
        state = msgspec.structs.replace(state, stopped=True, by_person=True)
        await self._write(_STATE, state)
        await self.remove(caller)
        self.wake()
        return await self._view(state)

    async def is_on(self) -> bool:
        """Whether it runs, wherever a process makes its things."""
        state = await self.state()
        return state is not None and not state.stopped

    async def state(self) -> DemoState | None:
        """Return what is noted of it; None where there never was one."""
        text = await self.notes.read_note(_STATE)
        return None if text is None else msgspec.json.decode(text, type=DemoState)

    async def _view(self, state: DemoState | None) -> DemoView:
        made = await self._made()
        runs, found = state is not None and not state.stopped, await self._found(made)
        there = frozenset() if runs else {one.address for one in found}
        things: dict[str, list[str]] = {}
        for one in found:
            things.setdefault(one.domain, []).append(one.address)
        return DemoView(
            running=runs,
            served=self.served,
            started_at=None if state is None else Moment(state.started_ns),
            ends_at=Moment(state.ends_ns) if state is not None and runs else None,
            things={domain: sorted(addresses) for domain, addresses in sorted(things.items())},
            keys=len(await self._own_keys()),
            app=APP,
            notes=self._shortcomings() if runs else [],
            problems={address: problem for address, problem in made.problems.items() if address in there},
        )

    def _shortcomings(self) -> list[str]:
        """Say what is missing here, and what is slow because the settings are not those of a demo."""
        told = []
        if self._scratch is None:
            told.append("No scratch files: the example domain is not installed, or has a folder of yours")
        if self.workspaces is None:
            told.append("No workspace: workspaces are not served")
        if self.settings.request_ttl_mode is not TTLMode.ANNOTATION:
            told.append(f"Requests go after {self.settings.request_ttl}: request_ttl_mode is not annotation")
        return told

    # --- what the process does ----------------------------------------------------------------------------------------

    async def look(self, *, is_time: bool) -> float:
        """Do what is to be done now; return the seconds until the next look. For the process that leads."""
        state = await self.state()
        if state is None:
            return _LOOK_SECONDS
        if not state.stopped and not state.started_ns <= self._now < state.ends_ns:  # or it began by a wrong clock
            state = msgspec.structs.replace(state, stopped=True)
            await self._write(_STATE, state)
        if state.stopped:
            return await self._clear(is_asked=state.by_person)
        if is_time:
            async with self._alone:
                await self._make_more()
            await self._let_policy_pass()
        await self._end_files()
        return _LOOK_SECONDS

    async def _end_files(self) -> None:
        """End its files that are over, as their domain decides; holds, freezes, budgets and the clock stop that.

        Their times are set back, so that they look older than the policy of their domain, which is dry about such.
        """
        made = await self._made()
        files = [one async for one in self._others(made) if one.domain == SCRATCH]
        place, gate = self.place, loop_gate(self.place.gate, self.settings.act_by_plan)
        for one in files:
            domain = await place.domain(SCRATCH)
            found = await domain.find(REGISTRY.parse(one.address))
            decision = None if found is None else decided(domain, found, place.now)
            if found is None or decision is None or not isinstance(decision.verdict, Due):
                continue
            action = msgspec.structs.replace(action_of(domain, found, decision), actor=_ACTOR.name)
            target = await domain.deletion_target(found)
            executor = Executor(
                target, place.journal, clock=place.clock, metrics=place.metrics, actor=_ACTOR.name, gate=gate
            )
            await executor.execute([action])  # what came of it is in the journal

    async def _let_policy_pass(self) -> None:
        """Let its own policy pass over its own records: other policies pass when the settings say."""
        try:
            found = await self.objects.get(metadata_only(RETENTION_POLICY), ObjectKey(None, _POLICY))
        except NotFoundError:
            return
        if await self._is_own({*(await self._made()).uids}, found.metadata):
            await self.pass_over({_POLICY}, LABELS)

    async def _clear(self, *, is_asked: bool) -> float:
        """Remove what is left; nothing is looked at any more once nothing is known."""
        if await self._made() == DemoMade():
            return _LOOK_SECONDS
        if not is_asked and self.place.clock.in_doubt():
            return _LOOK_SECONDS
        await self.remove(_ACTOR, is_asked=is_asked)
        made = await self._made()
        if not await self._found(made) and not await self._own_keys() and not await self._in_trash(made):
            await self._write(_MADE, DemoMade())
            return _LOOK_SECONDS
        return _RETRY_SECONDS if is_asked else _LOOK_SECONDS

    async def _make_more(self) -> None:
        made = await self._made()
        made.run = made.run or uuid()
        found = await self._found(made)
        made.know(one.uid for one in found)
        if self._scratch is not None:  # what is gone is forgotten: its inode is used again
            made.files = {one.address: one.uid for one in found if one.domain == SCRATCH}
        alive = len(found) + len(await self._own_keys())
        turns = _FIRST if alive < _FEW else (_TURNS[made.serial % len(_TURNS)],)
        for what in islice(turns, max(0, MOST - alive)):
            made.serial += 1
            if await self._has_room(_DOMAINS[what]):
                try:
                    await self._maker(what)(made)
                except LapseError as error:  # the others come all the same
                    _log.warning("demo_not_made", what=what, problem=str(error))
                await self._write(_MADE, made)
        await self._write(_MADE, made)

    async def _create(self, made: DemoMade, kind: Kind[Any], obj: Any, *, uid: str) -> None:  # noqa: ANN401 - of the kind
        """Make an object under a uid that is noted before; what others have of its name stays what it is."""
        made.know([uid])
        await self._write(_MADE, made)
        with suppress(AlreadyExistsError):
            await self.objects.create(kind, obj, uid=uid)

    async def _has_room(self, domain: str) -> bool:
        """Whether things of a domain may come: what ends them must not be what its budget ends by, or freezes it."""
        place, now = self.place, self._now
        if domain == KEYS.name:
            return True
        gate = await place.freezes.load(now)
        left = place.budgets.room(gate.spent, domain, UnixNs(now)).most
        return gate.freeze_of(domain) is None and (left is None or left >= _ROOM)

    # --- what it makes ------------------------------------------------------------------------------------------------

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

    async def _make_key(self, made: DemoMade) -> None:
        await self.keys.app(APP).insert_if_not_exists(f"{_PREFIX}{made.serial:04}", MARK, _life(made.serial))

    async def _make_policy(self, made: DemoMade) -> None:
        """Make the policy: the newest of each experiment, and the last good one; of records of the demo alone."""
        spec = history_document(namespace=self.settings.history_namespace, keep_last_success=1).spec
        assert isinstance(spec.keep_last, KeepLast)  # noqa: S101 - asked for
        spec = msgspec.structs.replace(
            spec,
            selector=msgspec.structs.replace(spec.selector, labels=LABELS),
            max_age=None,
            max_count=_KEPT,
            dry_run=False,
        )
        body = {"metadata": _metadata(_POLICY), "spec": msgspec.to_builtins(spec)}
        await self._create(made, RETENTION_POLICY, body, uid=uuid())
        # What is made after a policy was first seen is made under it, and waits for no first pass.
        wanted = (HISTORY, REQUESTS.name, KEEPERS.name, WORKSPACES.name)
        for name in [one for one in wanted if one in self.place.names]:
            await (await self.place.domain(name)).look_at_policies(self.place.gate.policies)

    async def _make_success(self, made: DemoMade) -> None:
        """Record the one good run of an experiment whose other runs fail: its policy keeps that."""
        await self._record(made, _EXPERIMENTS[0], ExecutionStatus.SUCCESS)

    async def _make_record(self, made: DemoMade) -> None:
        name = _EXPERIMENTS[made.serial % len(_EXPERIMENTS)]
        fails = name == _EXPERIMENTS[0]
        await self._record(made, name, ExecutionStatus.FAILURE if fails else ExecutionStatus.SUCCESS)

    async def _record(self, made: DemoMade, experiment: str, status: str) -> None:
        end = self._now
        spec = HistorySpec(
            experiment_ref=ExperimentRef(name=experiment, namespace=OWNER, uid=made.run),
            execution=Execution(
                start_time=to_timestamp(end - 60 * SECOND), end_time=to_timestamp(end), status=status, message=MARK
            ),
        )
        given = ObjectMeta(name=f"{_PREFIX}{experiment}-{made.serial:04}", labels=LABELS)
        wanted = record(spec, namespace=self.settings.history_namespace, given=given)
        await self._create(made, CHAOS_EXPERIMENT_HISTORY, wanted, uid=uuid())

    async def _make_capture(self, made: DemoMade) -> None:
        """Capture the demo's own directory; request and snapshot have TTLs of their own."""
        claim = await self._claim(made)
        if claim is None:
            return
        name = f"{_PREFIX}capture-{made.serial:04}"
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
        folder = self.settings.state_dir / _FOLDER
        await asyncio.to_thread(_fill, folder)
        body = {
            "metadata": {**_metadata(_CLAIM), "namespace": _NAMESPACE, "annotations": {DIRECTORY: str(folder)}},
            "spec": {},
        }
        key = ObjectKey(_NAMESPACE, _CLAIM)
        try:
            found = await self.objects.get(PERSISTENT_VOLUME_CLAIM, key)
        except NotFoundError:
            made.claim = uuid()
            await self._create(made, PERSISTENT_VOLUME_CLAIM, body, uid=made.claim)
            found = await self.objects.get(PERSISTENT_VOLUME_CLAIM, key)
        meta = found.metadata
        return meta.uid if meta.labels.get(LABEL) and meta.uid in made.uids else None

    async def _make_workspace(self, made: DemoMade) -> None:
        from lapse.app.workspaces import node_of

        if self.workspaces is None:
            return
        settings = self.settings
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
        await self._write(_MADE, made)
        with suppress(WorkspaceExistsError):
            await self.workspaces.create(new, now=Ms(self._now // _MS), uid=WorkspaceId(uid))

    async def _make_scratch(self, made: DemoMade) -> None:
        """Write a file, and set its time back so far that it is over when it should be, as its domain decides."""
        folder = self._scratch
        if folder is None:
            return
        domain, now = await self.place.domain(SCRATCH), UnixNs(self._now)
        address, word = Address(SCRATCH, None, f"{_PREFIX}{made.serial:04}.txt"), uuid()
        path = folder / address.name
        made.files[str(address)] = word
        await self._write(_MADE, made)
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

    @property
    def _scratch(self) -> Path | None:
        """The folder for files; None where there is no such domain, or it is about a folder of somebody's."""
        is_there = SCRATCH in REGISTRY.installed_names()
        section = self.settings.domains.get(SCRATCH, {})
        is_own = "folder" not in section and section.get("enabled", True)
        return self.settings.state_dir / SCRATCH if is_there and is_own else None

    # --- what there is ------------------------------------------------------------------------------------------------

    async def _found(self, made: DemoMade) -> list[DemoThing]:
        """Return everything of the demo that is there, but for keys; where none was made, nothing is looked at."""
        if made == DemoMade():
            return []
        return [one for part in (self._objects(made), self._kept(made), self._others(made)) async for one in part]

    async def _objects(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield the objects that have the label, and are the demo's: anybody can label anything."""
        kinds: list[tuple[str, Kind[Any]]] = [(REQUESTS.name, kind) for kind in REQUEST_KINDS]
        kinds += [(HISTORY, CHAOS_EXPERIMENT_HISTORY), (RETENTION, RETENTION_POLICY)]
        kinds += [(REQUESTS.name, PERSISTENT_VOLUME_CLAIM)]
        known = {*made.uids}
        for domain, kind in kinds:
            for one in (await self.objects.list(metadata_only(kind), labels=LABELS)).items:
                if not await self._is_own(known, one.metadata):
                    continue
                has_verbs = kind not in {RETENTION_POLICY, PERSISTENT_VOLUME_CLAIM}
                handle = None if has_verbs else (kind, one)
                yield DemoThing(domain, str(kind.address(one.metadata.key)), one.metadata.uid, handle)

    async def _is_own(self, known: Collection[str], meta: ObjectMeta) -> bool:
        """Whether an object has a uid that is known, or had one before it came back from the trash.

        Which one that was is in the journal alone: what an undo leaves on an object is copied with its document.
        """
        uid, asked = meta.uid, set[str]()
        while uid not in known:
            if uid in asked or BROUGHT_BACK not in meta.annotations:
                return False
            asked.add(uid)
            rows = await self.place.journal.entries(domain=AUDIT, uid=uid, outcome=Outcome.DONE, limit=_MOST_ROWS)
            undone = [row.details or {} for row in rows if row.reason == AuditReason.BROUGHT_BACK]
            uid = str(undone[0].get("was")) if undone else uid
        return True

    async def _kept(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield keepers and snapshots of captures, and the volume of the claim: they are named after these."""
        names: list[tuple[Kind[Any], str]]
        names = [(OBJECT_KEEPER, keeper_name(VOLUME_CAPTURE_REQUEST.short, uid)) for uid in made.captures]
        for uid in made.captures:
            names += await self._snapshot(snapshot_name(uid, made.claim))
        names += [(PERSISTENT_VOLUME, f"local-{made.claim}")] if made.claim else []
        for kind, name in dict.fromkeys(names):
            found = await self._kept_object(kind, name)
            if found is not None:
                yield DemoThing(KEEPERS.name, str(kind.address(found.key)), found.uid)

    async def _snapshot(self, name: str) -> list[tuple[Kind[Any], str]]:
        """Return a snapshot and who keeps it: one that came back has another keeper than that of its capture."""
        found = await self._kept_object(VOLUME_SNAPSHOT_CONTENT, name)
        if found is None:
            return []
        owners = [one.name for one in found.owner_references if one.kind == OBJECT_KEEPER.kind]
        keepers = [await self._kept_object(OBJECT_KEEPER, one) for one in owners]
        if any(one is not None and is_trash(one) for one in keepers):
            return []
        return [*((OBJECT_KEEPER, one.name) for one in keepers if one is not None), (VOLUME_SNAPSHOT_CONTENT, name)]

    async def _kept_object(self, kind: Kind[Any], name: str) -> ObjectMeta | None:
        try:
            return (await self.objects.get(metadata_only(kind), ObjectKey(None, name))).metadata
        except NotFoundError:
            return None

    async def _others(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield the workspace and the files."""
        row = await self._own_workspace(made)
        if row is not None:
            yield DemoThing(WORKSPACES.name, f"workspace/{row.name}", row.id)
        folder = self._scratch
        marked = {} if folder is None else await asyncio.to_thread(_marked, folder)
        for name, word in marked.items():
            domain, address = await self.place.domain(SCRATCH), Address(SCRATCH, None, name)
            found = await domain.find(address) if str(address) in made.files else None
            if found is not None and made.files[str(address)] in {found.uid, word}:
                yield DemoThing(SCRATCH, str(address), found.uid)

    async def _own_workspace(self, made: DemoMade) -> Workspace | None:
        """Return the workspace, unless that of its name is somebody else's."""
        if self.workspaces is None:
            return None
        try:
            found = await self.workspaces.by_name(WORKSPACE)
        except UnknownWorkspaceError:
            return None
        return found if found.id in made.uids else None

    async def _own_keys(self) -> list[str]:
        """Return the names of its keys: another application may have taken this id, too."""
        return [one.key for one in await self.keys.app(APP).scan(_PREFIX, limit=1000) if one.value == MARK]

    async def _in_trash(self, made: DemoMade) -> bool:
        if self.place.open_trash is None:
            return False
        known = {*made.uids}
        page = await (await self.place.open_trash()).page(limit=100_000)
        return any(one.uid in known and not one.held for one in page.items)

    # --- what it removes ----------------------------------------------------------------------------------------------

    async def remove(self, caller: Caller, *, is_asked: bool = True) -> None:
        """Remove everything that is there, and what of it is in the trash; note what stays, and why.

        Where no person has asked for it, what is held stays, and what is of a domain that is frozen.
        """
        async with self._alone:
            made = await self._made()
            problems: dict[str, str] = {}
            for _ in range(2):  # a keeper that is released now was not there before its request had gone
                found = await self._found(made)
                await self._know(made, found)
                problems = await self._remove_all(found, caller, is_asked=is_asked)
            left = {one.address for one in await self._found(made)}
            latest = await self._made()
            latest.problems = {address: problem for address, problem in problems.items() if address in left}
            await self._write(_MADE, latest)
            for name in await self._own_keys():
                await self.keys.app(APP).compare_and_delete(name, MARK)
            if self.place.open_trash is not None:
                trash = await self.place.open_trash()
                await trash.empty(by=caller.name, uids=frozenset(made.uids))
                await self._remove_all([one async for one in self._empty_trash(made)], caller, is_asked=is_asked)
            if not left:
                await asyncio.to_thread(_empty, self.settings.state_dir / _FOLDER)

    async def _know(self, made: DemoMade, found: Iterable[DemoThing]) -> None:
        """Note what was found before it is ended: afterwards, what is in the trash is known by that alone."""
        made.know(one.uid for one in found)
        latest = await self._made()  # the process that leads may have made something meanwhile
        latest.know(made.uids)
        await self._write(_MADE, latest)

    async def _empty_trash(self, made: DemoMade) -> AsyncIterator[DemoThing]:
        """Yield the keepers of the trash in which nothing but things of the demo was, and nothing is any more.

        Such a keeper would stay until its own time is over after the last of its things was brought back, or was
        garbage before it got there.
        """
        known = {*made.uids}
        for one in (await self.objects.list(metadata_only(OBJECT_KEEPER), labels={TRASH: IN_TRASH})).items:
            contents = contents_of(one.metadata)
            if contents is None or not contents.items or not known.issuperset(item.uid for item in contents.items):
                continue
            if not await self._keeps_any(one.metadata, contents):
                address = str(OBJECT_KEEPER.address(one.metadata.key))
                yield DemoThing(KEEPERS.name, address, one.metadata.uid, (OBJECT_KEEPER, one))

    async def _keeps_any(self, keeper: ObjectMeta, contents: TrashContents) -> bool:
        """Whether a keeper of the trash has anything in it."""
        if contents.way is TrashWay.PACKED:
            return len({*state_of(keeper).out}) < len(contents.items)
        pages = [await self.objects.list(metadata_only(kind)) for kind in ARTIFACT_KINDS]
        return any(
            owner.uid == keeper.uid for page in pages for one in page.items for owner in one.metadata.owner_references
        )

    async def _remove_all(self, found: Sequence[DemoThing], caller: Caller, *, is_asked: bool) -> dict[str, str]:
        """End things, where a person asks for it held ones after their release; one that stays keeps no other."""
        problems: dict[str, str] = {}
        gate = await self.place.freezes.load(self._now)
        for step in (self._release, self._end) if is_asked else (self._end,):
            for one in found:
                if not is_asked and gate.freeze_of(one.domain) is not None:
                    problems[one.address] = f"{one.domain} is frozen"
                    continue
                try:
                    await step(one, caller)
                except LapseError as error:
                    problems[one.address] = str(error)
        return problems

    async def _release(self, thing: DemoThing, caller: Caller) -> None:
        if thing.handle is not None:
            return
        address = REGISTRY.parse(thing.address)
        found = await (await self.place.domain(thing.domain)).find(address)
        if found is not None and found.uid == thing.uid and found.hold is not None:
            await LocalService(self.place, caller).release(ReleaseRequest(address=thing.address, uid=thing.uid))

    async def _end(self, thing: DemoThing, caller: Caller) -> None:
        """End one by the engine's own deletion, under the uid that it was found with."""
        place, target = self.place, cast("Target", ObjectTarget(self.objects, self.objects))
        if thing.handle is not None:
            found: Candidate[Any] | None = _candidate(*thing.handle)
        else:
            domain = await place.domain(thing.domain)
            found = await domain.find(REGISTRY.parse(thing.address))
            target = target if found is None else await domain.deletion_target(found)
        if found is None or found.uid != thing.uid:
            return
        action = deletion_by_person(
            domain=thing.domain,
            address=found.address,
            uid=found.uid,
            version=found.version,
            handle=found.handle,
            hold=found.hold,
            actor=caller.name,
            now=self._now,
        )
        await delete_by_person(target, place.journal, action, clock=place.clock, metrics=place.metrics)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        return self.place.clock.wall_ns()

    async def _made(self) -> DemoMade:
        text = await self.notes.read_note(_MADE)
        return DemoMade() if text is None else msgspec.json.decode(text, type=DemoMade)

    async def _write(self, name: str, note: DemoState | DemoMade) -> None:
        await self.notes.write_note(name, msgspec.json.encode(note).decode())


class DemoLoop:
    """A `lapse.engine.running.coordinator.Loop` that lets the demo go on, where this process leads."""

    name: Final = "demo"
    interval: Final = _LOOK_SECONDS
    leader_only: Final = True
    of_engine: Final = True

    def __init__(self, clock: Clock, *, domain: str) -> None:
        """Do nothing until there is a demo (`attach`); failures are those of ``domain``."""
        self._clock, self.domain = clock, domain
        self._demo: Demo | None = None
        self._turn: Turn | None = None
        self._next_ns = 0

    def attach(self, demo: Demo) -> None:
        """Let this demo go on."""
        self._demo = demo
        demo.wake = self._wake

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`."""
        self._turn = turn

    def _wake(self) -> None:
        self._next_ns = 0
        if self._turn is not None:
            self._turn.wake()

    async def tick(self) -> float | None:
        """Look at it once."""
        if self._demo is None:
            return None
        now = self._clock.monotonic_ns()
        is_time = now >= self._next_ns
        if is_time:
            self._next_ns = now + round(EVERY_SECONDS * SECOND)
        return await self._demo.look(is_time=is_time)


# --- settings ---------------------------------------------------------------------------------------------------------

_QUICK: Final = {
    "ttl_manager_interval": "5s",
    "request_ttl_mode": TTLMode.ANNOTATION.value,
}
_QUICK_SCRATCH: Final = "5s"


async def demo_settings(loaded: LoadedSettings, clock: Clock) -> tuple[LoadedSettings, list[str]]:
    """Return the settings of ``lapse up --demo``, and which of them are its own: only what nobody has set.

    They say how often is looked, and that the TTL on a request counts. That would shorten the time of a request whose
    annotation says less than request_ttl, so it is left as it is where there is such a request of somebody else's.
    """
    quick = dict(_QUICK)
    if await _is_shortened(loaded.settings, clock):
        del quick["request_ttl_mode"]
    quick = {key: value for key, value in quick.items() if loaded.origins[key].layer == "default"}
    values: dict[str, Any] = {key: SETTINGS[key].read(value) for key, value in quick.items()}
    own, told = loaded.settings.domains.get(SCRATCH, {}), [f"{key}={value}" for key, value in quick.items()]
    if SCRATCH in REGISTRY.installed_names() and "interval" not in own:
        values["domains"] = {**loaded.settings.domains, SCRATCH: {**own, "interval": _QUICK_SCRATCH}}
        told.append(f"domains.{SCRATCH}.interval={_QUICK_SCRATCH}")
    origins = {**loaded.origins, **dict.fromkeys(quick, Origin("flag", "--demo"))}
    return replace(loaded, settings=replace(loaded.settings, **values), origins=origins), told


async def _is_shortened(settings: Settings, clock: Clock) -> bool:
    """Whether a request of somebody else's would go earlier if its annotation counted."""
    from lapse.app.record import FILE_NAME, open_store

    if not (settings.state_dir / FILE_NAME).exists():
        return False
    store = open_store(settings.state_dir, clock=clock)
    try:
        for kind in REQUEST_KINDS:
            for one in (await store.list(metadata_only(kind))).items:
                text = one.metadata.annotations.get(TTL)
                if text is not None and not one.metadata.labels.get(LABEL) and _is_shorter(text, settings.request_ttl):
                    return True
    finally:
        await store.close()
    return False


def _is_shorter(text: str, ttl: Duration) -> bool:
    try:
        return ttl_of(text) < ttl
    except InvalidTTLAnnotationError:  # then it stays for ever
        return False


# --- files, names, ports ----------------------------------------------------------------------------------------------


def _metadata(name: str) -> Json:
    return {"name": name, "labels": dict(LABELS)}


def _candidate(kind: Kind[Any], obj: Any) -> Candidate[Any]:  # noqa: ANN401 - an object of the kind
    """Return an object of a kind that no verb has an address for, as the engine ends it."""
    meta = obj.metadata
    return Candidate(
        address=kind.address(meta.key),
        uid=meta.uid,
        version=meta.resource_version,
        state=None,
        handle=ObjectHandle.of(kind, obj),
        hold=hold_of(meta.annotations),
    )


def _life(serial: int) -> int:
    return _LIVES[serial // 2 % len(_LIVES)]


def _fill(folder: Path) -> None:
    """Write the files of the directory that is captured."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in _FILES.items():
        _write_new(folder / name, None, text)


def _empty(folder: Path) -> None:
    """Remove the directory, unless there is something else in it than what was written."""
    for name, text in _FILES.items():
        with suppress(OSError):
            if (folder / name).read_text() == _written(text):
                (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()


def _written(text: str) -> str:
    return f"{MARK}\n{text}\n"


def _write_new(path: Path, now: int | None, text: str = "") -> bool:
    """Write a file with the mark, as of a time, unless there is one of its name; return whether there was none."""
    try:
        with path.open("x") as file:
            file.write(_written(text))
    except FileExistsError:
        return False
    if now is not None:
        os.utime(path, ns=(now, now))
    return True


def _marked(folder: Path) -> dict[str, str]:
    """Return the names of files that have the mark, and the word after it; what cannot be read is not ours."""
    found = {}
    for path in sorted(folder.glob(f"{_PREFIX}*.txt")):
        with suppress(OSError):
            if not stat.S_ISREG(path.lstat().st_mode):  # to open a pipe would wait for a writer
                continue
            with path.open("rb") as file:
                mark, _, rest = file.read(_HEAD).decode(errors="replace").partition("\n")
            if mark == MARK:
                found[path.name] = rest.partition("\n")[0]
    return found


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
