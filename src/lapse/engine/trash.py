"""The trash: what was ended, and can be brought back for a while.

A domain's target puts a thing into its trash before or with the act that ends it (`TrashingTarget`), so whatever ends
it, a sweep, a pass, a plan or a person, does so in the same way. What lies there is an entry of a `Trash`, from which
people bring it back, or which they empty; `TrashBin` is all of them in one place. The trash of a domain ends by a TTL,
through the engine's executor, like anything else.

Guarantees. A thing that cannot be put into the trash, although it should be, is not ended. Bringing back can be
repeated: after an interruption the next call goes on. What is held stays in the trash.

Not guaranteed: that a thing which is brought back is the same to others. Objects come back, effects do not: it may have
a new uid, and what was done when it ended stays done. What somebody else ends never gets here.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Final, Protocol, runtime_checkable

import msgspec

from lapse.core.errors import LapseError, UsageError
from lapse.engine.view import Moment, ViewPage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from lapse.core.clock import UnixNs
    from lapse.engine.domain import Action, Result

UNDO_UNTIL: Final = "undo_until_ns"
"""In the details of a row: until when what was ended can be brought back."""
NOT_UNDOABLE: Final = "not_undoable"
"""In the details of a row: why what was ended does not come back."""
_PAGE: Final = 100


class NotInTrashError(LapseError):
    """{address} is not in the trash: nothing of that address was ended within trash_ttl, or it was brought back.

    See lapse trash list.
    """

    status = 404


class PlaceTakenError(LapseError):
    """{address} does not come back: another one has its place by now. Move or delete that one first, then undo."""

    status = 409


class TrashPositionError(UsageError):
    """{text!r} is not a position in the trash. Expected one as an answer of the trash names it."""


class TrashEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing in the trash."""

    id: Annotated[str, msgspec.Meta(description="Where it is kept: begins with the name of its trash")]
    address: str
    uid: str
    domain: str
    ended_at: Moment | None
    expires_at: Annotated[Moment | None, msgspec.Meta(description="When it leaves the trash for good")]
    bytes: Annotated[int | None, msgspec.Meta(description="What it costs until then; null where that is not known")]
    comes_back: Annotated[str, msgspec.Meta(description="How it comes back")]
    contains: Annotated[list[str], msgspec.Meta(description="Addresses of what comes back with it")] = msgspec.field(
        default_factory=list
    )
    held: Annotated[bool, msgspec.Meta(description="Whether it is held, and stays past its time")] = False

    def is_over(self, now: UnixNs) -> bool:
        """Whether its time in the trash is over, and whoever sweeps it has not come yet."""
        return not self.held and self.expires_at is not None and self.expires_at < now


class BroughtBack(msgspec.Struct, frozen=True, kw_only=True):
    """What came back."""

    address: str
    uid: str
    says: Annotated[str, msgspec.Meta(description="What is to be known about it")]


@runtime_checkable
class TrashingTarget(Protocol):
    """A `lapse.engine.domain.Target` that puts things into a trash before it ends them."""

    async def into_trash(self, actions: Sequence[Action], now: UnixNs) -> Sequence[Action | Exception]:
        """Put into the trash what goes there; return the acts that are to be carried out in their stead.

        Ends nothing, and can be repeated. An act may come back with details for the journal (`UNDO_UNTIL`,
        `NOT_UNDOABLE`) and another handle; an error in its place says why it must not be carried out.
        """
        ...


class Trash(Protocol):
    """What one part of the product has ended, and can bring back."""

    @property
    def name(self) -> str:
        """A word with which, and a slash, the ids of its entries begin."""
        ...

    def entries(self, *, after: str | None = None) -> AsyncGenerator[Sequence[TrashEntry], None]:
        """Yield what is there, in pages, in the order of their ids; ``after`` is the last one that was seen."""
        ...

    async def bring_back(self, entry: TrashEntry, *, by: str) -> BroughtBack:
        """Bring one back; raises `NotInTrashError`, `PlaceTakenError` and what the store raises."""
        ...

    async def empty(self, entries: Sequence[TrashEntry], *, by: str) -> Sequence[Result]:
        """End these for good, as a person's own deletions: held ones stay, and each has its row."""
        ...


class TrashBin:
    """Everything in the trash of one place: a running process, a state folder, a cluster."""

    def __init__(self, *trashes: Trash) -> None:
        """Ask these, in this order."""
        self._trashes = {one.name: one for one in trashes}

    async def page(
        self, *, domain: str | None = None, limit: int = _PAGE, after: str | None = None, now: UnixNs | None = None
    ) -> ViewPage[TrashEntry]:
        """Return some of what is there, or only of one domain; ``after`` is `ViewPage.next`.

        With ``now``, what is over then is left out. Raises `TrashPositionError`.
        """
        found: list[TrashEntry] = []
        async for page in self._entries(after):
            wanted = [one for one in page if domain in {None, one.domain}]
            found += [one for one in wanted if now is None or not one.is_over(now)]
            if len(found) > limit:
                return ViewPage(found[:limit], found[limit - 1].id)
        return ViewPage(found, None)

    async def find(self, address: str, *, uid: str | None = None) -> TrashEntry:
        """Return the entry of an address, of the thing itself or of one that comes back with it; the latest of several.

        Raises `NotInTrashError`.
        """
        found = await self.find_all([(address, uid)])
        if not found:
            raise NotInTrashError(address=address)
        return found[address, uid]

    async def find_all(self, wanted: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], TrashEntry]:
        """Return the entries of addresses and uids as `find` does, in one listing; what is not there is left out."""
        asked = set(wanted)
        found: dict[tuple[str, str | None], TrashEntry] = {}
        async for page in self._entries():
            for one in page:
                for address in (one.address, *one.contains):
                    for key in asked & {(address, None), (address, one.uid)}:
                        if key not in found or (one.ended_at or 0) > (found[key].ended_at or 0):
                            found[key] = one
        return found

    async def bring_back(self, entry: TrashEntry, *, by: str) -> BroughtBack:
        """Bring one back; see `Trash`."""
        return await self._of(entry).bring_back(entry, by=by)

    async def empty(
        self,
        *,
        by: str,
        domain: str | None = None,
        address: str | None = None,
        uid: str | None = None,
        uids: AbstractSet[str] | None = None,
        ended_before: UnixNs | None = None,
    ) -> list[tuple[TrashEntry, Result]]:
        """End for good what is there: of one domain, address, uid or of ``uids``, or what was ended before a time.

        Tells of each. The address may be that of the only thing that comes back with an entry; of several nobody named
        the others.
        """
        done: list[tuple[TrashEntry, Result]] = []
        async for page in self._entries():
            wanted = [
                one
                for one in page
                if domain in {None, one.domain}
                and (address in {None, one.address} or one.contains == [address])
                and uid in {None, one.uid}
                and (uids is None or one.uid in uids)
                and (ended_before is None or (one.ended_at is not None and one.ended_at < ended_before))
            ]
            if wanted:
                done += zip(wanted, await self._of(wanted[0]).empty(wanted, by=by), strict=True)
        return done

    async def _entries(self, after: str | None = None) -> AsyncGenerator[Sequence[TrashEntry], None]:
        names = list(self._trashes)
        first = None if after is None else _trash_of(after)
        if first is not None and first not in self._trashes:
            raise TrashPositionError(text=after)
        for name in names[0 if first is None else names.index(first) :]:
            async with aclosing(self._trashes[name].entries(after=after if name == first else None)) as pages:
                async for page in pages:
                    yield page

    def _of(self, entry: TrashEntry) -> Trash:
        try:
            return self._trashes[_trash_of(entry.id)]
        except KeyError:
            raise NotInTrashError(address=entry.address) from None


def _trash_of(id_of_entry: str) -> str:
    return id_of_entry.partition("/")[0]
