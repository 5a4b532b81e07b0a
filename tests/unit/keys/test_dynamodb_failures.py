from __future__ import annotations

import pytest
from aiohttp import ClientConnectorError, ClientOSError
from aiohttp.client_reqrep import ConnectionKey
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
    SSLError,
)

from lapse.keys.backends.dynamodb.failures import FailureKind, understand

URL = "http://127.0.0.1:8000/"
KEY = ConnectionKey("127.0.0.1", 8000, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)


def answer(code: str, status: int = 400, message: str = "") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutItem"
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("ConditionalCheckFailedException"), FailureKind.CONDITION),
        (answer("ProvisionedThroughputExceededException"), FailureKind.BUSY),
        (answer("ThrottlingException"), FailureKind.BUSY),
        (answer("TransactionConflictException"), FailureKind.BUSY),
        (answer("InternalServerError", 500), FailureKind.DOUBTFUL),
        (answer("ServiceUnavailable", 503), FailureKind.DOUBTFUL),
        (answer("", 502), FailureKind.DOUBTFUL),
        (answer("ResourceNotFoundException"), FailureKind.NO_TABLE),
        (answer("ValidationException"), FailureKind.MISFIT),
        (answer("AccessDeniedException"), FailureKind.REFUSED),
        (answer("SomethingNewException"), FailureKind.REFUSED),
        (NoCredentialsError(), FailureKind.REFUSED),
        (ConnectTimeoutError(endpoint_url=URL), FailureKind.REFUSED),
        (SSLError(endpoint_url=URL, error="certificate"), FailureKind.REFUSED),
        (
            EndpointConnectionError(endpoint_url=URL, error=ClientConnectorError(KEY, OSError(111, "no"))),
            FailureKind.REFUSED,
        ),
        # The same class of error, but the request had been sent.
        (EndpointConnectionError(endpoint_url=URL, error=ClientOSError(104, "reset")), FailureKind.DOUBTFUL),
        (ReadTimeoutError(endpoint_url=URL), FailureKind.DOUBTFUL),
        (ConnectionClosedError(endpoint_url=URL), FailureKind.DOUBTFUL),
        (RuntimeError("a mistake of the driver"), FailureKind.DOUBTFUL),
    ],
    ids=lambda value: value.name if isinstance(value, FailureKind) else type(value).__name__,
)
def test_an_error_means(error: Exception, kind: FailureKind) -> None:
    failure = understand(error)

    assert failure.kind is kind
    assert failure.cause is error


def test_a_message_of_the_server_is_not_repeated() -> None:
    message = "User: arn:aws:iam::123456789012:user/alice is not authorized to perform: dynamodb:PutItem"

    problem = understand(answer("AccessDeniedException", message=message)).problem

    assert problem == "the AWS credentials do not allow dynamodb:PutItem on this table (AccessDeniedException)"


@pytest.mark.parametrize(
    "error",
    [
        answer("RequestTimeTooSkewed"),
        answer("RequestExpired"),
        answer("InvalidSignatureException", message="Signature expired: 20261115T100000Z is now earlier than ..."),
        answer("InvalidSignatureException", message="Signature not yet current: 20261115T100000Z is still later ..."),
    ],
)
def test_a_signature_refused_for_its_time_is_a_matter_of_the_clock(error: ClientError) -> None:
    failure = understand(error)

    assert failure.kind is FailureKind.REFUSED
    assert "set the clock" in failure.problem


def test_any_other_refused_signature_is_a_matter_of_credentials() -> None:
    assert "credentials" in understand(answer("InvalidSignatureException", message="does not match")).problem
