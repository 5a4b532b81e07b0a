"""What is asked and written beside a deletion by a person: holds, a journal row, and what happens to what was made.

People delete requests and the claims that they made for them, and nothing else: a keeper goes by its own rule, and an
artifact with its keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.engine import executor
from lapse.engine.domain import deletion_by_person
from lapse.engine.executor import HoldUnknownError
from lapse.engine.safety.holds import HoldDoubt, held_error, hold_of
from lapse.objects.port import Deletion
from lapse.objects.target import ObjectHandle, ObjectTarget
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.expiry import DOMAIN

if TYPE_CHECKING:
    from lapse.core.clock import Clock
    from lapse.engine.journal.port import Journal
    from lapse.engine.safety.holds import HoldLookup
    from lapse.kube.resources import Kind, Object
    from lapse.objects.port import ObjectStore
    from lapse.requests.addresses import Located
    from lapse.requests.api.kinds import ObjectKeeper

DELETABLE: Final[tuple[Kind[Any], ...]] = (*REQUEST_KINDS, PERSISTENT_VOLUME_CLAIM)


class NotDeletableError(UsageError):
    """{address} is not deleted by hand: a keeper goes some time after its request, an artifact goes with its keeper.

    Delete the request (vcr, vrr or mcr) to begin that. Once the request is gone, lapse requests list shows when the
    rest goes; to keep the data for longer, restore it with lapse requests restore NAME --from SNAPSHOT --to PATH.
    """


def demand_deletable(place: Located) -> None:
    """Refuse what people do not delete."""
    if place.kind not in DELETABLE:
        raise NotDeletableError(address=place)


async def delete_by_person(
    store: ObjectStore,
    place: Located,
    obj: Object,
    *,
    keeper: ObjectKeeper | None,
    holds: HoldLookup,
    journal: Journal,
    actor: str,
    clock: Clock,
) -> None:
    """Delete an object as it was read, unless it is held, or takes along what is.

    A ``keeper`` without a TTL goes with the request that it follows. Raises `HeldError`, and what the store raises.
    """
    now = clock.wall_ns()
    if keeper is not None and keeper.spec.mode == KeeperMode.FOLLOW_OBJECT:
        meta = keeper.metadata
        kept = Deletion(OBJECT_KEEPER, meta.key, meta.uid, meta.resource_version, meta.owner_references)
        (held,) = await holds.holds_over([kept], UnixNs(now))
        if isinstance(held, HoldDoubt):
            raise HoldUnknownError(address=place, problem=held.problem)
        if held is not None:
            raise held_error(place, held)
    action = deletion_by_person(
        domain=DOMAIN,
        address=place.address,
        uid=obj.metadata.uid,
        version=obj.metadata.resource_version,
        handle=ObjectHandle.of(place.kind, obj),
        hold=hold_of(obj.metadata.annotations),
        actor=actor,
        now=now,
    )
    await executor.delete_by_person(ObjectTarget(store, holds), journal, action, clock=clock)


def consequence(keeper: ObjectKeeper | None, *, keeps: bool) -> str:
    """Say what happens after a request is deleted; ``keeps`` tells whether its keeper owns what it has made."""
    if keeper is None:
        return "Nothing that it made is left."
    name = f"keeper/{keeper.metadata.name}"
    when = "now" if keeper.spec.mode == KeeperMode.FOLLOW_OBJECT else f"{_printed(keeper.spec.ttl)} from now"
    return f"{name} and what it keeps go {when}." if keeps else f"{name} goes {when}; what was restored stays."


def _printed(ttl: str | None) -> str:
    try:
        return str(Duration.parse(ttl or ""))
    except DurationError:
        return "some time"
