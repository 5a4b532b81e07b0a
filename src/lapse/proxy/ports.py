"""Ports of the proxy: directory, authenticator, waker, activity leases and access times.

Times and states of workspaces belong to their domain; the proxy is told where a workspace listens, or why it does not.
Everything here may be called by many requests at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from lapse.core.errors import LapseError
from lapse.workspaces import model
from lapse.workspaces.activity import port as activity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

WorkspaceId = model.WorkspaceId
ConnectionId = activity.ConnectionId
Ms = model.Ms


@dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """Where a workspace's program listens: the only place that requests for it ever go to."""

    host: str
    port: int
    path: str = ""
    """Of a unix socket, where the program has one; then host and port are not used."""
    secret: str = field(default="", repr=False)
    """By which the program knows that a request came through the proxy."""


class WorkspaceReadiness(StrEnum):
    """What a workspace can do with a request now."""

    READY = "ready"
    """It runs and listens at its address."""
    ASLEEP = "asleep"
    """It does not run (or not yet), and comes up when it is woken."""
    FAILED = "failed"
    """It does not run, and will not until a person has acted."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A workspace as the proxy sees it."""

    workspace: WorkspaceId
    owner: str
    condition: WorkspaceReadiness
    address: UpstreamAddress | None = None
    """Set when it is ready."""
    problem: str = ""
    """What the owner should know about a workspace that does not come up."""


class Directory(Protocol):
    """Finds workspaces by name. Called for every request, so whoever implements it remembers for a moment."""

    async def find(self, name: str) -> Destination | None:
        """Return the workspace of this name; None if there is none, or it is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class Visit:
    """A request as the authenticator sees it. ``fields`` are by lower-case name; repeated ones are joined."""

    method: str
    host: str
    target: str
    fields: Mapping[bytes, bytes]
    peer: str
    upgrade: bool

    def field(self, name: bytes) -> str:
        """Return a field's value; empty if there is none."""
        return self.fields.get(name, b"").decode("latin-1")


class Proof(StrEnum):
    """How a visitor proved who they are."""

    TOKEN = "token"  # noqa: S105 - the name of a way, no secret
    COOKIE = "cookie"
    """Sent by a browser whoever made it send the request, so the origin counts."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who proved who they are."""

    name: str
    proof: Proof
    token_id: str = ""
    """By which they did, also where a session was given for it."""


@dataclass(frozen=True, slots=True)
class DirectResponse:
    """A response of the proxy instead of the workspace's: a refusal, or the way to the sign-in."""

    status: int
    text: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class Authenticator(Protocol):
    """Finds out who sends a request. That only the owner gets in, and from which origin, `router` decides."""

    async def identify(self, visit: Visit) -> Visitor | DirectResponse:
        """Return who asks by bearer token or session cookie, or the response to send instead."""
        ...

    def still_admits(self, visitor: Visitor) -> bool:
        """Whether a visitor who was let in would be let in again: their token may have been revoked.

        Raises a `LapseError` when that cannot be found out.
        """
        ...


class GoingDownError(LapseError):
    """The workspace is being stopped at this moment; it starts again, because a user came."""


class Waker(Protocol):
    """Writes what an access means into the database."""

    async def wake(self, workspace: WorkspaceId) -> None:
        """Let the workspace run again (desired RUNNING by access). Calling it again while it comes up does no harm."""
        ...

    async def revive(self, workspace: WorkspaceId) -> bool:
        """Clear the error of a workspace that has failed, and let it run; return False if it stays as it is."""
        ...

    async def connected(self, workspace: WorkspaceId) -> None:
        """Write that a connection is there; done before the upgrade is accepted, so that a standby loses.

        Raises `GoingDownError` where one has won already. It is written all the same: the workspace comes up again.
        """
        ...


class ActivityLeases(Protocol):
    """Counts who is connected by leases; see `lapse.workspaces.activity.port`, whose port has these and more."""

    async def connect(self, workspace: WorkspaceId, connection: ConnectionId, *, lease_seconds: float) -> bool:
        """Begin a lease; return whether it is the only live one."""
        ...

    async def renew(
        self, connections: Mapping[ConnectionId, WorkspaceId], lease_seconds: float
    ) -> AbstractSet[ConnectionId]:
        """Renew all of them; return those that had ended."""
        ...

    async def disconnect(self, workspace: WorkspaceId, connection: ConnectionId, *, idle_seconds: float) -> bool:
        """End a lease; return whether it was the last, which sets the idle timer."""
        ...


class Access(Protocol):
    """Takes note that a workspace was used; called from where bytes flow, so it neither waits nor raises."""

    def __call__(self, workspace: WorkspaceId, moment: Ms, /) -> None:
        """Note an access."""
        ...
