"""A cluster to work on, for every command that needs one: found by the settings, reached, and looked over.

Each of the usual mistakes (no cluster, no definitions, a right that is missing) is one line that says what is wrong and
what to run. A usage error where the settings are to blame, a failure where the cluster is.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError, UsageError
from lapse.history.api.kinds import OUR_KINDS as HISTORY_KINDS
from lapse.history.policy.rbac import NEEDED as NEEDED_BY_HISTORY
from lapse.kube.auth.access import rights_on
from lapse.kube.auth.config import acting_as, load_config
from lapse.kube.controller.lease import LEASE
from lapse.kube.crd.installation import Definitions
from lapse.kube.errors import (
    AlreadyExistsError,
    CredentialsError,
    ForbiddenError,
    NotFoundError,
    StoreUnavailableError,
    UnauthenticatedError,
    UnknownKindError,
)
from lapse.kube.resources import Document, Kind, ObjectKey
from lapse.objects.config_map_gate import NAME as GATE
from lapse.requests.admission import HOLDING, NEEDED_BY_BRIDGE, REVIEWING, rights_on_gate, rights_on_lease
from lapse.requests.admission import NEEDED as NEEDED_BY_REQUESTS
from lapse.requests.api.kinds import OUR_KINDS as REQUEST_KINDS
from lapse.requests.api.upstream import VOLUME_SNAPSHOT, VOLUME_SNAPSHOT_CLASS, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.lifecycle.policy import RestoreExecutor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.safety.blast_radius import PolicyGuard
    from lapse.engine.safety.clock_guard import ClockGuard
    from lapse.engine.safety.freeze import Notes
    from lapse.kube.api.client import KubeClient
    from lapse.kube.auth.access import Right
    from lapse.objects.config_map_gate import ConfigMapGateStore
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.objects.port import ObjectStore, Reader
    from lapse.settings import Settings

_REVIEW: Final = Kind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", Document, namespaced=False
)
_AT_ONCE: Final = 4
"""Questions under way: each more costs a connection of its own, which costs more than the question."""
_SHOWN: Final = 6
"""Missing rights that are named: more do not help."""


class ExtraMissingError(UsageError):
    """Work on a cluster needs {module}, which is not installed; run pip install 'lapse[kubernetes]'."""


class ClusterUnreachableError(LapseError):
    """The cluster at {place} cannot be used: {problem}. It was named by {origin}; try kubectl version with the same."""


class NotAllowedError(LapseError):
    """The user of {origin} may not do this on {place}: {problem}. Ask for the rights {rights}."""


class DefinitionsMissingError(LapseError):
    """The cluster at {place} does not know {kinds}; run lapse crds install."""


class OtherDefinitionsError(LapseError):
    """The cluster at {place} has {group} only as {found}, and this Lapse needs {version}; run lapse crds install."""


class SnapshotsMissingError(LapseError):
    """The cluster at {place} does not know {kinds}; install the external-snapshotter and its definitions, version 8."""


class RightsMissingError(LapseError):
    """The user of {origin} may not {rights} on {place}; bind a role that allows it (see deploy/base)."""


class HoldKindUnknownError(UsageError):
    """The setting hold_kinds names {name}, which the cluster does not know; compare it with kubectl api-resources."""


class LeaseNamespaceError(LapseError):
    """The Lease has no namespace; run kubectl create namespace {namespace}, or set lease_namespace to another."""


def open_client(settings: Settings, *, clock: Clock, user: str | None = None) -> KubeClient:
    """Return a client of the cluster that the settings name; nothing is asked yet.

    With ``user`` it acts as that user, with the rights of that user alone.
    """
    try:
        import_module("yaml")
    except ModuleNotFoundError:
        raise ExtraMissingError(module="yaml") from None
    from lapse.kube.api.client import KubeClient
    from lapse.kube.api.transport import CallLimits

    limits = CallLimits(per_second=settings.kube_qps or None, burst=settings.kube_burst or None)
    file = Path(settings.kube_config).expanduser() if settings.kube_config else None
    config = load_config(file=file, context=settings.kube_context or None, environ=os.environ)
    return KubeClient(config if user is None else acting_as(config, user), clock=clock, limits=limits)


def gate_key(settings: Settings) -> ObjectKey:
    """Return which ConfigMap says what is frozen: one for all replicas, so it is beside their Lease."""
    return ObjectKey(settings.lease_namespace, GATE)


def gate_store_on(store: ObjectStore, settings: Settings, *, clock: Clock, journal: Journal) -> ConfigMapGateStore:
    """Return what is kept in that ConfigMap; nothing is read yet."""
    from lapse.domains import REGISTRY
    from lapse.objects.config_map_gate import ConfigMapGateStore

    domains = REGISTRY.freezable(cluster=True)
    return ConfigMapGateStore(store, gate_key(settings), domains=domains, clock=clock, journal=journal)


def policy_guard_on(
    kept: ConfigMapGateStore, settings: Settings, *, journal: Journal, clock: Clock, metrics: Metrics, actor: str
) -> PolicyGuard:
    """Return what stops policies of a cluster that are new or changed; what is known of them is beside the freezes."""
    from lapse.app.process import dry_seconds
    from lapse.domains import REGISTRY
    from lapse.engine.safety.blast_radius import PolicyGuard
    from lapse.objects.config_map_gate import RUN

    return PolicyGuard(
        lambda _domain: kept,
        journal=journal,
        clock=clock,
        metrics=metrics,
        actor=actor,
        domains=REGISTRY.freezable(cluster=True),
        interval_seconds=dry_seconds(settings),
        dry=settings.dry_run_domains,
        run=RUN,
    )


def guard_on(client: KubeClient, notes: Notes, *, clock: BelievedClock) -> ClockGuard:
    """Return the clock guard of a process that ends things on a cluster: its API server knows the time as well."""
    from lapse.app.record import kernel_of
    from lapse.engine.safety.clock_guard import ClockGuard

    sources = [client.now_ns, *kernel_of(clock)]
    return ClockGuard(clock, notes=notes, sources=sources, refresh_seconds=None)


@contextmanager
def in_plain_words(client: KubeClient, *, rights: str) -> Iterator[None]:
    """Say of what goes wrong which cluster it was, and who named it; ``rights`` are those that the work needs."""
    origin, place = client.config.origin, _place(client)
    try:
        yield
    except (UnauthenticatedError, CredentialsError):
        raise  # they say what to do themselves
    except ForbiddenError as error:
        raise NotAllowedError(origin=origin, place=place, problem=_problem(error), rights=rights) from error
    except (StoreUnavailableError, UnknownKindError, NotFoundError) as error:
        if isinstance(error, NotFoundError) and type(error) is not NotFoundError:
            raise  # it says more than a store does, and what to do
        raise ClusterUnreachableError(place=place, problem=_problem(error), origin=origin) from error


async def hold_kinds(store: Reader, settings: Settings) -> list[Kind[Any]]:
    """Return the kinds that are watched for their holds alone: ours that no controller watches, and the setting's.

    Raises `HoldKindUnknownError`.
    """
    found: list[Kind[Any]] = [*HISTORY_KINDS]
    for name in settings.hold_kinds:
        api_version, _, kind = name.rpartition("/")
        try:
            found.append(await store.resolve(api_version, kind))
        except UnknownKindError as error:
            raise HoldKindUnknownError(name=name) from error
    return found


async def look_over(
    store: KubernetesStore,
    lease: ObjectKey,
    *,
    holding: Iterable[Kind[Any]] = (),
    restores: RestoreExecutor = RestoreExecutor.BRIDGE,
) -> None:
    """Raise a `LapseError` with one clear line unless the controllers can work here, and watch ``holding``.

    What only the bridge needs is looked for where it carries out the ``restores``.
    """
    client, bridges = store.client, restores is RestoreExecutor.BRIDGE
    with in_plain_words(client, rights="of the roles in deploy/base"):
        await Definitions(client).check_server()
        await _look_at_definitions(client, (VOLUME_SNAPSHOT,) if bridges else ())
        watched = [right for kind in holding for right in rights_on(kind, *HOLDING)]
        shared = [*rights_on_lease(lease.namespace), *rights_on_gate(lease.namespace)]
        needed = [*NEEDED_BY_REQUESTS, *(NEEDED_BY_BRIDGE if bridges else ()), *NEEDED_BY_HISTORY]
        await _look_at_rights(client, dict.fromkeys([*needed, *shared, *watched]))
        await _make_lease(store, lease)


async def look_over_for_webhook(client: KubeClient) -> None:
    """Raise a `LapseError` with one clear line unless the cluster can be asked who may read what."""
    with in_plain_words(client, rights="of the role in deploy/components/webhook"):
        await _look_at_rights(client, REVIEWING)


def _problem(error: LapseError) -> str:
    return str(error.details.get("problem", error)).rstrip(".")


def _place(client: KubeClient) -> str:
    return client.config.cluster.place


# --- definitions ------------------------------------------------------------------------------------------------------


async def _look_at_definitions(client: KubeClient, also: Iterable[Kind[Any]]) -> None:
    missing = await _unknown(client, (*REQUEST_KINDS, *HISTORY_KINDS))
    for kind in missing:
        if versions := await _versions(client, kind.group):
            needed = kind.api_version.rpartition("/")[2]
            if needed not in versions:
                found = ", ".join(versions)
                raise OtherDefinitionsError(place=_place(client), group=kind.group, found=found, version=needed)
    if missing:
        raise DefinitionsMissingError(place=_place(client), kinds=_names(missing))
    if missing := await _unknown(client, (VOLUME_SNAPSHOT_CONTENT, VOLUME_SNAPSHOT_CLASS, *also)):
        raise SnapshotsMissingError(place=_place(client), kinds=_names(missing))


async def _unknown(client: KubeClient, kinds: Iterable[Kind[Any]]) -> list[Kind[Any]]:
    from lapse.kube.api.discovery import Discovery

    discovery, missing = Discovery(client), []
    for kind in kinds:
        try:
            await discovery.find(kind.api_version, kind.kind)
        except UnknownKindError:
            missing.append(kind)
    return missing


async def _versions(client: KubeClient, group: str) -> list[str]:
    try:
        found = await client.fetch(f"/apis/{group}", dict[str, Any])
    except (NotFoundError, UnknownKindError):
        return []
    return [str(version.get("version")) for version in found.get("versions") or ()]


def _names(kinds: Iterable[Kind[Any]]) -> str:
    return ", ".join(f"{kind.kind} ({kind.api_version})" for kind in kinds)


# --- rights -----------------------------------------------------------------------------------------------------------


async def _look_at_rights(client: KubeClient, rights: Iterable[Right]) -> None:
    wanted, turn = list(rights), asyncio.Semaphore(_AT_ONCE)

    async def ask(right: Right) -> bool:
        async with turn:
            return await is_allowed(client, right)

    allowed = await asyncio.gather(*map(ask, wanted))
    missing = [str(right) for right, may in zip(wanted, allowed, strict=True) if not may]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        named = ", ".join(missing[:_SHOWN]) + more
        raise RightsMissingError(origin=client.config.origin, rights=named, place=_place(client))


async def is_allowed(client: KubeClient, right: Right) -> bool:
    """Return whether the user of the client has a right."""
    about = {"verb": right.verb, "group": right.group, "resource": right.resource}
    about |= {"subresource": right.subresource, "namespace": right.namespace or "", "name": right.name}
    body = {"metadata": {}, "spec": {"resourceAttributes": about}}
    found = await client.create(_REVIEW, body)
    return bool(found.body.get("status", {}).get("allowed"))


async def _make_lease(store: KubernetesStore, lease: ObjectKey) -> None:
    """Make the Lease, free: a namespace that is missing must not be found out by the first election."""
    try:
        await store.get(LEASE, lease)
    except NotFoundError:
        body = {"metadata": {"name": lease.name, "namespace": lease.namespace}, "spec": {}}
        try:
            await store.create(LEASE, body)
        except AlreadyExistsError:
            return
        except NotFoundError:
            raise LeaseNamespaceError(namespace=lease.namespace) from None
