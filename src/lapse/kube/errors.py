"""What an object store can answer instead of an object, sorted by what it means for a controller.

The split that matters: `StoreUnavailableError` says nothing about the world (a timeout, an overload, a server that is
being restarted), so nobody may conclude anything from it; look again later. All others are answers.
"""

from __future__ import annotations

from lapse.core.errors import LapseError


class ObjectError(LapseError):
    """The object store could not do what was asked."""


class NotFoundError(ObjectError):
    """There is no {kind} {name}."""


class AlreadyExistsError(ObjectError):
    """There is a {kind} {name} already."""


class ConflictError(ObjectError):
    """The {kind} {name} is not the one that was read: {problem}. Read it again and decide again."""


class InvalidError(ObjectError):
    """The {kind} {name} is not valid: {problem}."""


class ForbiddenError(ObjectError):
    """The store does not allow it: {problem}."""


class UnknownKindError(ObjectError):
    """The store knows no kind {kind} of {api_version}."""


class GoneError(ObjectError):
    """The changes since version {version} are no longer kept. List again and watch from there."""


class StoreUnavailableError(ObjectError):
    """The object store cannot be used now: {problem}. Nothing can be concluded from that."""
