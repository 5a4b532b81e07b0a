"""Where the commands for requests work: the object store of the state folder, open for one command.

The process that runs `lapse up` and every command share the file, so a command needs no server; what it asks for is
carried out by `lapse up`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lapse.app.state_folder import open_store
from lapse.cli.flags import Flags
from lapse.core.believed_clock import BelievedClock
from lapse.core.clock import SystemClock
from lapse.core.errors import LapseError
from lapse.kube.errors import InvalidError, NotFoundError
from lapse.kube.resources import Document, Json, Kind, ObjectKey
from lapse.objects.embedded import EmbeddedStore
from lapse.requests.addresses import Located, keeper_name
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS, ObjectKeeper
from lapse.requests.lifecycle.policy import TTLRule
from lapse.requests.view import Summary, summarise

T = TypeVar("T")


class StateFolderError(LapseError):
    """The folder {path} cannot be used: {problem}. Name another one with --state-dir or LAPSE_STATE_DIR."""


@dataclass(frozen=True)
class Desk:
    """An open store, and what is needed to read it for people."""

    store: EmbeddedStore
    clock: BelievedClock
    rule: TTLRule
    folder: Path

    async def read(self, place: Located) -> Any:  # noqa: ANN401 - an object of the kind that the place names
        """Return one object; raises `NotFoundError`."""
        return await self.store.get(place.kind, place.key)

    async def read_or_none(self, kind: Kind[Any], key: ObjectKey) -> Any:  # noqa: ANN401 - an object of ``kind``
        """Return one object, None if it is not there."""
        try:
            return await self.store.get(kind, key)
        except NotFoundError:
            return None

    async def document(self, place: Located) -> Json:
        """Return one object with everything that is stored of it, also what its type does not know."""
        found = await self.store.get(replace(place.kind, type=Document), place.key)
        return place.kind.body(found)

    async def keeper_of(self, place: Located, uid: str) -> ObjectKeeper | None:
        """Return the keeper of a request, if there is one."""
        if place.kind not in REQUEST_KINDS:
            return None
        found: ObjectKeeper | None = await self.read_or_none(
            OBJECT_KEEPER, ObjectKey(None, keeper_name(place.kind.short, uid))
        )
        return found

    def summary(self, kind: Kind[Any], obj: Any) -> Summary:  # noqa: ANN401 - an object of ``kind``
        """Look at one object as it is now."""
        return summarise(kind, obj, now=self.clock.wall_ns(), rule=self.rule)


def typed(kind: Kind[Any], body: Json) -> Any:  # noqa: ANN401 - an object of ``kind``
    """Read a whole document as its kind."""
    try:
        return kind.convert(body)
    except msgspec.ValidationError as error:
        raise InvalidError(kind=kind.kind, name=body["metadata"]["name"], problem=str(error)) from error


def at_desk(flags: Flags, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
    """Do some work on the store of the state folder, and close it."""
    settings = flags.load().settings
    return asyncio.run(with_store(settings.state_dir, TTLRule(settings.request_ttl), work))


async def with_store(folder: Path, rule: TTLRule, work: Callable[[Desk], Coroutine[Any, Any, T]]) -> T:
    """Do some work on the store of a folder, and close it."""
    clock = BelievedClock(SystemClock())
    try:
        store = open_store(folder, clock=clock)
    except OSError as error:
        raise StateFolderError(path=folder, problem=error.strerror or str(error)) from error
    try:
        return await work(Desk(store, clock, rule, folder))
    finally:
        await store.close()
