"""Lapse: everything temporary, ended on time, and only on time.

The library's front door. ``lapse.open_keys`` opens an expiring key store for blocking code, ``lapse.open_keys_async``
the same store for an event loop. Nothing else is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.core.moved import install as _let_old_names_work

__version__ = "0.1.0"
__all__ = ["LapseError", "__version__", "open_keys", "open_keys_async"]

if TYPE_CHECKING:
    from lapse.core.errors import LapseError
    from lapse.keys.aio import open_keys_async
    from lapse.keys.store import open_keys

_HOMES = {"LapseError": "lapse.core.errors", "open_keys": "lapse.keys.store", "open_keys_async": "lapse.keys.aio"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the types are those of the imports above
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


_let_old_names_work()
