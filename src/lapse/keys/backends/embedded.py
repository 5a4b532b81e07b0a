"""What embedded backends have in common: they answer at once, so their asynchronous half follows from the other."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable


class EmbeddedBackend(ABC):
    """Completes a `lapse.keys.port.Backend` whose work is done in this process."""

    @abstractmethod
    def check(self) -> None:
        """See `Backend`."""

    @abstractmethod
    def close(self) -> None:
        """See `Backend`."""

    def async_check(self) -> None:
        """See `Backend`. A look at an embedded store takes microseconds."""
        self.check()

    def async_close(self) -> Awaitable[None]:
        """See `Backend`. In a thread: closing may wait for the disk."""
        return asyncio.to_thread(self.close)
