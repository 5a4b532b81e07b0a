"""Requests and what they made on a running Lapse, for commands that work on the objects of any place.

What a command reads and makes goes over the HTTP API, object by object; what people are shown of one is what the server
says of it. Nothing can be followed there: who waits for an object asks for it again and again.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lapse.cli.context import Context
from lapse.cli.remote import read_pages
from lapse.client.errors import RemoteError
from lapse.client.nouns import NoRouteError
from lapse.kube.errors import ConflictError, ForbiddenError, NotFoundError
from lapse.kube.resources import NO_LABELS, Page
from lapse.requests.addresses import Located, short_name
from lapse.requests.api.kinds import CAPTURE_SCHEDULE
from lapse.requests.view import details_of, typed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lapse.cli.context import Work
    from lapse.cli.flags import Flags
    from lapse.client import AsyncClient
    from lapse.core.believed_clock import BelievedClock
    from lapse.core.clock import Clock
    from lapse.kube.resources import Json, Kind, ObjectKey
    from lapse.objects.port import ObjectStore
    from lapse.requests.lifecycle.policy import TTLRule
    from lapse.requests.view import ObjectDetails
    from lapse.settings import LoadedSettings

T = TypeVar("T")


class RemoteObjects:
    """The part of an object store that commands need, over HTTP."""

    def __init__(self, client: AsyncClient, clock: Clock, rule: TTLRule) -> None:
        """Ask ``client``; what it tells in another form is shown by ``clock`` and ``rule``."""
        self._client, self._clock, self._rule = client, clock, rule

    async def get(self, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - an object of ``kind``
        """See `lapse.objects.port.Reader`; of a kind that the API does not have, nothing is known."""
        return typed(kind, _document(kind, await self.details(Located(kind, key))))

    async def list(
        self, kind: Kind[Any], *, namespace: str | None = None, labels: Mapping[str, str] = NO_LABELS
    ) -> Page[Any]:
        """See `lapse.objects.port.Reader`; all pages, which need not show one moment."""
        found = [typed(kind, _document(kind, one)) for one in await self.all_details(kind, namespace)]
        wanted = labels.items()
        return Page(tuple(one for one in found if wanted <= one.metadata.labels.items()), "")

    async def create(self, kind: Kind[Any], obj: Json) -> Any:  # noqa: ANN401 - an object of ``kind``
        """See `lapse.objects.port.ObjectStore`."""
        if kind is CAPTURE_SCHEDULE:
            return typed(kind, (await self._client.schedules.create(obj)).object)
        return typed(kind, _document(kind, await self._client.requests.create(short_name(kind), obj)))

    async def patch(
        self,
        kind: Kind[Any],
        key: ObjectKey,
        changes: Json,
        *,
        uid: str | None = None,
        version: str | None = None,
    ) -> Any:  # noqa: ANN401 - an object of ``kind``
        """See `lapse.objects.port.ObjectStore`: of schedules, the spec."""
        place, tag = Located(kind, key), None if version is None else f'"{version}"'
        try:
            return typed(kind, (await self._client.schedules.edit(str(place), changes["spec"], if_match=tag)).object)
        except RemoteError as error:
            if error.status != HTTPStatus.PRECONDITION_FAILED:
                raise
            raise ConflictError(kind=kind.kind, name=key.name, problem="it has changed meanwhile") from error

    async def details(self, place: Located) -> ObjectDetails:
        """Return what the server says of an object. Raises `NotFoundError`, and `ForbiddenError` for a foreign kind."""
        if place.kind is CAPTURE_SCHEDULE:
            return await self._schedule(str(place))
        try:
            return await self._client.requests.show(str(place))
        except NoRouteError as error:
            raise ForbiddenError(problem=str(error)) from error

    async def all_details(self, kind: Kind[Any], namespace: str | None) -> Sequence[ObjectDetails]:
        """Return what the server says of all objects of a kind; of schedules, one by one."""
        if kind is CAPTURE_SCHEDULE:
            found = await read_pages(partial(self._client.schedules.list, namespace=namespace), limit=0)
            shown = []
            for one in found.items:
                with suppress(NotFoundError):  # it is gone since it was listed
                    shown.append(await self._schedule(one.address))
            return shown
        page = partial(self._client.requests.list, short_name(kind), namespace=namespace)
        return (await read_pages(page, limit=0)).items

    async def _schedule(self, address: str) -> ObjectDetails:
        """Return a schedule as any other object is shown: it has lists of its own over HTTP, which tell of runs."""
        shown = await self._client.schedules.show(address)
        return details_of(CAPTURE_SCHEDULE, shown.object, now=self._clock.wall_ns(), rule=self._rule)


def _document(kind: Kind[Any], found: ObjectDetails) -> Json:
    if found.object is None:
        raise ForbiddenError(problem=f"this token shows no documents, and that of {kind.kind} {found.name} is needed")
    return found.object


class RemoteContext(Context):
    """A running Lapse, for one command; only its objects can be had."""

    is_remote = True

    def __init__(self, loaded: LoadedSettings, stack: AsyncExitStack, client: AsyncClient) -> None:
        """Ask ``client``."""
        super().__init__(loaded, stack)
        self.client = client
        self.objects = RemoteObjects(client, self.machine, self.request_ttl)

    @property
    def clock(self) -> BelievedClock:
        """The time of this machine."""
        return self._believed

    @property
    def name(self) -> str:
        """The place, for messages."""
        return str(self.client.server)

    @property
    def store(self) -> ObjectStore:
        """Objects of the server, to be read and made one by one."""
        return cast("ObjectStore", self.objects)


def at_server(flags: Flags, work: Work[T]) -> Callable[[AsyncClient], Awaitable[T]]:
    """Return what does the work of a command on a server instead."""

    async def run(client: AsyncClient) -> T:
        async with AsyncExitStack() as stack:
            return await work(RemoteContext(flags.load(), stack, client))

    return run
