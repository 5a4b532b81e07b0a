"""What is written beside a deletion by a person: a journal row, and what will happen to what the request made. Pure.

People delete requests and the claims that they made for them, and nothing else: a keeper goes by its own rule, and an
artifact with its keeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.engine.holds import HeldError, hold_of
from lapse.engine.journal import Outcome, by_person
from lapse.requests.api.kinds import REQUEST_KINDS, KeeperMode
from lapse.requests.api.upstream import PERSISTENT_VOLUME_CLAIM
from lapse.requests.ttl import DOMAIN

if TYPE_CHECKING:
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


def demand_not_held(place: Located, obj: Object, *, now: int) -> None:
    """Refuse what is held."""
    hold = hold_of(obj.metadata.annotations)
    if hold is not None and hold.active(UnixNs(now)):
        raise HeldError(address=place, reason=f" ({hold.reason})" if hold.reason else "")


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
        return "It had made nothing that is kept."
    name = f"keeper/{keeper.metadata.name}"
    when = "now" if keeper.spec.mode == KeeperMode.FOLLOW_OBJECT else f"{_printed(keeper.spec.ttl)} from now"
    return f"{name} and what it keeps go {when}." if keeps else f"{name} goes {when}; what was restored stays."


def _printed(ttl: str | None) -> str:
    try:
        return str(Duration.parse(ttl or ""))
    except DurationError:
        return "some time"
