"""What is asked and written beside a deletion by a person: holds, a journal row, and what happens to what was made.

People delete requests and the claims that they made for them, and nothing else: a keeper goes by its own rule, and an
artifact with its keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.engine.ending import HoldUnknownError
from lapse.engine.holds import Doubt, held_error
from lapse.engine.journal import Outcome, by_person
from lapse.objects.port import Deletion
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.ttl import DOMAIN

if TYPE_CHECKING:
    from lapse.engine.holds import HoldLookup
    from lapse.engine.journal import Entry
    from lapse.kube.resources import Kind, Object
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


async def demand_not_held(
    place: Located, obj: Object, *, keeper: ObjectKeeper | None, holds: HoldLookup, now: int
) -> None:
    """Refuse what is held, or takes along what is: a ``keeper`` without a TTL goes with the request that it follows."""
    goes = [_deletion(place.kind, obj)]
    if keeper is not None and keeper.spec.mode == KeeperMode.FOLLOW_OBJECT:
        goes.append(_deletion(OBJECT_KEEPER, keeper))
    for held in await holds.holds_over(goes, UnixNs(now)):
        if isinstance(held, Doubt):
            raise HoldUnknownError(address=place, problem=held.problem)
        if held is not None:
            raise held_error(place, held)


def _deletion(kind: Kind[Any], obj: Object) -> Deletion:
    meta = obj.metadata
    return Deletion(kind, meta.key, meta.uid, meta.resource_version, meta.owner_references)


def deletion_row(place: Located, obj: Object, *, actor: str, now: int) -> Entry:
    """Return the row for the journal; it is written in the deletion's own transaction."""
    return by_person(
        time_ns=now,
        domain=DOMAIN,
        address=str(place.address),
        uid=obj.metadata.uid,
        version=obj.metadata.resource_version,
        actor=actor,
        outcome=Outcome.ENDED,
    )


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
