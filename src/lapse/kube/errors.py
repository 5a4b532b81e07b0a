"""Errors of an object store, sorted by what they mean for a controller.

The split that matters: `StoreUnavailableError` says nothing about the world (a timeout, an overload, a server that is
being restarted), so nobody may conclude anything from it; look again later. All others are answers. Not being known to
the server (`UnauthenticatedError`) is of the first sort: a token that ran out says nothing about any object, and must
not end a request as a right that is missing (`ForbiddenError`) does.
"""

from __future__ import annotations

from typing import Final

from lapse.core.errors import LapseError, UsageError

_LONGEST_WAIT_SECONDS: Final = 60.0


class ObjectError(LapseError):
    """The object store could not do what was asked."""


class NotFoundError(ObjectError):
    """There is no {kind} {name}."""

    status = 404


class AlreadyExistsError(ObjectError):
    """There is a {kind} {name} already."""

    status = 409


class ConflictError(ObjectError):
    """The {kind} {name} is not the one that was read: {problem}. Read it again and decide again."""

    status = 412


class InvalidError(ObjectError):
    """The {kind} {name} is not valid: {problem}."""

    status = 422


class ForbiddenError(ObjectError):
    """The store does not allow it: {problem}."""


class UnknownKindError(ObjectError):
    """The store does not know the kind {kind} of {api_version}."""


class NoSuchKindError(UsageError):
    """There is no kind {given} in {place}. Expected {known}."""


class GoneError(ObjectError):
    """The changes since version {version} are no longer kept. List again and watch from there."""

    status = 410


class StoreUnavailableError(ObjectError):
    """The object store cannot be used now: {problem}. Nothing can be concluded from that."""

    status = 503

    @property
    def retry_after(self) -> float | None:
        """After how many seconds the store wants to be asked again, if it said so."""
        found = self.details.get("retry_after")
        return found if isinstance(found, float) else None


def asked_to_wait(error: Exception | None) -> float:
    """Return how many seconds the store wants to be left alone, with a bound: a server cannot send us away for good."""
    told = error.retry_after if isinstance(error, StoreUnavailableError) else None
    return min(told or 0.0, _LONGEST_WAIT_SECONDS)


class UnauthenticatedError(StoreUnavailableError):
    """The API server does not accept the credentials: {problem}. Renew those of the kubeconfig or service account."""


class CredentialsError(StoreUnavailableError):
    """There are no credentials to show to the API server: {problem}."""


class KubeConfigError(UsageError):
    """The Kubernetes configuration cannot be used: {problem}."""
