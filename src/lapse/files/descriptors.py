"""The limit of open files and connections of this process.

Systems give a process few by default (often 1024) and let it take more by itself. A process that serves connections
does; a program that it starts gets what this process was given, because old ones become slow or break with more.
"""

from __future__ import annotations

import resource

_given = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> int:
    """Raise the limit of this process as far as it may, and return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def given_limit() -> int:
    """Return the limit with which this process was started."""
    return _given
