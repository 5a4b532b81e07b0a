"""The claim that a restore makes: what the request asks for, and for the rest what was captured.

A capture notes class, size and modes on its content, because a driver may report a size of nothing, and nobody may ask
the claim any more. A claim is never smaller than what it is to hold. What cannot fit is said before it is made, as far
as it can be known here; the rest the provisioner says (`lapse.requests.controllers.provisioning`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.kube.errors import NotFoundError
from lapse.kube.quantity import units
from lapse.kube.resources import ObjectKey
from lapse.requests.api.conditions import ConditionReason
from lapse.requests.api.kinds import (
    RESTORE,
    RESTORED_FROM,
    SOURCE_ACCESS_MODES,
    SOURCE_CLASS,
    SOURCE_SIZE,
    SOURCE_VOLUME_MODE,
)
from lapse.requests.api.upstream import STORAGE_CLASS
from lapse.requests.controllers.claims import snapshot_source
from lapse.requests.controllers.finalise import End

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.kube.resources import Json
    from lapse.objects.port import Reader
    from lapse.requests.api.kinds import VolumeRestoreRequest
    from lapse.requests.api.upstream import PersistentVolume, StorageClass, VolumeSnapshotContent

MODE_MAY_CHANGE: Final = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
"""The snapshotter's own annotation on a content, which the provisioner asks for."""
_STORAGE: Final = "storage"
_ONE_WRITER: Final = "ReadWriteOnce"
_KNOWN_NS: Final = 10_000_000_000


class StorageClasses:
    """Storage classes, each read at most once in ten seconds: what counts of one never changes while it is there."""

    def __init__(self, direct: Reader, *, clock: Clock) -> None:
        """Read nothing yet."""
        self._direct, self._clock, self._turn = direct, clock, asyncio.Lock()
        self._known: dict[str, tuple[StorageClass, int]] = {}
        """By name: a class, and until when it is believed to be there."""

    async def find(self, name: str) -> StorageClass | None:
        """Return a class; None when there is none of that name."""
        async with self._turn:  # a hundred restores at once read it once
            now = self._clock.monotonic_ns()
            self._known = {one: known for one, known in self._known.items() if known[1] > now}
            if name not in self._known:
                try:
                    found = await self._direct.get(STORAGE_CLASS, ObjectKey(None, name))
                except NotFoundError:
                    return None
                self._known[name] = found, now + _KNOWN_NS
            return self._known[name][0]

    async def of_driver(self, driver: str | None) -> list[StorageClass]:
        """Return all classes of a driver, as they are now."""
        return [one for one in (await self._direct.list(STORAGE_CLASS)).items if one.provisioner == driver]


async def from_snapshot(
    request: VolumeRestoreRequest, source: VolumeSnapshotContent, classes: StorageClasses
) -> tuple[Json, StorageClass] | End:
    """Return the claim that is filled from the snapshot of a bridge, with its class, or why there can be none."""
    chosen = await _class(request, source, classes)
    if isinstance(chosen, End):
        return chosen
    wanted, noted = request.spec.pvc_template.spec, source.metadata.annotations
    size = _largest(_asked(request), noted.get(SOURCE_SIZE), _restore_size(source))
    if size is None:
        message = f"nobody says how large the volume of {source.metadata.name} is"
        return End(ConditionReason.INCOMPATIBLE, f"{message}: name a size in pvcTemplate.spec.resources.requests")
    captured = noted.get(SOURCE_VOLUME_MODE) or source.spec.source_volume_mode
    if captured and wanted.volume_mode not in {None, captured} and noted.get(MODE_MAY_CHANGE) != "true":
        message = f"the snapshot is of a volume with the mode {captured}, and the claim asks for {wanted.volume_mode}"
        allow = f"leave the mode out, or allow it by the annotation {MODE_MAY_CHANGE}: true on the snapshot"
        return End(ConditionReason.INCOMPATIBLE, f"{message}: {allow}")
    modes = wanted.access_modes or tuple(filter(None, noted.get(SOURCE_ACCESS_MODES, "").split(","))) or (_ONE_WRITER,)
    spec: Json = {
        "storageClassName": chosen.metadata.name,
        "accessModes": list(modes),
        "resources": _resources(request, size),
        "dataSource": msgspec.to_builtins(snapshot_source(request.metadata.uid)),
    }
    mode = wanted.volume_mode or captured
    return _claim(request, {**spec, "volumeMode": mode} if mode else spec), chosen


def from_volume(request: VolumeRestoreRequest, volume: PersistentVolume) -> Json | End:
    """Return the claim that takes a volume over, or why there can be none."""
    wanted, spec = request.spec.pvc_template.spec, volume.spec
    name, capacity = volume.metadata.name, (spec.capacity or {}).get(_STORAGE)
    mode, modes = spec.volume_mode or "Filesystem", spec.access_modes or (_ONE_WRITER,)
    asked, there = units(_asked(request)) or 0, units(capacity)
    problem = None
    if there is None:
        problem = "does not say how large it is"
    elif asked > there:
        problem = f"has {capacity}, and the claim asks for {_asked(request)}"
    elif (wanted.storage_class_name or spec.storage_class_name or "") != (spec.storage_class_name or ""):
        problem = f"is of the class {spec.storage_class_name}, and the claim asks for {wanted.storage_class_name}"
    elif (wanted.volume_mode or mode) != mode:
        problem = f"has the mode {mode}, and the claim asks for {wanted.volume_mode}"
    elif not set(wanted.access_modes or ()) <= set(modes):
        problem = f"allows {', '.join(modes)}, and the claim asks for {', '.join(wanted.access_modes or ())}"
    if problem is not None:
        message = f"the PersistentVolume {name} {problem}; a volume is taken over as it is: leave that out"
        return End(ConditionReason.INCOMPATIBLE, message)
    body = {
        "storageClassName": spec.storage_class_name or "",
        "accessModes": list(wanted.access_modes or modes),
        "volumeMode": mode,
        "resources": _resources(request, str(capacity)),
        "volumeName": name,
    }
    return _claim(request, body)


def _claim(request: VolumeRestoreRequest, spec: Json) -> Json:
    template, meta = request.spec.pvc_template.metadata, request.metadata
    return {
        "metadata": {
            "name": template.name,
            "namespace": meta.namespace,
            "labels": {**(template.labels or {}), RESTORE: meta.uid},
            "annotations": {**(template.annotations or {}), RESTORED_FROM: meta.uid},
        },
        "spec": spec,
    }


async def _class(
    request: VolumeRestoreRequest, source: VolumeSnapshotContent, classes: StorageClasses
) -> StorageClass | End:
    """Return the class that was asked for, or captured from, or is the only one of the driver."""
    driver, asked = source.spec.driver, request.spec.pvc_template.spec.storage_class_name
    captured = source.metadata.annotations.get(SOURCE_CLASS)
    if asked or captured:
        found = await classes.find(asked or captured or "")
        if found is not None and found.provisioner == driver:
            return found
        if asked and found is None:
            return End(ConditionReason.NOT_FOUND, f"there is no StorageClass {asked}")
        if asked and found is not None:
            message = f"the StorageClass {asked} is for {found.provisioner}, the snapshot is of {driver}"
            return End(ConditionReason.INCOMPATIBLE, f"{message}: name one of that driver, or none")
    fitting = await classes.of_driver(driver)
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(sorted(one.metadata.name for one in fitting))
    which = f"the driver {driver} has several classes ({names})" if fitting else f"the driver {driver} has no class"
    gone = f"the class {captured} that was captured from is gone or of another driver"
    message = f"{which}, and {gone if captured else 'it is not known which one was captured from'}"
    return End(ConditionReason.INCOMPATIBLE, f"{message}: name one in pvcTemplate.spec.storageClassName")


def _asked(request: VolumeRestoreRequest) -> str | None:
    resources = request.spec.pvc_template.spec.resources
    asked = (resources.requests or {}).get(_STORAGE) if resources is not None else None
    return None if asked is None else str(asked)


def _restore_size(source: VolumeSnapshotContent) -> str | None:
    size = source.status.restore_size if source.status is not None else None
    return str(size) if size else None


def _largest(*sizes: str | None) -> str | None:
    """Return the largest of some amounts, the first of equal ones; None when none of them says anything."""
    known = [(amount, text) for text in sizes if text is not None and (amount := units(text))]
    return max(known, key=lambda one: one[0])[1] if known else None


def _resources(request: VolumeRestoreRequest, size: str) -> Json:
    wanted = request.spec.pvc_template.spec.resources
    resources: Json = {"requests": {**((wanted.requests if wanted else None) or {}), _STORAGE: size}}
    if wanted is not None and wanted.limits:
        resources["limits"] = dict(wanted.limits)
    return resources
