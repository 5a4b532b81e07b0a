"""The trash of a place, put together: of the objects of a state folder or a cluster, and of workspaces.

A running process puts what it ends into the trash of its `Requests`. A command that ends something has one for itself
(`listed_trash`), which finds dependants by listing. Either is seen through one `TrashBin`, also where trash_ttl is
never by now: what an earlier setting kept can still be brought back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.running.metrics import Metrics
    from lapse.engine.trash import Trash
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.port import HoldLookup, ObjectStore
    from lapse.objects.trash.contents import TrashedObjects
    from lapse.objects.trash.moves import ObjectTrash
    from lapse.settings import Settings
    from lapse.workspaces.store.port import WorkspaceStore
    from lapse.workspaces.trash import TrashedWorkspaces

_WHERE_NEVER: Final = "7d"
"""For a trash into which nothing goes any more: what lies in it has TTLs of its own."""


def listed_trash(settings: Settings, store: ObjectStore, *, dependants: Dependants, clock: Clock) -> ObjectTrash | None:
    """Return the trash for what one command ends; None where trash_ttl is never."""
    from lapse.requests.trash import trash_of

    return trash_of(store, settings.trash_ttl, dependants=dependants, clock=clock)


def trashed_objects(
    store: ObjectStore,
    *,
    holds: HoldLookup,
    dependants: Dependants,
    journal: Journal,
    clock: Clock,
    metrics: Metrics | None = None,
    trash: ObjectTrash | None = None,
) -> TrashedObjects:
    """Return the trash of objects as people see it; ``trash`` is that of a running process."""
    from lapse.core.duration import Duration
    from lapse.objects.holds.steering import Steering
    from lapse.objects.trash.contents import TrashedObjects
    from lapse.objects.trash.moves import ObjectTrash
    from lapse.requests.lifecycle.keeper import keepers_of
    from lapse.requests.trash import TRASH_KINDS

    if trash is None:
        ttl = Duration.parse(_WHERE_NEVER)
        trash = ObjectTrash(store, kinds=TRASH_KINDS, ttl=ttl, dependants=dependants, clock=clock)
    steering = Steering(store, dependants=trash.dependants, followers=keepers_of(store), clock=clock)
    return TrashedObjects(trash, holds=holds, steering=steering, journal=journal, clock=clock, metrics=metrics)


def trashed_workspaces(
    settings: Settings, store: WorkspaceStore, *, journal: Journal, clock: Clock, metrics: Metrics | None = None
) -> TrashedWorkspaces:
    """Return the trash of workspaces as people see it; sizes are those of archives on this machine."""
    from lapse.app.workspaces import FOLDER
    from lapse.workspaces.runtime.archive import Archives
    from lapse.workspaces.trash import TrashedWorkspaces

    archives = Archives(settings.state_dir / FOLDER / "archives")
    return TrashedWorkspaces(
        store, journal=journal, clock=clock, metrics=metrics, size_of=lambda row: archives.size_of(row.id)
    )


if TYPE_CHECKING:
    _conforms: type[Trash] = TrashedObjects
