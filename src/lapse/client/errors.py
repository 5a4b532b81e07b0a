"""Errors of the client: of the way to a server, and those that the server answers with.

What the server raised is raised here as the same class, if that is known in this process: ``except NothingThereError``
works on a server as it does on a state folder. Otherwise it is a `RemoteError`, which every one of them is. No message
holds a token, and none repeats what was sent.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from lapse.core.errors import LapseError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_SHOWN: Final = 2000
_USAGE: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


class ServerAddressError(UsageError):
    """{given} is not the address of a server: {problem}. Expected one such as https://lapse.example.org."""


class TokenInTheClearError(UsageError):
    """A token is not sent to {server} without TLS, where others could read it. Name an https:// address."""


class TokenFormError(UsageError):
    """This is no token: it is empty, or has characters that none has. Expected what lapse tokens create printed."""


class NotTextError(UsageError):
    """What is asked holds characters that are no valid Unicode, so it cannot be sent."""


class TagFormError(UsageError):
    """This is no ETag: it must stand in double quotes, as the etag of what was shown does, or be an asterisk."""


class ServerUnreachableError(LapseError):
    """{server} cannot be reached: {problem}. See whether it runs, and whether the address is right."""


class CertificateNotTrustedError(ServerUnreachableError):
    """{server} cannot be reached: its certificate is not trusted: {problem}. Nothing was sent.

    If its authority is your own, name the file with that authority's certificate: LAPSE_CA_FILE=FILE, or once with
    lapse login URL --ca-file FILE; in Python as tls of the client.
    """


class TrustFileError(UsageError):
    """The certificate {file}, which says whom to trust, cannot be used: {problem}. Expected one in PEM form."""


class AnswerMissingError(LapseError):
    """{server} has not answered: {problem}. Whether it did what was asked is not known; look before you ask again."""


class NotLapseError(LapseError):
    """{server} does not answer as Lapse does: {problem}. See whether the address is right."""


class AnsweredProblem(Struct, frozen=True):
    """A problem document, as far as it is read here."""

    detail: str
    code: str
    status: int
    errors: Annotated[list[dict[str, str]], Meta(description="Where a request has another form than expected")] = []


class RemoteError(LapseError):
    """What a server answered instead of a result."""

    def __init__(self, problem: AnsweredProblem) -> None:
        """Be what the document says."""
        self.problem = problem
        places = "; ".join(f"{one.get('where', '')}: {one.get('problem', '')}" for one in problem.errors)
        told = " ".join(filter(None, (problem.detail, places)))[:_MOST_SHOWN]
        Exception.__init__(self, "".join(one if one.isprintable() else " " for one in told))  # it goes to a terminal
        self.details: dict[str, object] = {}
        vars(self).update(code=problem.code, status=problem.status)  # of the class otherwise

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling: the class may be made for this error."""
        return remote_error, (self.problem,)


class RemoteUsageError(RemoteError, UsageError):
    """What was asked is wrong, for a reason that is not known here; a newer server may have it."""


def remote_error(problem: AnsweredProblem) -> RemoteError:
    """Return a problem as an error of the class that it had on the server, if that is known here."""
    known = next((one for one in _all_kinds(LapseError) if one.code == problem.code), None)
    if known is not None:
        return _remote(known, is_usage=problem.status in _USAGE)(problem)
    return RemoteUsageError(problem) if problem.status in _USAGE else RemoteError(problem)


def read_problem(content: bytes) -> AnsweredProblem | None:
    """Return a problem document; None for anything else."""
    try:
        return msgspec.json.decode(content, type=AnsweredProblem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _remote(known: type[LapseError], *, is_usage: bool) -> type[RemoteError]:
    """Return a class of its own; what is wrong for a server is wrong usage, whether or not its class is one of that."""
    code = UsageError.exit_code if is_usage else known.exit_code
    return type(known.__name__, (RemoteError, known), {"__doc__": known.__doc__, "exit_code": code})


def _all_kinds(parent: type[LapseError]) -> Iterator[type[LapseError]]:
    for kind in parent.__subclasses__():
        if not issubclass(kind, RemoteError):
            yield kind
            yield from _all_kinds(kind)
