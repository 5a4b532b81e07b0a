"""Chains of requests: a request, the keeper that outlives it, and the artifacts that the keeper owns.

For lists that show what belongs together. A request that has lapsed is named by its keeper, as long as that is there.

Not guaranteed: that a chain is of one moment. Each object is read for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from lapse.engine.view import ViewPage
from lapse.kube.resources import ObjectKey
from lapse.objects.trash.rules import first_uid, is_in_trash
from lapse.requests.addresses import Located
from lapse.requests.api.kinds import OBJECT_KEEPER, REQUEST_KINDS
from lapse.requests.view import ObjectView, followed, keeper_of, read_or_none, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from lapse.kube.resources import Kind
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.port import ObjectStore
    from lapse.requests.api.kinds import ObjectKeeper
    from lapse.requests.lifecycle.policy import TTLRule

_PAGES_READ: Final = 10
"""Of the store, for one page of chains."""


class Chain(Struct, frozen=True, kw_only=True):
    """What belongs to one request."""

    asked: str
    """The request, as it is or was addressed."""
    request: ObjectView | None
    """None: it has lapsed."""
    keeper: ObjectView | None
    artifacts: list[ObjectView]


class ChainReader:
    """Reads chains from a store."""

    def __init__(self, store: ObjectStore, dependants: Dependants, *, rule: TTLRule, now: int) -> None:
        """Tell what is so at ``now``; ``dependants`` knows what a keeper owns."""
        self._store, self._dependants, self._rule, self._now = store, dependants, rule, now

    async def page(self, kind: Kind[Any], *, limit: int, after: str | None) -> ViewPage[Chain]:
        """Return chains of the requests of a kind; of `OBJECT_KEEPER`, those whose request has lapsed.

        A page has ``limit`` chains, or is the last, and behind one that has a ``next`` there are more. Keepers that are
        left out are read over in at most `_PAGES_READ` pages of the store: where there are more of them in a row, the
        page is shorter, even empty, and its ``next`` goes on behind them.
        """
        if kind is OBJECT_KEEPER:
            return await self._of_keepers(limit=limit, after=after)
        found = await self._store.list(kind, limit=limit, after=after)
        return ViewPage([await self._of_request(kind, one) for one in found.items], found.next)

    async def _of_keepers(self, *, limit: int, after: str | None) -> ViewPage[Chain]:
        chains: list[Chain] = []
        for _ in range(_PAGES_READ):
            # No more than are missing: a place is known behind a page of the store, and not within it.
            missing = limit - len(chains)
            found = await self._store.list(OBJECT_KEEPER, limit=missing or limit, after=after)
            if missing:
                chains += [one async for one in self._lapsed(found.items)]
            elif await anext(self._lapsed(found.items), None) is not None:
                break
            after = found.next
            if after is None:
                break
        return ViewPage(chains, after)

    async def _lapsed(self, keepers: Iterable[ObjectKeeper]) -> AsyncGenerator[Chain, None]:
        for one in keepers:
            if not is_in_trash(OBJECT_KEEPER.kind, one.metadata):
                chain = await self._of_keeper(one)
                if chain is not None:
                    yield chain

    async def _of_request(self, kind: Kind[Any], request: Any) -> Chain:  # noqa: ANN401 - an object of ``kind``
        keeper = await keeper_of(self._store, kind, first_uid(request.metadata))
        view = self._view(kind, request)
        return Chain(asked=view.address, request=view, **self._kept(keeper))

    async def _of_keeper(self, keeper: ObjectKeeper) -> Chain | None:
        """Return the chain of a keeper; None where its request is there, and begins the chain."""
        ref = keeper.spec.follow_object_ref
        kind = next((one for one in REQUEST_KINDS if ref is not None and one.kind == ref.kind), None)
        if kind is None or ref is None:
            return Chain(asked=followed(keeper), request=None, **self._kept(keeper))
        place = ObjectKey(ref.namespace, ref.name)
        request = await read_or_none(self._store, kind, place)
        if request is not None and first_uid(request.metadata) == ref.uid:
            return None
        return Chain(asked=str(Located(kind, place).address), request=None, **self._kept(keeper))

    def _kept(self, keeper: ObjectKeeper | None) -> dict[str, Any]:
        if keeper is None:
            return {"keeper": None, "artifacts": []}
        owned = self._dependants.owned_by(keeper.metadata.uid)
        return {
            "keeper": self._view(OBJECT_KEEPER, keeper),
            "artifacts": [self._view(kind, one) for kind, one in owned],
        }

    def _view(self, kind: Kind[Any], found: Any) -> ObjectView:  # noqa: ANN401 - an object of ``kind``
        return view_of(kind, found, now=self._now, rule=self._rule)
