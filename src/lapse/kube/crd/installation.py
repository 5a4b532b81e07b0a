"""CustomResourceDefinitions on a cluster: what differs from those that are wanted, and making them so.

Guarantees: only what differs is written, under the version that was read; labels and annotations stay as they are; a
definition that serves versions which the wanted one does not have is left alone, because it is of a newer release or of
another system; nothing is ever deleted. Not done here: converting stored objects from one version to another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lapse.core.errors import LapseError
from lapse.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from lapse.kube.resources import ObjectKey, Struct, untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.kube.api.client import KubeClient
    from lapse.kube.resources import Document, Json

DEFINITION: Final = untyped(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
OLDEST: Final = (1, 29)
"""The first release in which nobody can turn rules in CEL off: without them a server drops ours and says nothing."""
_DEFAULTS: Final[Json] = {"conversion": {"strategy": "None"}}
"""What the server adds to a definition that does not say it."""
_ATTEMPTS: Final = 5
_LOOK_AGAIN_SECONDS: Final = 0.1
_NS: Final = 1_000_000_000


class ServerTooOldError(LapseError):
    """The API server at {place} is of version {found}, and the definitions need {oldest} or newer; upgrade it first."""


class ForeignVersionsError(LapseError):
    """The cluster's {name} has versions unknown here ({versions}), of a newer release or another system. Left alone."""


class NotEstablishedError(LapseError):
    """The definition {name} is stored but not served: {problem}."""


class ServerVersion(Struct, frozen=True):
    """What ``/version`` answers."""

    git_version: str = ""


class DefinitionState(StrEnum):
    """How the cluster's definition compares with the wanted one."""

    MISSING = "missing"
    DIFFERENT = "different"
    SAME = "same"


class InstallationResult(StrEnum):
    """What an installation did."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the two are not equal; None is what is not there."""

    path: str
    cluster: Any
    wanted: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """The state of one definition."""

    name: str
    state: DefinitionState
    differences: tuple[Difference, ...] = ()


class Definitions:
    """The definitions of one cluster."""

    def __init__(self, client: KubeClient) -> None:
        """Work through ``client``, which stays the caller's to close."""
        self._client, self._clock = client, client.clock

    async def check_server(self) -> None:
        """Raise `ServerTooOldError` unless the server keeps all that a definition says."""
        found = (await self._client.fetch("/version", ServerVersion)).git_version
        if (version := read_version(found)) is not None and version < OLDEST:
            place = self._client.config.cluster.place
            raise ServerTooOldError(place=place, found=found, oldest=".".join(map(str, OLDEST)))

    async def compare(self, wanted: Json) -> Comparison:
        """Say how the cluster's definition differs from ``wanted``."""
        name = wanted["metadata"]["name"]
        found = await self._find(name)
        if found is None:
            return Comparison(name, DefinitionState.MISSING)
        differences = tuple(compare_specs(found.body["spec"], wanted["spec"]))
        return Comparison(name, DefinitionState.DIFFERENT if differences else DefinitionState.SAME, differences)

    async def install(self, wanted: Json) -> InstallationResult:
        """Create or update one definition; `wait_until_served` says when it can be used."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._install(wanted)
            except (AlreadyExistsError, ConflictError, NotFoundError):
                continue  # somebody else is at it: look again at what there is
        raise ConflictError(
            kind=DEFINITION.kind,
            name=wanted["metadata"]["name"],
            problem=f"other clients changed it {_ATTEMPTS} times in a row",
        )

    async def _install(self, wanted: Json) -> InstallationResult:
        name = wanted["metadata"]["name"]
        found = await self._find(name)
        if found is None:
            await self._client.create(DEFINITION, wanted)
            return InstallationResult.CREATED
        if found.metadata.deletion_timestamp is not None:
            raise NotEstablishedError(name=name, problem="it is being deleted. Run this again when it is gone")
        current, spec = found.body["spec"], _DEFAULTS | wanted["spec"]
        if current == spec:
            return InstallationResult.UNCHANGED
        if unknown := _versions(current) - _versions(spec):
            raise ForeignVersionsError(name=name, versions=", ".join(sorted(unknown)))
        changes = {"spec": _changes(current, spec)}
        meta = found.metadata
        await self._client.patch(DEFINITION, meta.key, changes, uid=meta.uid, version=meta.resource_version)
        return InstallationResult.UPDATED

    async def wait_until_served(self, name: str, *, seconds: float) -> None:
        """Return once objects of the kind can be stored; raises `NotEstablishedError` when that is refused or late."""
        until_ns = self._clock.monotonic_ns() + round(seconds * _NS)
        while True:
            conditions = _conditions(await self._find(name))
            if conditions.get("Established", {}).get("status") == "True":
                return
            refused = conditions.get("NamesAccepted", {})
            if refused.get("status") == "False":
                raise NotEstablishedError(name=name, problem=refused.get("message") or "its names are taken")
            if self._clock.monotonic_ns() >= until_ns:
                raise NotEstablishedError(name=name, problem=f"the API server has not accepted it within {seconds:g} s")
            await self._clock.sleep(_LOOK_AGAIN_SECONDS)

    async def _find(self, name: str) -> Document | None:
        try:
            return await self._client.get(DEFINITION, ObjectKey(None, name))
        except NotFoundError:
            return None


def read_version(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as ``v1.35.0+k3s1``; None for anything else, which proves nothing."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def compare_specs(cluster: Json, wanted: Json) -> Iterator[Difference]:
    """Say where the spec of a definition is not the wanted one; what the server adds by itself is no difference."""
    return _differences(cluster, _DEFAULTS | wanted, "spec")


def _differences(cluster: object, wanted: object, path: str) -> Iterator[Difference]:
    if isinstance(cluster, dict) and isinstance(wanted, dict):
        for name in sorted({*cluster, *wanted}):
            yield from _differences(cluster.get(name), wanted.get(name), f"{path}.{name}")
    elif isinstance(cluster, list) and isinstance(wanted, list) and len(cluster) == len(wanted):
        for index, (one, other) in enumerate(zip(cluster, wanted, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif cluster != wanted:
        yield Difference(path, cluster, wanted)


def _changes(current: Json, wanted: Json) -> Json:
    """Return the merge patch that makes one the other."""
    changes: Json = dict.fromkeys(current.keys() - wanted.keys())
    for name, value in wanted.items():
        before = current.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := _changes(before, value):
                changes[name] = inner
        elif value != before:
            changes[name] = value
    return changes


def _versions(spec: Json) -> set[str]:
    return {version["name"] for version in spec["versions"]}


def _conditions(definition: Document | None) -> dict[str, Json]:
    status = {} if definition is None else definition.body.get("status") or {}
    return {condition["type"]: condition for condition in status.get("conditions") or ()}
