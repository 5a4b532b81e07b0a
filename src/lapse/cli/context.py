"""Command context: what one command works on, the state folder of this machine or a Kubernetes cluster.

Stores are opened when a command first asks for them, and closed when it ends, last opened first. Nothing has to run:
the process that runs `lapse up` or `lapse operator` shares what is opened here, and carries out what a command asks
for. Commands are the same for both places; what only one of them has says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from lapse.cli.flags import Flags

if TYPE_CHECKING:
    from lapse.app.demo.control import Demo
    from lapse.app.record import ProcessRecord
    from lapse.app.service import SharedObjects
    from lapse.client import AsyncClient
    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.db.postgres.pool import Postgres
    from lapse.engine.journal.port import Journal
    from lapse.engine.plans.approvals import Approvals, ApprovalSource
    from lapse.engine.plans.proposed import ProposedPlans
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyApprovals, PolicyGuard
    from lapse.engine.safety.clock_guard import ClockGuard, GuardedGate
    from lapse.engine.safety.freeze import GateStore, Notes
    from lapse.engine.safety.holds import HoldStore
    from lapse.engine.service import LocalService
    from lapse.engine.trash import Trash, TrashBin
    from lapse.engine.verbs.contract import Verbs
    from lapse.engine.verbs.place import Caller, Opening, Place
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.policy.policies import LoadedPolicies
    from lapse.kube.api.client import KubeClient
    from lapse.kube.resources import Json, Kind
    from lapse.objects.config_map_gate import ConfigMapGateStore
    from lapse.objects.embedded import EmbeddedStore
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.requests.lifecycle.policy import TTLRule
    from lapse.requests.view import ObjectView
    from lapse.settings import LoadedSettings, Settings
    from lapse.web.auth.state import StateDatabase
    from lapse.web.auth.tokens import TokenStore
    from lapse.workspaces.activity.port import Activity, Signal
    from lapse.workspaces.managed import ManagedWorkspaces
    from lapse.workspaces.model import Ms, WorkspaceId
    from lapse.workspaces.store.port import WorkspaceStore

T = TypeVar("T")
Work = Callable[["Context"], Coroutine[Any, Any, T]]
InCluster = Annotated[
    bool,
    Parameter(
        help="On the cluster that kubectl would use, instead of the state folder.", negative=(), show_default=False
    ),
]
_MS: Final = 1_000_000


class Context:
    """The state folder of this machine, for one command."""

    is_cluster = False
    is_remote = False

    def __init__(self, loaded: LoadedSettings, stack: AsyncExitStack, *, machine: Clock | None = None) -> None:
        """Open nothing yet; ``stack`` closes what is opened."""
        from lapse.core.believed_clock import BelievedClock
        from lapse.core.clock import SystemClock

        self.loaded = loaded
        self.machine: Clock = machine or SystemClock()
        """The machine's own clock, which the times of workspaces are by."""
        self._believed = BelievedClock(self.machine)
        self._stack = stack
        self._server: Postgres | None = None
        self._record: ProcessRecord | None = None
        self._guard: ClockGuard | None = None
        self._workspaces: WorkspaceStore | None = None
        self._caller: Caller | None = None
        self._dependants: Dependants | None = None

    @property
    def settings(self) -> Settings:
        """What file, environment and flags say."""
        return self.loaded.settings

    @property
    def clock(self) -> BelievedClock:
        """What domains other than workspaces decide by: it goes on from what was last believed in the folder.

        Where a database has the record, from what was believed there, as soon as the record is open.
        """
        _ = self.embedded  # opening it recalls that
        return self._believed

    @property
    def name(self) -> str:
        """The place, for messages."""
        return str(self.settings.state_dir)

    @property
    def where_frozen(self) -> str:
        """Where `freezes` are, for messages."""
        from lapse.settings import show_value

        return show_value(self.settings.database_url or self.name)

    # --- access -------------------------------------------------------------------------------------------------------

    @cached_property
    def state(self) -> StateDatabase:
        """Tokens and key material of the state folder."""
        from lapse.web.auth.state import StateDatabase

        return self._stack.enter_context(StateDatabase(self.settings.state_dir))

    @cached_property
    def tokens(self) -> TokenStore:
        """The tokens of the HTTP API."""
        from lapse.web.auth.tokens import TokenStore

        return TokenStore(self.state, clock=self.machine)

    def owner(self) -> tuple[str, str]:
        """Return id and text of the owner's token, which is made if need be."""
        from lapse.web.auth.tokens import owner_of

        return owner_of(self.settings.state_dir, self.state, self.tokens)

    # --- objects ------------------------------------------------------------------------------------------------------

    @cached_property
    def embedded(self) -> EmbeddedStore:
        """The object store of the state folder, which cannot be had on a cluster. Raises `StateFolderError`."""
        from lapse.app.process import DECIDING
        from lapse.app.record import open_store
        from lapse.engine.safety.sqlite import note_in
        from lapse.files.ownership import StateFolderError

        folder = self.settings.state_dir
        try:
            store = open_store(folder, clock=self._believed)
        except OSError as error:
            raise StateFolderError(path=folder, problem=error.strerror or str(error)) from error
        self._stack.push_async_callback(store.close)
        self._decide_by(note_in(store.database, DECIDING))
        return store

    def _decide_by(self, note: str | None) -> None:
        """Take over what decides at this place, and say which settings of one's own differ from it."""
        from lapse.app.process import decided_by
        from lapse.cli.output import message
        from lapse.settings import DECIDING, show_value

        asked, self.loaded = self.loaded, decided_by(note, self.loaded, place=self.name)
        for key in DECIDING:
            given, decides = (show_value(getattr(one.settings, key)) for one in (asked, self.loaded))
            if given != decides and asked.origins[key].layer != "default":
                told = f"{key} {given} does not decide in {self.name}: the process that runs there has {decides}"
                message(f"warning: {asked.origins[key]}: {told}", style="yellow")

    @property
    def store(self) -> ObjectStore:
        """Objects, wherever they are."""
        return self.embedded

    # --- the record ---------------------------------------------------------------------------------------------------

    async def journal(self) -> Journal:
        """Return the journal of what is ended there."""
        return (await self._opened_record()).journal

    async def freezes(self) -> GateStore:
        """Return where it is written what is frozen."""
        return (await self._opened_record()).safety

    async def holds(self) -> HoldStore:
        """Return the holds and extensions that the engine keeps."""
        return (await self._opened_record()).holds

    async def guard(self) -> ClockGuard:
        """Return the clock guard of that place; `clock` goes on from what the record believes."""
        if self._guard is None:
            self._guard = await (await self._opened_record()).guard(self._believed)
        return self._guard

    async def _opened_record(self) -> ProcessRecord:
        """Open the record that the settings name, once; many commands need none, and so no server of theirs."""
        from lapse.app.process import deletion_budgets
        from lapse.app.record import FILE_NAME, ProcessRecord

        if self._record is None:
            settings, server = self.settings, await self._opened_server()
            if server is not None and not (settings.state_dir / FILE_NAME).exists():  # then there is no folder
                self._record = ProcessRecord.on_server(server, budgets=deletion_budgets(settings))
            else:
                self._record = await ProcessRecord.open(settings, self.embedded, server)
            await self.guard()  # before anything is dated
        return self._record

    async def _opened_server(self) -> Postgres | None:
        """Connect to the database that the settings name, once: workspaces and the record share it."""
        from lapse.app.record import open_server

        if self._server is None:
            self._server = await open_server(self.settings, self._stack)
        return self._server

    async def gate(self, metrics: Metrics, *, actor: str) -> GuardedGate:
        """Return what stops a command that ends things: freezes, budgets and the clock, as for a process that stays."""
        from lapse.app.process import deletion_budgets
        from lapse.domains import REGISTRY
        from lapse.engine.safety.clock_guard import GuardedGate
        from lapse.engine.safety.gate import SafetyGate
        from lapse.objects.config_map_gate import RUN

        gate = SafetyGate(
            await self.freezes(),
            budgets=deletion_budgets(self.settings),
            domains=REGISTRY.freezable(cluster=self.is_cluster),
            clock=self.clock,
            metrics=metrics,
            actor=actor,
            run=RUN if self.is_cluster else "lapse resume",
        )
        self._stack.push_async_callback(gate.close)
        return GuardedGate(gate, await self.guard(), await self._policy_guard(metrics, actor=actor))

    async def _policy_guard(self, metrics: Metrics, *, actor: str) -> PolicyGuard:
        record = await self._opened_record()
        return record.policy_guard(self.settings, self.embedded, clock=self.clock, metrics=metrics, actor=actor)

    async def approvals(self) -> PolicyApprovals:
        """Return what keeps policies of that place from acting, such as the lack of a yes."""
        return (await self._opened_record()).approvals(self.settings, self.embedded, clock=self.clock)

    # --- the verbs of people ------------------------------------------------------------------------------------------

    async def service(self) -> LocalService:
        """Return the verbs of people on this place, on behalf of the person at the command line."""
        from lapse.engine.service import LocalService

        return LocalService(await self.place(), await self.caller())

    async def caller(self) -> Caller:
        """Return the person at the command line: users of a machine are told apart by their names."""
        from lapse.engine.verbs.place import Caller

        return Caller.user()

    @property
    def policy_documents(self) -> Sequence[Json]:
        """The retention policies of the settings; those of a cluster are made by kubectl."""
        return () if self.is_cluster else self.settings.retention_policies

    async def policies(self, *, instead: Sequence[RetentionPolicy] = ()) -> LoadedPolicies:
        """Return the retention policies that are in force, as a pass takes them; ``instead`` as if it were stored."""
        from lapse.app.process import history_policy_document
        from lapse.history.policy.policies import PolicyOverlay, SettingsPolicies

        store = self.store  # open before the settings are asked: what decides there is noted in it
        own = SettingsPolicies(history_policy_document(self.settings), self.policy_documents)
        return await own.load(PolicyOverlay(store, instead) if instead else store)

    async def place(self) -> Place:
        """Return what the verbs work on; stores that a verb does not need stay closed."""
        from lapse import __version__
        from lapse.app import service
        from lapse.app.process import deletion_budgets, retention
        from lapse.domains import REGISTRY
        from lapse.engine.plans.approvals import Approvals, ByPlan
        from lapse.engine.running.metrics import Metrics
        from lapse.engine.verbs.place import Place

        store, metrics = self.store, Metrics(__version__)
        settings = self.settings  # after the store is open: what decides there is noted in it
        journal, freezes = await self.journal(), await self.freezes()
        actor = (await self.caller()).name
        gate = await self.gate(metrics, actor=actor)
        shared = await self._shared_objects()
        policies = retention(
            self.loaded,
            store,
            documents=self.policy_documents,
            journal=journal,
            metrics=metrics,
            holds=shared["holds"],
            gate=gate,
            clock=self.clock,
            left_alone=[settings.lease_namespace] if self.is_cluster else [],
            trash=shared["trash"],
            actor=actor,
        )
        approvals = Approvals(await self.notes(), *self._approval_sources())
        requests = service.RequestsOfCommand(objects=shared, settings=settings, stack=self._stack)
        return Place(
            name=self.name,
            id=await self.record_name(),
            clock=self.clock,
            registry=REGISTRY,
            domains={**requests.domains(), **service.record_domains(policies, shared)},
            opened=self._opened_domains(),
            journal=journal,
            gate=gate,
            freezes=freezes,
            metrics=metrics,
            is_cluster=self.is_cluster,
            secret=self._plan_secret(),
            extend_max=settings.extend_max,
            plan_ttl=settings.plan_ttl,
            budgets=deletion_budgets(settings),
            open_trash=partial(self._open_trash, shared["holds"]),
            version=__version__,
            approvals=approvals,
            plans=await self._plans(approvals),
            by_plan=ByPlan(settings.act_by_plan),
            dry=settings.dry_run_domains,
            policies=await self.approvals(),
            frozen_in=self.where_frozen,
            persons=self._persons,
        )

    async def demo(self) -> Demo:
        """Return the demo of the state folder."""
        from lapse.app.demo.control import Demo
        from lapse.app.demo.note import DemoContext
        from lapse.app.record import ProcessRecord
        from lapse.cli.remote import server_of
        from lapse.keys.aio import open_keys_async

        place = await self.place()
        opened = open_keys_async(self.settings.keys_url, clock=self.machine, sweep=False)
        context = DemoContext(
            settings=self.settings,
            place=place,
            objects=self.embedded,
            keys=await self._stack.enter_async_context(opened),
            workspaces=await self.workspaces(),
            notes=ProcessRecord.in_folder(self.embedded).safety,
        )
        return Demo(context, served=server_of(self.settings.state_dir) is not None)

    async def _shared_objects(self) -> SharedObjects:
        """Return what the domains whose things are objects are built with."""
        from lapse.app.service import steering_of
        from lapse.app.trash import listed_trash

        store, dependants = self.store, await self.dependants()
        return {
            "store": store,
            "holds": await self.object_holds(),
            "steering": steering_of(store, dependants, self.clock),
            "clock": self.clock,
            "trash": listed_trash(self.settings, store, dependants=dependants, clock=self.clock),
        }

    def _persons(self, scope: str, domain: str | None) -> AbstractSet[str] | None:
        """Return who may do here what a scope allows: the user of the folder, and those who have tokens for it."""
        from lapse.app.service import persons_of

        return persons_of(self.tokens, self.settings, scope, domain)

    async def _open_trash(self, holds: HoldLookup) -> TrashBin:
        from lapse.app.trash import trashed_objects
        from lapse.engine.trash import TrashBin

        journal, dependants = await self.journal(), await self.dependants()
        objects = trashed_objects(self.store, holds=holds, dependants=dependants, journal=journal, clock=self.clock)
        return TrashBin(objects, *await self._workspace_trash(journal))

    async def _workspace_trash(self, journal: Journal) -> list[Trash]:
        from lapse.app.trash import trashed_workspaces

        return [trashed_workspaces(self.settings, await self.workspaces(), journal=journal, clock=self.machine)]

    def _opened_domains(self) -> dict[str, Opening]:
        from lapse.app.service import own_openings, workspace_domain
        from lapse.keys.aio import open_keys_async
        from lapse.keys.managed import ManagedKeys
        from lapse.keys.registration import KEYS
        from lapse.workspaces.registration import WORKSPACES

        async def workspaces() -> ManagedWorkspaces:
            store, activity = await self.workspaces(), self._activity()
            return workspace_domain(store, activity, clock=self.machine, settings=self.settings)

        async def keys() -> ManagedKeys:
            opened = open_keys_async(self.settings.keys_url, clock=self.machine, sweep=False)
            return ManagedKeys(await self._stack.enter_async_context(opened))

        own = own_openings(self.settings, self.holds, self.clock)
        return {KEYS.name: keys, WORKSPACES.name: workspaces, **own}

    def _activity(self) -> Activity | None:
        """Return the store in which connections are counted; None where the process that serves them counts."""
        from lapse.workspaces.opening import open_activity

        settings = self.settings
        if not settings.activity_url:
            return None
        found = open_activity(settings.activity_url, clock=self.machine, lease_seconds=settings.proxy_lease.seconds)
        self._stack.push_async_callback(found.close)
        return found

    def _approval_sources(self) -> list[ApprovalSource]:
        return []

    async def _plans(self, approvals: Approvals) -> ProposedPlans | None:
        """Return the plans that are kept at that place; None where it keeps none."""
        from lapse.engine.plans.proposed import ProposedPlans

        return ProposedPlans((await self._opened_record()).plans, approvals)

    def _plan_secret(self) -> bytes | None:
        return self.state.secret("plan")

    async def record_name(self) -> str:
        """Return the name of the record: a plan is about one place."""
        return await (await self._opened_record()).safety.name()

    async def dependants(self) -> Dependants:
        """Return what knows what is owned by what: the store if it can, else lists of what an operator watches.

        A command lists each kind once for all that it does. Snapshots count where the cluster knows them.
        """
        from lapse.app.cluster import hold_kinds
        from lapse.objects.holds.cluster import Dependants, ListedDependants
        from lapse.requests.api.upstream import VOLUME_SNAPSHOT
        from lapse.requests.controllers.caches import watched_kinds

        if self._dependants is None:
            store = self.store
            if isinstance(store, Dependants):
                self._dependants = store
            else:
                kinds = watched_kinds(await hold_kinds(store, self.settings), also=(VOLUME_SNAPSHOT,))
                self._dependants = ListedDependants(store, kinds, clock=self.machine)
        return self._dependants

    async def object_holds(self) -> HoldLookup:
        """Return what finds the holds of objects, also those of what goes with them."""
        from lapse.objects.holds.cluster import listed_holds

        return listed_holds(self.store, await self.dependants())

    async def notes(self) -> Notes:
        """Return the short texts that stand beside what is frozen."""
        return (await self._opened_record()).safety

    # --- requests -----------------------------------------------------------------------------------------------------

    @property
    def request_ttl(self) -> TTLRule:
        """How long finished requests stay."""
        from lapse.requests.lifecycle.policy import TTLRule

        return TTLRule(self.settings.request_ttl)

    def object_view(self, kind: Kind[Any], obj: Any) -> ObjectView:  # noqa: ANN401 - an object of ``kind``
        """Return the view of a request, keeper, artifact or claim as it is now."""
        from lapse.requests.view import view_of

        return view_of(kind, obj, now=self.clock.wall_ns(), rule=self.request_ttl)

    # --- workspaces ---------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Ms:
        """The time, as workspaces have it."""
        from lapse.workspaces.model import Ms

        return Ms(self.machine.wall_ns() // _MS)

    async def workspaces(self) -> WorkspaceStore:
        """Return the workspace store: that of the state folder, or a database that several machines share."""
        from lapse.app.record import open_workspace_store
        from lapse.db.errors import DatabaseError
        from lapse.workspaces.store.sql import translate

        if self._workspaces is None:
            try:
                server = await self._opened_server()
            except DatabaseError as error:
                raise translate(error) from error.__cause__
            self._workspaces = await open_workspace_store(self.settings, server)
            self._stack.push_async_callback(self._workspaces.close)
        return self._workspaces

    async def signals(self, ids: Sequence[WorkspaceId]) -> Mapping[WorkspaceId, Signal]:
        """Return who is connected to which workspace; nothing where that is known to lapse up alone."""
        from lapse.workspaces.activity.port import ActivityDoubt, ActivityUnavailableError, ActivityUnknown
        from lapse.workspaces.opening import open_activity

        settings = self.settings
        if not settings.activity_url or not ids:
            return {}
        store = open_activity(settings.activity_url, clock=self.machine, lease_seconds=settings.proxy_lease.seconds)
        try:
            return await store.read(ids)
        except ActivityUnavailableError:
            return dict.fromkeys(ids, ActivityUnknown(ActivityDoubt.UNREACHABLE))
        finally:
            await store.close()


class ClusterContext(Context):
    """A Kubernetes cluster, for one command; the journal is the log, and what is frozen stands in a ConfigMap."""

    is_cluster = True

    @property
    def clock(self) -> BelievedClock:
        """What domains decide by; the guard brings in the time of the API server."""
        return self._believed

    @property
    def name(self) -> str:
        """The place, for messages."""
        return self._client.config.cluster.place

    @property
    def where_frozen(self) -> str:
        """Where `freezes` are, for messages."""
        from lapse.app.cluster import gate_key

        return f"the ConfigMap {gate_key(self.settings)} of {self.name}"

    @property
    def store(self) -> ObjectStore:
        """Objects of the cluster."""
        return self._kubernetes

    async def journal(self) -> Journal:
        """Return the log."""
        return self._log

    async def freezes(self) -> GateStore:
        """Return where it is written what is frozen."""
        return self._gate_store

    async def notes(self) -> Notes:
        """Return the short texts that stand beside what is frozen."""
        return self._gate_store

    async def caller(self) -> Caller:
        """Return the user that the API server knows; without a name where it does not tell."""
        from lapse.engine.verbs.place import Caller
        from lapse.kube.errors import ObjectError
        from lapse.kube.resources import Document, Kind

        reviews = Kind(
            "authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews", Document, namespaced=False
        )
        if self._caller is None:
            name = None
            with suppress(ObjectError):
                found = await self._client.create(reviews, {"metadata": {}})
                name = (found.body.get("status") or {}).get("userInfo", {}).get("username")
            self._caller = Caller(str(name)) if name else Caller(Caller.user().name, is_person=False)
        return self._caller

    def _opened_domains(self) -> dict[str, Opening]:
        return {}

    async def _workspace_trash(self, journal: Journal) -> list[Trash]:
        return []

    def _persons(self, scope: str, domain: str | None) -> AbstractSet[str] | None:
        return None  # who has which rights is the cluster's to know

    def _approval_sources(self) -> list[ApprovalSource]:
        from lapse.app.cluster import is_allowed
        from lapse.objects.approvals import ConfigMapApprovals

        may = partial(is_allowed, self._client)
        return [ConfigMapApprovals(self.store, self.settings.lease_namespace, may=may)]

    async def _plans(self, approvals: Approvals) -> ProposedPlans | None:
        return None  # a ConfigMap has no room for documents

    def _plan_secret(self) -> bytes | None:
        return None  # every secret of a cluster is somebody's to read

    async def record_name(self) -> str:
        """Return the uid of the system's namespace, which names a cluster; its address, where that cannot be read."""
        from lapse.kube.errors import ObjectError
        from lapse.kube.resources import Document, Kind, ObjectKey

        namespaces = Kind("v1", "Namespace", "namespaces", Document, namespaced=False)
        try:
            return (await self._kubernetes.get(namespaces, ObjectKey(None, "kube-system"))).metadata.uid
        except ObjectError:
            return self.name

    async def guard(self) -> ClockGuard:
        """Return the clock guard of that place, which asks the API server for the time."""
        from lapse.app.cluster import guard_on

        if self._guard is None:
            self._guard = guard_on(self._client, self._gate_store, clock=self.clock)
        return self._guard

    async def _policy_guard(self, metrics: Metrics, *, actor: str) -> PolicyGuard:
        from lapse.app.cluster import policy_guard_on

        return policy_guard_on(
            self._gate_store, self.settings, journal=self._log, clock=self.clock, metrics=metrics, actor=actor
        )

    async def approvals(self) -> PolicyApprovals:
        """Return what keeps policies of the cluster from acting, such as the lack of a yes."""
        from lapse.app.process import dry_seconds
        from lapse.engine.safety.blast_radius import PolicyApprovals

        seconds = dry_seconds(self.settings)
        return PolicyApprovals([self._gate_store], journal=self._log, clock=self.clock, interval_seconds=seconds)

    @cached_property
    def _log(self) -> Journal:
        from lapse.engine.journal.log import LogJournal

        return LogJournal()

    @cached_property
    def _gate_store(self) -> ConfigMapGateStore:
        from lapse.app.cluster import gate_store_on

        return gate_store_on(self.store, self.settings, clock=self.clock, journal=self._log)

    @property
    def _client(self) -> KubeClient:
        return self._kubernetes.client

    @cached_property
    def _kubernetes(self) -> KubernetesStore:
        from lapse.app.cluster import open_client
        from lapse.domains import object_kinds
        from lapse.objects.config_map_gate import CONFIG_MAP
        from lapse.objects.kubernetes import KubernetesStore

        client = open_client(self.settings, clock=self.machine)
        store = KubernetesStore(client, kinds=[*object_kinds(), CONFIG_MAP])
        self._stack.push_async_callback(store.close)
        return store

    async def _read_deciding(self) -> None:
        """Decide by the settings of the operator; by one's own where none was there, or one may not read them."""
        from lapse.app.process import DECIDING
        from lapse.kube.errors import ForbiddenError

        with suppress(ForbiddenError):  # who may not read what is frozen ends nothing either
            self._decide_by(await self._gate_store.find_note(DECIDING))

    async def carry_out(self, work: Work[T], *, rights: str) -> T:
        """Do some work, with errors that say what is missing; ``rights`` are those that it needs."""
        from lapse.app.cluster import DefinitionsMissingError, in_plain_words
        from lapse.domains import object_kinds
        from lapse.kube.errors import UnknownKindError

        with in_plain_words(self._client, rights=rights):
            await self._read_deciding()
            try:
                return await work(self)
            except UnknownKindError as error:
                kind, version = error.details["kind"], error.details["api_version"]
                if (version, kind) not in {(one.api_version, one.kind) for one in object_kinds()}:
                    raise
                raise DefinitionsMissingError(place=self.name, kinds=f"{kind} ({version})") from error


def in_context(
    flags: Flags,
    work: Work[T],
    *,
    remote: Callable[[AsyncClient], Awaitable[T]] | None = None,
    cluster: bool = False,
    rights: Callable[[Settings], str] = lambda _: "",
) -> T:
    """Do some work where the flags say, and close what it opened; ``rights`` are those that it needs on a cluster.

    ``remote`` asks a running Lapse for the same, where flags or environment name one.
    """
    from lapse.cli.remote import ask_server, client_at

    client = None if remote is None else client_at(flags, cluster=cluster)
    if remote is not None and client is not None:
        return ask_server(client, remote)
    loaded = flags.load_and_warn()

    async def run() -> T:
        async with AsyncExitStack() as stack:
            if cluster or flags.names_cluster:
                return await ClusterContext(loaded, stack).carry_out(work, rights=rights(loaded.settings))
            return await work(Context(loaded, stack))

    return asyncio.run(run())


def run_through(call: Awaitable[T]) -> T:
    """Wait for one call, and return what it returns."""

    async def run() -> T:
        return await call

    return asyncio.run(run())


def ask(flags: Flags, asked: Callable[[Verbs], Awaitable[T]], *, cluster: bool) -> T:
    """Ask the verbs of people at the place that the flags name."""
    from lapse.app.cluster import LeaseNamespaceError, gate_key
    from lapse.kube.errors import NotFoundError

    async def work(context: Context) -> T:
        try:
            return await asked(await context.service())
        except NotFoundError as error:
            namespace = gate_key(context.settings).namespace
            if (error.details.get("kind"), error.details.get("name")) != ("Namespace", namespace):
                raise
            raise LeaseNamespaceError(namespace=namespace) from error

    def rights(settings: Settings) -> str:
        return f"get, create and patch on configmaps in {settings.lease_namespace}, and on what is asked about"

    return in_context(flags, work, remote=asked, cluster=cluster, rights=rights)


@contextmanager
def telling_of_gone(flags: Flags, address: str, *, cluster: bool = False) -> Iterator[None]:
    """Let what fails because a thing is not there tell since when it is gone, and how it comes back, if that is known.

    For commands of a noun, which do not go through the verbs: these tell it by themselves.
    """
    from lapse.core.errors import LapseError
    from lapse.engine.service import NothingThereError
    from lapse.engine.verbs.contract import WhyRequest

    try:
        yield
    except LapseError as error:
        if error.status != NothingThereError.status or isinstance(error, NothingThereError):
            raise
        told = None
        with suppress(LapseError):
            told = ask(flags, lambda verbs: verbs.why(WhyRequest(address=address)), cluster=cluster)
        if told is None or told.verdict != "gone":
            raise
        raise NothingThereError.of(told) from error


def workspace_name(text: str) -> str:
    """Return the name that an argument means: NAME, or workspace/NAME."""
    from lapse.core.address import AddressError
    from lapse.domains import REGISTRY

    if "/" not in text:
        return text
    address = REGISTRY.parse(text)
    if address.kind != "workspace":
        raise AddressError(text=text, problem="it does not name a workspace, as workspace/NAME does")
    return address.name


def who() -> str:
    """Return how the journal names the user of this machine at the command line; on a cluster, see `Context.caller`."""
    from lapse.engine.verbs.place import Caller

    return Caller.user().name
