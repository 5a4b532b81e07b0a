"""Provisioning that failed, as a provisioner reports it: by Events on the claim, while it tries again for ever.

The stock external-provisioner writes nothing into a claim that it cannot provision. It writes Warning Events with the
reason ProvisioningFailed and the error of the CSI driver, and tries again, with growing pauses and without end. So such
an Event is not the last word of anybody; whether a restore has failed is a judgement, and this is where it is made.

**What counts:** the newest Event about exactly this claim (its uid), with that reason, of type Warning, and not older
than the claim.

- *Transient*, never final: ``Canceled``, ``DeadlineExceeded``, ``Unavailable``, ``Aborted``, ``ResourceExhausted``. The
  first four say that the work may still be going on, the last that there is no room now; a later attempt of the same
  call may succeed. The request waits, until its own deadline.
- *Final at once*: ``InvalidArgument``, ``NotFound``, ``AlreadyExists``, ``OutOfRange``, ``Unimplemented``. By what CSI
  says about them, the same call fails again: parameters, source, name or size are not what the driver can do. A claim
  cannot be changed in these, so somebody has to ask for another restore anyway.
- *Final at once*, too: that the snapshot is being deleted. It stays while the claim waits for it, and the claim waits
  while it is there: only somebody who deletes the claim ends that.
- *Everything else* (``Internal``, ``Unknown``, ``PermissionDenied``, an error of the provisioner itself, which has no
  code, a StorageClass that is not there) is doubt. It is final when it is still reported two minutes after the claim
  was made: by then a provisioner has tried some seven times.

A success that was reported since, or in the same second, takes all of it back. Only looked for while a claim is waited
for that exists and is not bound, at growing intervals. Being unable to look is no outcome: nothing is concluded from
it. Somebody who may write Events in the namespace could make a restore there fail, and may as well delete its claim.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from lapse.core.log import get_logger
from lapse.core.timestamps import from_timestamp
from lapse.kube.errors import ObjectError
from lapse.kube.events.event import events_about

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.clock import UnixNs
    from lapse.kube.api.client import KubeClient
    from lapse.kube.events.event import EventObject
    from lapse.requests.api.upstream import PersistentVolumeClaim

PROVISIONING_FAILED: Final = "ProvisioningFailed"
"""The reason of such Events; also the condition by which the local executor says on a claim that it has given up."""
PROVISIONING_SUCCEEDED: Final = "ProvisioningSucceeded"
DOUBT_SECONDS: Final = 120.0
"""How long a failure that may pass must be reported before it counts."""
TRANSIENT: Final = frozenset({"Canceled", "DeadlineExceeded", "Unavailable", "Aborted", "ResourceExhausted"})
FINAL: Final = frozenset({"InvalidArgument", "NotFound", "AlreadyExists", "OutOfRange", "Unimplemented"})
SOURCE_GOES: Final = "is currently being deleted"
"""How the stock provisioner says that somebody has deleted the snapshot which a claim is to be filled from."""
_FIRST_LOOK_SECONDS: Final = 5.0
_LONGEST_WAIT_SECONDS: Final = 60.0
_CODE: Final = re.compile(r"rpc error: code = (\w+)")
_NS: Final = 1_000_000_000
_log = get_logger("lapse.requests.controllers.provisioning")


def final_failure(claim: PersistentVolumeClaim, events: Iterable[EventObject]) -> str | None:
    """Return what the provisioner says if it failed for good; None while it may succeed. Pure."""
    made = from_timestamp(claim.metadata.creation_timestamp or "")
    if made is None:
        return None
    told = [(seen, event) for event in events if (seen := _seen(claim, event)) is not None and seen >= made]
    failed = [(seen, event) for seen, event in told if event.reason == PROVISIONING_FAILED and event.type == "Warning"]
    if not failed:
        return None
    seen, newest = max(failed, key=lambda one: one[0])
    if any(event.reason == PROVISIONING_SUCCEEDED and since >= seen for since, event in told):
        return None
    note = newest.note or ""
    # An error may quote another one; what the driver itself said stands last.
    codes = _CODE.findall(note)
    code = codes[-1] if codes else ""
    if code in TRANSIENT:
        return None
    lasting = seen - made >= DOUBT_SECONDS * _NS
    is_final = code in FINAL or SOURCE_GOES in note or lasting
    return note or PROVISIONING_FAILED if is_final else None


def _seen(claim: PersistentVolumeClaim, event: EventObject) -> UnixNs | None:
    """Return when an Event about this claim happened last; None when it is about another one, or cannot be read."""
    if event.regarding is None or not event.regarding.uid or event.regarding.uid != claim.metadata.uid:
        return None
    return event.last_seen


class ClaimReports(Protocol):
    """Knows what provisioners report about claims, beside what they write into them."""

    def next_look(self, age: float) -> float:
        """Return in how many seconds to ask about a claim of this age again."""
        ...

    async def final_failure(self, claim: PersistentVolumeClaim) -> str | None:
        """Return why a claim will not be provisioned; None when it may be, or nothing is known."""
        ...


class NoReports:
    """For where a provisioner writes into the claim all that there is to know, as the local executor does."""

    def next_look(self, age: float) -> float:
        """See `ClaimReports`; a change of the claim comes by itself."""
        return _LONGEST_WAIT_SECONDS

    async def final_failure(self, claim: PersistentVolumeClaim) -> str | None:
        """See `ClaimReports`."""


class EventReports:
    """Reads the Events of a claim."""

    def __init__(self, client: KubeClient) -> None:
        """Ask by ``client``."""
        self._client = client

    @staticmethod
    def next_look(age: float) -> float:
        """See `ClaimReports`; a claim that has waited long can wait longer."""
        return min(_LONGEST_WAIT_SECONDS, max(_FIRST_LOOK_SECONDS, age))

    async def final_failure(self, claim: PersistentVolumeClaim) -> str | None:
        """See `ClaimReports`. One call."""
        meta = claim.metadata
        try:
            events = await events_about(self._client, meta.namespace or "", meta.uid)
        except ObjectError as error:
            _log.info("reports_not_read", claim=str(meta.key), error=type(error).__name__)
            return None
        return final_failure(claim, events)


NO_REPORTS: Final = NoReports()
