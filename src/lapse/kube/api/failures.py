"""Translation of an API server's refusals into `lapse.kube.errors`. Pure.

The translations that are not obvious, all seen on a real server:

- a kind that is not served is a 404 with plain text, an object that is not there a 404 with a Status;
- an answer of any other form does not come from an API server but from something in between. Nothing is concluded
  from it: a proxy's 404 must not count as 'gone', nor its 403 as a right that is missing;
- ``metadata.uid`` in a patch is a precondition, but a wrong one is answered as an invalid change of that field;
- an object above etcd's limit is a 500: it would fail for ever, so it is invalid and not a server that is ill;
- 'gone' is a status before a list and an event inside a watch that began well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    ObjectError,
    StoreUnavailableError,
    UnauthenticatedError,
    UnknownKindError,
)
from lapse.kube.resources import Struct

if TYPE_CHECKING:
    from lapse.kube.resources import Kind

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE, TOO_LARGE = 401, 403, 404, 409, 410, 413
_INVALID: Final = frozenset({400, 405, 406, TOO_LARGE, 415, 422})
_NO_SUCH_PATH: Final = b"404 page not found"
_TOO_LARGE: Final = ("request is too large", "trying to send message larger than max")
_LONGEST: Final = 1000
"""Characters of a server's message: some quote a whole schema."""


class Cause(Struct, frozen=True):
    """One reason of several."""

    field: str = ""
    message: str = ""


class Details(Struct, frozen=True):
    """What a Status is about."""

    name: str = ""
    kind: str = ""
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int = 0


class ApiStatus(Struct, frozen=True):
    """How an API server says no."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


def read_status(content: bytes) -> ApiStatus | None:
    """Read a refusal; None when it is not an API server's."""
    try:
        status = msgspec.json.decode(content, type=ApiStatus, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return status if status.kind == "Status" else None


def failure(
    code: int, content: bytes, *, kind: Kind[Any], name: object, uid: str | None = None, retry_after: str | None = None
) -> ObjectError:
    """Return the error that an answer means. ``name`` is of what was asked for: an object, a version, a page."""
    status = read_status(content)
    found = _foreign(code, content, kind, name) if status is None else _told(code, status, kind, name, uid=uid)
    if found is not None:
        return found
    problem = _message(status) if status is not None else "an answer that is not from an API server"
    return StoreUnavailableError(problem=f"{code} {problem}", retry_after=_seconds(retry_after, status))


def _foreign(code: int, content: bytes, kind: Kind[Any], name: object) -> ObjectError | None:
    """Judge an answer that is no Status. It is not quoted: nobody knows what speaks there."""
    if code == NOT_FOUND and content.startswith(_NO_SUCH_PATH):
        return UnknownKindError(kind=kind.kind, api_version=kind.api_version)
    if code == UNAUTHORIZED:
        return UnauthenticatedError(problem="it gave no reason")
    if code == TOO_LARGE:
        return InvalidError(kind=kind.kind, name=name, problem="it is too large for a proxy before the API server")
    return None


def _told(code: int, status: ApiStatus, kind: Kind[Any], name: object, *, uid: str | None) -> ObjectError | None:
    """Judge a Status; None when it proves nothing."""
    about: dict[str, object] = {"kind": kind.kind, "name": name, "problem": _message(status)}
    errors: dict[int, type[ObjectError]] = {
        UNAUTHORIZED: UnauthenticatedError,
        FORBIDDEN: ForbiddenError,
        CONFLICT: AlreadyExistsError if status.reason == "AlreadyExists" else ConflictError,
    }
    if code == GONE:
        return GoneError(version=name)
    if code == NOT_FOUND:
        return _not_found(status, kind, name)
    if code in _INVALID or any(sign in status.message for sign in _TOO_LARGE):
        return (ConflictError if uid is not None and _blames_uid(status) else InvalidError)(**about)
    return errors[code](**about) if code in errors else None


def _message(status: ApiStatus) -> str:
    return " ".join((status.message or status.reason or "no reason was given").split())[:_LONGEST]


def _not_found(status: ApiStatus, kind: Kind[Any], name: object) -> NotFoundError:
    """Name what is missing: for a creation it is not the object but its namespace."""
    details = status.details or Details()
    if details.kind == "namespaces" and kind.plural != "namespaces":
        return NotFoundError(kind="Namespace", name=details.name)
    return NotFoundError(kind=kind.kind, name=name)


def _blames_uid(status: ApiStatus) -> bool:
    causes = (status.details or Details()).causes or ()
    return any(cause.field == "metadata.uid" for cause in causes)


def _seconds(header: str | None, status: ApiStatus | None) -> float | None:
    if header is not None and header.strip().isdecimal():
        return float(header)
    told = 0 if status is None else (status.details or Details()).retry_after_seconds
    return float(told) if told else None
