"""The two ways in which a server can fail to be there: it cannot be had on this machine, or it does not run."""

from __future__ import annotations


class ServerMissingError(Exception):
    """{name} cannot be had here: {reason}."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be had here: {reason}")
        self.name = name
        self.reason = reason


class ServerFailedError(Exception):
    """The program is there, but it did not start, or it ended; the message holds the end of its log."""


class FetchError(Exception):
    """A package could not be fetched; the message says by what and why."""
