"""Keys in order, made when somebody asks for it.

Keys lie in chunks by range; a chunk is sorted when it is read, if keys were added to it since. So a page costs its own
length plus the chunk at hand, never a sort of everything, and a store that is never scanned pays nothing. Keys that
were removed are skipped on reading and dropped when their chunk is tidied. A balanced structure that keeps order at
every write (sortedcontainers) made each insert twice as dear for a question that most stores are never asked.

Not thread-safe: the owner holds a lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

_CHUNK: Final = 2_048


class OrderedKeys:
    """The keys of one partition by range, as of its creation plus every `add` since."""

    __slots__ = ("_bounds", "_chunks", "_dirty", "entries")

    def __init__(self, keys: Mapping[str, object]) -> None:
        self.entries = len(keys)
        """Keys held here, removed ones included: the owner drops this object when they outnumber the live ones."""
        # Every n-th key is a fair sample: insertion order says nothing about key order, and uneven chunks are split
        # later.
        self._bounds = sorted(islice(keys, _CHUNK, None, _CHUNK))
        self._chunks: list[list[str]] = [[] for _ in range(len(self._bounds) + 1)]
        for key in keys:
            self._chunks[bisect_right(self._bounds, key)].append(key)
        self._dirty = set(range(len(self._chunks)))

    def add(self, key: str) -> None:
        """Take note of a key that was not in the partition before."""
        at = bisect_right(self._bounds, key)
        self._dirty.add(at)  # first: a chunk that is marked for nothing does no harm when this is interrupted
        self._chunks[at].append(key)
        self.entries += 1

    def from_key(self, start: str, present: Container[str]) -> Iterator[str]:
        """Iterate over the keys from ``start`` on, in order; some may no longer be ``present``."""
        at = bisect_right(self._bounds, start)
        while at < len(self._chunks):
            if at in self._dirty:
                self._tidy(at, present)
            chunk = self._chunks[at]
            yield from islice(chunk, bisect_left(chunk, start), None)
            at += 1

    def _tidy(self, at: int, present: Container[str]) -> None:
        """Sort a chunk, drop what is gone or double, and split it while it is too long."""
        tidy = sorted({key for key in self._chunks[at] if key in present})
        self.entries -= len(self._chunks[at]) - len(tidy)
        pieces = [tidy[i : i + _CHUNK] for i in range(0, len(tidy), _CHUNK)] or [[]]
        self._chunks[at : at + 1] = pieces
        self._bounds[at:at] = [piece[0] for piece in pieces[1:]]
        added = len(pieces) - 1
        self._dirty = {i + added if i > at else i for i in self._dirty if i != at}
