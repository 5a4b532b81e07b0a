"""Calls of one server: a request of the API, and its answer as the struct that it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from lapse.client.errors import NotLapseError, NotTextError, TagFormError, read_problem, remote_error
from lapse.client.transport import NO_HEADERS
from lapse.engine.verbs.operations import API
from lapse.engine.view import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lapse.client.transport import ServerAnswer, ServerTransport
    from lapse.core.errors import LapseError

T = TypeVar("T")
SUCCESS: Final = range(200, 300)
_TAG: Final = re.compile(r'\*|"[!#-~]*"')


class ApiCalls:
    """See the module. Nothing is decided and nothing is kept here."""

    def __init__(self, transport: ServerTransport) -> None:
        """Send requests by ``transport``."""
        self._transport = transport

    async def send(
        self,
        method: str,
        target: str,
        told: type[T],
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> T:
        """Send a request under `API` and return what is answered; raises what the server says, as `remote_error`."""
        response = await self._transport.call(method, f"{API}{target}", body, headers)
        if response.status not in SUCCESS:
            raise self.error(response)
        try:
            return decode(response.content or b"null", told)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotLapseError(server=self._transport.server, problem="its answer has another form") from error

    async def get(self, path: str, told: type[T], **query: object) -> T:
        """Read something; of ``query`` what is None is left out."""
        given = {name: value for name, value in query.items() if value is not None}
        try:
            return await self.send("GET", f"{path}?{urlencode(given)}" if given else path, told)
        except UnicodeEncodeError as error:
            raise NotTextError from error

    async def change(
        self,
        method: str,
        path: str,
        told: type[T],
        body: Mapping[str, Any] | None = None,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
    ) -> T:
        """Change something, with If-Match only in the version that has this ETag; None in a body is left out."""
        headers = {"If-None-Match": "*"} if if_absent else {}
        if if_match is not None:
            if not _TAG.fullmatch(if_match):
                raise TagFormError
            headers["If-Match"] = if_match
        try:
            given = None if body is None else encode({name: one for name, one in body.items() if one is not None})
        except UnicodeEncodeError as error:
            raise NotTextError from error
        return await self.send(method, path, told, body=given, headers=headers)

    def error(self, response: ServerAnswer) -> LapseError:
        """Return what an answer without success says."""
        problem = read_problem(response.content)
        if problem is not None:
            return remote_error(problem)
        return NotLapseError(server=self._transport.server, problem=f"it answers with the status {response.status}")


def path_of(*parts: str) -> str:
    """Return a path, its parts percent-encoded; raises `NotTextError`."""
    try:
        return "".join(f"/{quote(one, safe='')}" for one in parts)
    except UnicodeEncodeError as error:
        raise NotTextError from error
