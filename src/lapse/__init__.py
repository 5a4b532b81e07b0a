"""Lapse: everything temporary, ended on time, and only on time.

The version below is the only place where it is written; the build reads it from here.
"""

from __future__ import annotations

__version__ = "0.1.0"
