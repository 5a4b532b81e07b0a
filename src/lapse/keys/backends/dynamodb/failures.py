"""Failures of DynamoDB requests: whether one may have been applied, and whether to ask again.

The rule behind it: a request that never left this machine, or that the server refused with a 4xx, changed nothing.
After a lost connection, a time-out or a 5xx nobody knows: DynamoDB's 5xx also come for writes that were applied.

Nothing here repeats a driver's message: it may show names of users, roles and items. The driver's error is the cause.
"""

from __future__ import annotations

import socket
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from aiohttp import ClientConnectorError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
    TokenRetrievalError,
)


class FailureKind(Enum):
    """What follows from an error."""

    CONDITION = auto()
    """No error: the condition of a write did not hold."""
    BUSY = auto()
    """Refused because of load; nothing was applied, asking again helps."""
    DOUBTFUL = auto()
    """Perhaps applied. A read may be asked again, a write may not."""
    REFUSED = auto()
    """Nothing was applied; asking again does not help."""
    NO_TABLE = auto()
    """The table is not there."""
    EXISTS = auto()
    """What should be made is there already, or is being made."""
    MISFIT = auto()
    """The table is there and does not take our requests."""


class ForeignAnswerError(Exception):
    """An answer without the marks of DynamoDB: a proxy or a portal answered in its place."""


class Failure(NamedTuple):
    """An error, understood."""

    kind: FailureKind
    problem: str
    cause: BaseException | None = None


_BUSY: Final = frozenset({
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "Throttling",
    "ThrottledException",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionConflictException",
    "TransactionInProgressException",
})  # fmt: skip
_CREDENTIALS: Final = frozenset({
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
})  # fmt: skip
_SKEWED: Final = frozenset({"RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"})
_SKEWED_SIGNATURE: Final = ("signature expired", "signature not yet current")
_FORBIDDEN: Final = frozenset({"AccessDenied", "AccessDeniedException", "NotAuthorized"})
_SERVER_ERROR: Final = 500

_NO_CREDENTIALS: Final = (
    "no usable AWS credentials were found; expected them in the environment (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY), in a profile of ~/.aws, or from the role of this machine, container or pod"
)
_MEANT: Final = {
    "ConditionalCheckFailedException": Failure(FailureKind.CONDITION, "the condition did not hold"),
    "ResourceNotFoundException": Failure(FailureKind.NO_TABLE, "there is no such table"),
    "ResourceInUseException": Failure(FailureKind.EXISTS, "it is there already, or about to change"),
    "ValidationException": Failure(
        FailureKind.MISFIT, "its table does not take the requests of Lapse (ValidationException); see lapse keys init"
    ),
}
_LOST: Final = Failure(FailureKind.DOUBTFUL, "the connection was lost before the answer came")
_UNREACHABLE: Final = "its server cannot be reached: "
_NO_CREDENTIALS_ERRORS: Final = (
    *(NoCredentialsError, PartialCredentialsError, CredentialRetrievalError),
    *(TokenRetrievalError, NoAuthTokenError, ProfileNotFound),
)
_UNANSWERED: Final[tuple[tuple[Any, FailureKind, str], ...]] = (
    (_NO_CREDENTIALS_ERRORS, FailureKind.REFUSED, _NO_CREDENTIALS + " ({error})"),
    (ConnectTimeoutError, FailureKind.REFUSED, _UNREACHABLE + "no connection within connect_timeout"),
    (SSLError, FailureKind.REFUSED, _UNREACHABLE + "no TLS connection could be made"),
    (ProxyConnectionError, FailureKind.REFUSED, _UNREACHABLE + "the proxy did not connect"),
    (EndpointConnectionError, FailureKind.REFUSED, _UNREACHABLE + "no connection could be made"),
    (ReadTimeoutError, FailureKind.DOUBTFUL, "no answer came within the timeout"),
    (HTTPClientError, *_LOST[:2]),
    (
        ForeignAnswerError,
        FailureKind.DOUBTFUL,
        "an answer came that is not one of DynamoDB; check the endpoint and proxies",
    ),
    # All others of the driver's own arise before anything is sent.
    (BotoCoreError, FailureKind.REFUSED, "the driver could not send the request ({error})"),
)
"""The first that fits counts."""
_BAD_CLOCK: Final = (
    "the server refused the signature because the clock of this machine is minutes off; set the clock, or let NTP do it"
)


def understand(error: BaseException) -> Failure:
    """Return what an error of the driver means."""
    failure = _answered(error) if isinstance(error, ClientError) else _unanswered(error)
    return failure._replace(cause=error)


def date_of(answer: Any) -> str | None:  # noqa: ANN401 - what the driver returns, or the `response` of its error
    """Return the ``Date`` header of an answer."""
    date: str | None = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return date


def check_origin(answer: Any) -> None:  # noqa: ANN401 - what the driver returns
    """Raise `ForeignAnswerError` unless DynamoDB answered: the driver takes any page of HTML for an absent item."""
    if "RequestId" not in answer["ResponseMetadata"]:
        raise ForeignAnswerError


def _answered(error: ClientError) -> Failure:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _MEANT:
        return _MEANT[code]
    if code in _BUSY:
        return Failure(FailureKind.BUSY, f"it is busy ({code})")
    if status >= _SERVER_ERROR:
        return Failure(FailureKind.DOUBTFUL, f"it had an internal error ({status} {code})")
    return Failure(FailureKind.REFUSED, _refusal(code, str(error).lower(), error.operation_name))


def _refusal(code: str, message: str, operation: str) -> str:
    if code in _SKEWED or any(words in message for words in _SKEWED_SIGNATURE):
        return _BAD_CLOCK
    if code in _CREDENTIALS:
        return f"it refused the AWS credentials ({code}); check that they are right, active and not expired"
    if code in _FORBIDDEN:
        return f"the AWS credentials do not allow dynamodb:{operation} on this table ({code})"
    return f"it refused {operation} ({code})"


def _unanswered(error: BaseException) -> Failure:
    if isinstance(error, EndpointConnectionError) and not _never_connected(error):
        return _LOST
    for kinds, kind, problem in _UNANSWERED:
        if isinstance(error, kinds):
            return Failure(kind, problem.format(error=type(error).__name__))
    return Failure(FailureKind.DOUBTFUL, f"the driver failed ({type(error).__name__})")


def _never_connected(error: EndpointConnectionError) -> bool:
    # The driver gives the same error for a connection that was reset after the request had been sent.
    return isinstance(error.kwargs.get("error"), ClientConnectorError | socket.gaierror)
