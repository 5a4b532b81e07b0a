"""Limits of the proxy, with their defaults: sizes, numbers and times.

Time limits of a connection are looked at once per ``sweep_seconds``, all connections together, so each may be exceeded
by that much. No timer runs per connection: a thousand idle ones cost nothing in between.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lapse.core.errors import UsageError


class LimitError(UsageError, ValueError):
    """The proxy's limit {name} must be more than 0, not {given}."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What a client or a workspace may take. Bytes and seconds."""

    head_bytes: int = 32_768
    """Of a request's or a response's head; more is 431, or 502."""
    fields: int = 100
    """Header fields of a head."""
    body_bytes: int = 1_073_741_824
    """Of a request's body; more is 413. A response may be as long as it likes."""
    head_seconds: float = 10.0
    """From a request's first byte (or the connection) to the end of its head; then 408."""
    keep_seconds: float = 75.0
    """A connection without a request is closed after this."""
    idle_seconds: float = 300.0
    """A request or a response under way of which no byte moves is given up after this."""
    connect_seconds: float = 5.0
    """For a connection to the workspace; then 504."""
    answer_seconds: float = 120.0
    """From the end of a request to the beginning of its response; then 504."""
    linger_seconds: float = 2.0
    """How long the rest of a refused body is read and thrown away, so that the client gets to see the response."""
    write_seconds: float = 60.0
    """A client that takes nothing of a response that is complete is given up after this."""
    informations: int = 100
    """Interim responses such as 103 Early Hints before the one that counts; more is 502."""
    connections: int = 4096
    """Connections of clients, websockets included; beyond, the one that waits longest without a request has to go.
    0 is no limit."""
    connections_per_peer: int = 1024
    """The same for one address."""
    half_seconds: float = 30.0
    """How long one side of a websocket may go on after the other has ended its own."""
    wake_seconds: float = 60.0
    """How long a websocket waits for its workspace to come up; then 503."""
    retry_seconds: int = 2
    """When to ask again for a workspace that comes up."""
    sweep_seconds: float = 1.0
    """How often connections are looked at."""
    spare: int = 32
    """Connections kept open to one workspace between requests."""
    spare_seconds: float = 4.0
    """For how long: less than the five seconds after which common servers end theirs."""

    def __post_init__(self) -> None:
        """Refuse what would stop all work."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not (value > 0 or (value == 0 and each.name.startswith("connections"))):
                raise LimitError(name=each.name, given=value)
