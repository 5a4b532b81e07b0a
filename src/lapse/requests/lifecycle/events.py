"""Kubernetes Events about requests: every reason, and its wording. Pure.

A request has at most four: its keeper and its artifact when they are made, its outcome, and that it is held when it is
due. Its end is told together with that of others (`lapse.requests.lifecycle.eventing_journal`): the request itself is
gone by then.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lapse.kube.events.event import Report, about

if TYPE_CHECKING:
    from lapse.kube.events.event import Regarding
    from lapse.kube.resources import Kind, ObjectMeta
    from lapse.requests.controllers.finalise import End


class EventReason(StrEnum):
    """Why an Event was written; an outcome has the reason of its condition instead."""

    KEEPER_CREATED = "KeeperCreated"
    SNAPSHOT_CREATED = "SnapshotCreated"
    CHECKPOINT_CREATED = "CheckpointCreated"
    CLAIM_CREATED = "ClaimCreated"
    HELD_FROM_DELETION = "HeldFromDeletion"
    INVALID_TTL = "InvalidTTL"
    TIME_TO_LIVE_EXPIRED = "TimeToLiveExpired"
    FOLLOWED_OBJECT_LOST = "FollowedObjectLost"
    SUPERSEDED = "Superseded"


class EventAction(StrEnum):
    """What was done."""

    CREATE = "Create"
    FINISH = "Finish"
    KEEP = "Keep"
    DELETE = "Delete"


def outcome(kind: Kind[Any], meta: ObjectMeta, end: End) -> Report:
    """Tell how a request ended, in the words of its condition."""
    return Report(about(kind, meta), end.reason, EventAction.FINISH, end.message, warning=not end.succeeded)


def made(kind: Kind[Any], meta: ObjectMeta, reason: EventReason, name: str, *, waits_for: str = "") -> Report:
    """Tell a request what was made for it."""
    what = reason.removesuffix("Created").lower()
    rest = f"; it waits for {waits_for}" if waits_for else ""
    return Report(about(kind, meta), reason, EventAction.CREATE, f"made the {what} {name}{rest}")


def held(regarding: Regarding, *, why: str, until: str | None) -> Report:
    """Tell that something would have been deleted."""
    reason = f" ({why})" if why else ""
    end = f" until {until}" if until else ""
    return Report(
        regarding, EventReason.HELD_FROM_DELETION, EventAction.KEEP, f"due for deletion, but held{reason}{end}"
    )


def invalid_ttl(regarding: Regarding) -> Report:
    """Tell that something stays because nobody can say when it is due."""
    note = "its TTL cannot be read, so it is kept"
    return Report(regarding, EventReason.INVALID_TTL, EventAction.KEEP, note, warning=True)
