"""The journal: the port, its implementations, and which changes of a verdict are written."""

from __future__ import annotations

from lapse.core.moved import old_names

__getattr__ = old_names(__name__)
