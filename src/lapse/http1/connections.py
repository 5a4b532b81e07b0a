"""Connection limit of a listener: how many there are, and which one has to go for another. Pure.

When there are too many, the oldest connection that waits for a request is ended, and the new one takes its place. So
connections that are opened and left alone cannot keep anybody out: one that sends its request at once is served. Only
when each of them is at work is the new one refused.

Not guaranteed: an order between peers that share an address, such as all users of one machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class AdmittedConnection(Protocol):
    """What is asked of a connection."""

    @property
    def waits_for_request(self) -> bool:
        """Whether ending it now breaks no request off."""
        ...

    def close(self) -> None:
        """End it."""
        ...


One = TypeVar("One", bound=AdmittedConnection)


class ConnectionLimit(Generic[One]):
    """The connections that were admitted, oldest first. A limit of 0 is none."""

    def __init__(self, most: int, most_per_peer: int) -> None:
        """Begin with none."""
        self._most, self._most_per_peer = most, most_per_peer
        self._peers: dict[One, str] = {}
        self._of_peer: dict[str, dict[One, None]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._peers)

    def admit(self, one: One, peer: str) -> bool:
        """Count a connection, and return True; False when there is no room, and none can be made."""
        same = self._of_peer.get(peer, {})
        if 0 < self._most_per_peer <= len(same):
            made_room = self._end_one(same)
        else:
            made_room = not 0 < self._most <= len(self._peers) or self._end_one(self._peers)
        if made_room:
            self._peers[one] = peer
            self._of_peer.setdefault(peer, {})[one] = None
        return made_room

    def release(self, one: One) -> None:
        """Count a connection no longer. Idempotent."""
        peer = self._peers.pop(one, None)
        if peer is not None:
            same = self._of_peer[peer]
            del same[one]
            if not same:
                del self._of_peer[peer]

    def replace(self, one: One, other: One) -> None:
        """Count ``other`` instead: it is the same connection with another use."""
        peer = self._peers.get(one)
        if peer is not None:
            self.release(one)
            self._peers[other] = peer
            self._of_peer.setdefault(peer, {})[other] = None

    def _end_one(self, among: Iterable[One]) -> bool:
        for one in among:
            if one.waits_for_request:
                self.release(one)
                one.close()
                return True
        return False
