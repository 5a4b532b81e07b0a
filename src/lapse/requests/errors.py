"""Errors of the requests domain that come before a request is looked at."""

from __future__ import annotations

from lapse.core.errors import LapseError, UsageError


class PolicyError(UsageError, ValueError):
    """The setting {setting} cannot be {given}: expected {expected}."""


class DependencyMissingError(LapseError, TypeError):
    """{controller} cannot work without {dependency}: give it one when you build it."""


def require(controller: object, **dependencies: object) -> None:
    """Raise `DependencyMissingError` unless every dependency is there."""
    for name, dependency in dependencies.items():
        if dependency is None:
            raise DependencyMissingError(controller=type(controller).__name__, dependency=name)
