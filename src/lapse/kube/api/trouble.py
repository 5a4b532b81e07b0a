"""What goes wrong between two machines, in words of ours: those of libraries name objects, and may quote headers."""

from __future__ import annotations

import ssl
from typing import Final

import aiohttp

from lapse.kube.api.connections import ConnectTimeoutError, NoConnectionError
from lapse.kube.errors import StoreUnavailableError

TROUBLE: Final = (aiohttp.ClientError, TimeoutError, OSError)
"""What calls and watches raise."""


def trouble(error: Exception, *, place: str, seconds: float, connect_seconds: float) -> StoreUnavailableError:
    """Say what went wrong on the way to ``place``, within which limits."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            problem = _distrust(place, error.certificate_error)
        case NoConnectionError(__cause__=ssl.SSLCertVerificationError() as cause):
            problem = _distrust(place, cause)
        case NoConnectionError(__cause__=OSError() as cause):
            problem = f"no connection to {place}: {cause.strerror or type(cause).__name__}"
        case aiohttp.ConnectionTimeoutError() | ConnectTimeoutError():
            problem = f"no connection to {place} within {connect_seconds:g} s"
        case TimeoutError():
            problem = f"no answer from {place} within {seconds:g} s"
        case aiohttp.ClientConnectorError():
            problem = f"no connection to {place}: {error.os_error.strerror or type(error.os_error).__name__}"
        case _:
            problem = f"the connection to {place} was cut ({type(error).__name__})"
    return StoreUnavailableError(problem=problem)


def cause_of(error: Exception) -> Exception | None:
    """Leave out causes that carry the request's headers with them."""
    return None if isinstance(error, aiohttp.ClientResponseError) else error


def _distrust(place: str, error: Exception) -> str:
    reason = getattr(error, "verify_message", "")
    return f"the certificate of {place} is not trusted: {reason or 'it cannot be verified'}"
