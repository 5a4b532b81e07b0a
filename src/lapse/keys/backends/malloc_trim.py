"""Gives freed memory back to the operating system, where the C library must be asked to.

A table of a million entries is one block of the C heap. After it was freed, glibc keeps such blocks for later
unless they lie at the very end of the heap, so a store that has shrunk would look as large as ever from outside.
``malloc_trim`` takes milliseconds and needs no Python, so other threads run meanwhile. Elsewhere than on glibc this
does nothing.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _find() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


_trim = _find()


def return_free_memory() -> None:
    """Ask the C library to return what it does not use."""
    if _trim is not None:
        _trim(0)
