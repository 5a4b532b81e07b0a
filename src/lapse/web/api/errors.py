"""Errors of HTTP requests, each with its status.

The docstring is the ``detail`` of the problem document. None of them repeats a value, a body or a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar

from lapse.core.errors import LapseError, UsageError
from lapse.engine.running.logins import LoginProof


class RequestError(LapseError):
    """The request cannot be served."""

    status: ClassVar[int] = 400
    headers: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        """Let a command end as for wrong usage where the request itself is wrong."""
        super().__init_subclass__()
        if cls.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}:
            cls.exit_code = UsageError.exit_code

    def answer_headers(self) -> Mapping[str, str]:
        """Return what stands in the head of the answer."""
        return self.headers


# --- who is asking, and from where -----------------------------------------------------------------------------------


class HostNotAllowedError(RequestError):
    """The Host header is not a name of this server; call it by its address, or add the name to http_allowed_hosts."""

    status = 403


class OriginNotAllowedError(RequestError):
    """The request comes from a page of another origin; only this server's own and http_allowed_hosts may call."""

    status = 403


class NotLoggedInError(RequestError):
    """The request carries neither a valid token nor a valid session."""

    proof: ClassVar[LoginProof | None] = None
    """What was wrong; None: nothing was given."""
    status = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class TokenMissingError(NotLoggedInError):
    """Send a token as Authorization: Bearer TOKEN. On this machine lapse tokens owner prints yours."""


class TokenInvalidError(NotLoggedInError):
    """The token is unknown or revoked."""

    proof = LoginProof.TOKEN
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer error="invalid_token"'}


class SessionInvalidError(NotLoggedInError):
    """The cookie is not a session of this server. lapse open prints a link that begins one."""

    proof = LoginProof.SESSION


class TicketUsedError(NotLoggedInError):
    """This link was used already, or is too old. lapse open prints a new one."""

    proof = LoginProof.TICKET


class TooManyFailuresError(NotLoggedInError):
    """Too many wrong tokens, links or sessions came from your address. Try again in {seconds} seconds.

    A right token is let in at any time.
    """

    status = 429

    def answer_headers(self) -> Mapping[str, str]:
        """Say when to try again."""
        return {"Retry-After": str(self.details["seconds"])}


class TooManyConnectionsError(RequestError):
    """There are too many connections, and all of them are at work. Try again later."""

    status = 503


class TooManyLargeBodiesError(RequestError):
    """Too many plans are being sent at once. Nothing was done; try again in a moment."""

    status = 503
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}


class TokensUnavailableError(RequestError):
    """Tokens cannot be checked now; the log says why. Try again later."""

    status = 503


class ScopeMissingError(RequestError):
    """The token does not allow this; it needs one of the scopes {wanted}."""

    status = 403
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}


class NotYourWorkspacesError(RequestError):
    """The token does not cover workspaces of this owner; nothing was changed."""

    status = 403


class WorkspacesNotServedError(RequestError):
    """Workspaces are not served here: other machines can call, and workspaces_beyond_loopback is false."""

    status = 403


# --- the shape of the request ----------------------------------------------------------------------------------------


class NotJSONError(RequestError):
    """A request that changes something must be JSON: send Content-Type: application/json."""

    status = 415


class ForgedFormError(RequestError):
    """This form was not sent from a page of this server, or that page is too old. Reload the page and try again."""

    status = 403


class InvalidFieldError(RequestError):
    """The form cannot be used: {problem}."""

    status = 422


class BodyTooLargeError(RequestError):
    """The body is larger than {limit} bytes."""

    status = 413


class HeadTooLargeError(RequestError):
    """The head of the request is too large: at most {limit} bytes, in at most {lines} header lines."""

    status = 431


class RequestTooSlowError(RequestError):
    """The {part} of the request was not complete within {seconds} seconds."""

    status = 408


class InvalidRequestError(RequestError):
    """The request does not have the expected form; see errors."""

    status = 422


class ContradictoryConditionsError(RequestError):
    """The conditions cannot be used together or here: {problem}."""


class NoSuchRouteError(RequestError):
    """There is no operation at this address. /api/v1/docs lists the operations."""

    status = 404


class MethodNotAllowedError(RequestError):
    """This address does not support this method. /api/v1/docs lists the operations."""

    status = 405


class UnknownParameterError(RequestError):
    """{given!r} is not a parameter of this address; valid ones: {valid}."""

    status = 422


class ConfirmationNeededError(RequestError):
    """history_ttl is not set, no pass has deleted by its default yet, and {count} would go: send confirm as true."""

    status = 409


class OwnerMissingError(RequestError):
    """The owner is missing, and the token is not for exactly one. Name one: --owner NAME, over HTTP the field owner."""

    status = 422


class NothingToChangeError(RequestError):
    """Say what to change: owner, command, port, standby_ttl_seconds, archive_ttl_seconds or probe."""

    status = 422


class MalformedRequestError(RequestError):
    """The request cannot be read."""


class TwoLengthsError(MalformedRequestError):
    """The request has Content-Length and Transfer-Encoding, so it is not certain where it ends. Send one of them."""

    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}


# --- the state of the world ------------------------------------------------------------------------------------------


class KeyAbsentError(RequestError):
    """There is no live key of this name."""

    status = 404


class PreconditionFailedError(RequestError):
    """The key is not in the state that the request expects; nothing was changed."""

    status = 412


class VersionChangedError(RequestError):
    """The object is not in the version that If-Match names; nothing was changed. Read it again."""

    status = 412


class TooManyStreamsError(RequestError):
    """Too many streams of events are open, in all or by this token. Close some, or try again later."""

    status = 503
    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "30"}


class StoppingError(RequestError):
    """The server is stopping, and the request did not arrive in time. Nothing was done; send it again."""

    status = 503


class CutOffError(RequestError):
    """The server stopped before this request was finished. Whether it was applied is unknown; read first."""

    status = 504


class InternalError(RequestError):
    """Something went wrong inside Lapse. The log has more under this instance."""

    status = 500
