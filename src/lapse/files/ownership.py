"""Ownership of files: whether another user of the machine decides what is in a file or folder, and who this user is.

What a file says can lead to a program that is run, so a file that another user owns or may write is that user's word.
Root is trusted, as root can do everything anyway.
"""

from __future__ import annotations

import os
import pwd
import stat

from lapse.core.errors import LapseError


class StateFolderError(LapseError):
    """The state folder {path} cannot be used: {problem}. Name another one as state_dir, or set LAPSE_STATE_DIR."""


def user_name() -> str | None:
    """Return the name of the user of this process; None where it has none, as in some containers.

    Not from the environment, which says what its user wants: persons are told apart by it.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None


def distrust(found: os.stat_result) -> str | None:
    """Return why another user decides about what ``found`` is about, to stand behind its name; None if none does."""
    if found.st_uid not in {os.geteuid(), 0}:
        return "belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return None
