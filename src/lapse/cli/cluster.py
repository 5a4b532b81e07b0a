"""A cluster to work on: found by the settings, reached, and looked over before anything is begun.

Each of the usual mistakes (no cluster, no definitions, a right that is missing) is one line that says what is wrong and
what to run. A usage error where the settings are to blame, a failure where the cluster is.
"""

from __future__ import annotations

import asyncio
import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError, UsageError
from lapse.kube.config import load_config
from lapse.kube.errors import (
    AlreadyExistsError,
    CredentialsError,
    NotFoundError,
    ObjectError,
    UnauthenticatedError,
    UnknownKindError,
)
from lapse.kube.lease import LEASE
from lapse.kube.resources import Document, Kind, ObjectKey
from lapse.requests.api.kinds import OUR_KINDS
from lapse.requests.api.upstream import VOLUME_SNAPSHOT_CLASS, VOLUME_SNAPSHOT_CONTENT
from lapse.requests.rights import NEEDED, Right, rights_on

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.clock import Clock
    from lapse.kube.client import Client
    from lapse.objects.kubernetes import KubernetesStore
    from lapse.settings import Settings

_REVIEW: Final = Kind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", Document, namespaced=False
)
OLDEST: Final = (1, 29)
"""The first API server on which rules in definitions (CEL) are no longer a preview."""
_AT_ONCE: Final = 4
"""Questions under way: each more costs a connection of its own, which costs more than the question."""
_SHOWN: Final = 6
"""Missing rights that are named: more do not help."""


class ExtraMissingError(UsageError):
    """Work on a cluster needs {module}, which is not installed; run pip install 'lapse[kubernetes]'."""


class ClusterUnreachableError(LapseError):
    """The cluster at {place} cannot be used: {problem}. It was named by {origin}; try kubectl version with the same."""


class OldServerError(LapseError):
    """The API server at {place} is of version {found}; the definitions of Lapse need {oldest} or newer."""


class DefinitionsMissingError(LapseError):
    """The cluster at {place} does not know {kinds}; run lapse crds install."""


class OtherDefinitionsError(LapseError):
    """The cluster at {place} has {group} only as {found}, and this Lapse needs {version}; run lapse crds install."""


class SnapshotsMissingError(LapseError):
    """The cluster at {place} does not know {kinds}; install the external-snapshotter and its definitions, version 8."""


class RightsMissingError(LapseError):
    """{origin} may not {rights} on {place}; bind a role that allows it, then start again."""


class LeaseNamespaceError(LapseError):
    """The Lease has no namespace; run kubectl create namespace {namespace}, or set lease_namespace to another."""


def open_client(settings: Settings, *, clock: Clock) -> Client:
    """Return a client of the cluster that the settings name; nothing is asked yet."""
    for module in ("aiohttp", "yaml"):
        try:
            import_module(module)
        except ModuleNotFoundError:
            raise ExtraMissingError(module=module) from None
    from lapse.kube.client import Client
    from lapse.kube.transport import Limits

    limits = Limits(per_second=settings.kube_qps or None, burst=settings.kube_burst or None)
    file = Path(settings.kube_config).expanduser() if settings.kube_config else None
    config = load_config(file=file, context=settings.kube_context or None, environ=os.environ)
    return Client(config, clock=clock, limits=limits)


async def look_over(store: KubernetesStore, lease: ObjectKey) -> None:
    """Raise a `LapseError` with one clear line unless the controllers can work here."""
    client = store.client
    try:
        demand_version(await client.fetch("/version", dict[str, Any]), place=_place(client))
        await _look_at_definitions(client)
        await _look_at_rights(client, [*NEEDED, *_rights_on_lease(lease)])
        await _make_lease(store, lease)
    except (UnauthenticatedError, CredentialsError):
        raise  # they say what to do themselves
    except ObjectError as error:
        raise _unreachable(client, error) from error


def _unreachable(client: Client, error: ObjectError) -> ClusterUnreachableError:
    problem = str(error.details.get("problem", error)).rstrip(".")
    return ClusterUnreachableError(place=_place(client), problem=problem, origin=client.config.origin)


def _place(client: Client) -> str:
    return client.config.cluster.place


def demand_version(answer: dict[str, Any], *, place: str) -> None:
    """Raise `OldServerError` for a server that is known to be too old. One that does not tell is given a chance."""
    digits = [re.match(r"\d+", str(answer.get(part, ""))) for part in ("major", "minor")]
    if not all(digits):
        return
    found = tuple(int(match[0]) for match in digits if match)  # hosted ones say 29+
    if found < OLDEST:
        raise OldServerError(place=place, found=".".join(map(str, found)), oldest=".".join(map(str, OLDEST)))


# --- definitions ------------------------------------------------------------------------------------------------------


async def _look_at_definitions(client: Client) -> None:
    missing = await _unknown(client, OUR_KINDS)
    for kind in missing:
        if versions := await _versions(client, kind.group):
            needed = kind.api_version.rpartition("/")[2]
            if needed not in versions:
                found = ", ".join(versions)
                raise OtherDefinitionsError(place=_place(client), group=kind.group, found=found, version=needed)
    if missing:
        raise DefinitionsMissingError(place=_place(client), kinds=_names(missing))
    if missing := await _unknown(client, (VOLUME_SNAPSHOT_CONTENT, VOLUME_SNAPSHOT_CLASS)):
        raise SnapshotsMissingError(place=_place(client), kinds=_names(missing))


async def _unknown(client: Client, kinds: Iterable[Kind[Any]]) -> list[Kind[Any]]:
    from lapse.kube.discovery import Discovery

    discovery, missing = Discovery(client), []
    for kind in kinds:
        try:
            await discovery.find(kind.api_version, kind.kind)
        except UnknownKindError:
            missing.append(kind)
    return missing


async def _versions(client: Client, group: str) -> list[str]:
    try:
        found = await client.fetch(f"/apis/{group}", dict[str, Any])
    except (NotFoundError, UnknownKindError):
        return []
    return [str(version.get("version")) for version in found.get("versions") or ()]


def _names(kinds: Iterable[Kind[Any]]) -> str:
    return ", ".join(f"{kind.kind} ({kind.api_version})" for kind in kinds)


# --- rights -----------------------------------------------------------------------------------------------------------


def _rights_on_lease(lease: ObjectKey) -> list[Right]:
    return rights_on(LEASE, "get", "create", "patch", namespace=lease.namespace)


async def _look_at_rights(client: Client, rights: Iterable[Right]) -> None:
    wanted, turn = list(rights), asyncio.Semaphore(_AT_ONCE)

    async def ask(right: Right) -> bool:
        async with turn:
            return await _is_allowed(client, right)

    allowed = await asyncio.gather(*map(ask, wanted))
    missing = [str(right) for right, may in zip(wanted, allowed, strict=True) if not may]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        named = ", ".join(missing[:_SHOWN]) + more
        raise RightsMissingError(origin=f"The user of {client.config.origin}", rights=named, place=_place(client))


async def _is_allowed(client: Client, right: Right) -> bool:
    about = {"verb": right.verb, "group": right.group, "resource": right.resource}
    about |= {"subresource": right.subresource, "namespace": right.namespace or ""}
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
