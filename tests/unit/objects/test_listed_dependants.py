"""What one command knows of what is owned by what, by lists that it makes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from lapse.core.clock import UnixNs
from lapse.engine.safety.holds import HOLD, Hold, HoldDoubt
from lapse.kube.errors import ForbiddenError
from lapse.objects.holds.cluster import ClusterHolds, ListedDependants
from lapse.objects.port import Deletion
from tests.unit.objects.kinds import BOX, NOTE, box

if TYPE_CHECKING:
    from lapse.core.clock import VirtualClock
    from lapse.kube.resources import Kind
    from lapse.objects.embedded import EmbeddedStore


class Counted:
    """A store that counts the lists, and may refuse them."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store, self.lists, self.is_refused = store, 0, False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - stands for any method
        return getattr(self._store, name)

    async def list(self, kind: Kind[Any], **how: Any) -> Any:  # noqa: ANN401 - as the port has it
        self.lists += 1
        if self.is_refused:
            raise ForbiddenError(kind=kind.kind, name="", problem=f"you may not list {kind.plural}")
        return await self._store.list(kind, **how)


async def look(store: Counted, listed: ListedDependants, owner: Any) -> Hold | HoldDoubt | None:  # noqa: ANN401 - a box
    meta = owner.metadata
    deletion = Deletion(BOX, meta.key, meta.uid, meta.resource_version, owners=())
    direct: Any = store
    (found,) = await ClusterHolds(direct, listed).holds_over([deletion], UnixNs(0))
    return found


def note(owner: Any) -> dict[str, Any]:  # noqa: ANN401 - a box
    """Return the body of a held note that a box owns."""
    meta = owner.metadata
    reference = {"apiVersion": BOX.api_version, "kind": BOX.kind, "name": meta.name, "uid": meta.uid}
    return box("note", ownerReferences=[reference], annotations={HOLD: "true"})


async def test_what_came_to_be_owned_while_a_command_waited_keeps_its_owner(
    store: EmbeddedStore, clock: VirtualClock
) -> None:
    owner, counted = await store.create(BOX, box()), Counted(store)
    listed = ListedDependants(cast("Any", counted), [NOTE], clock=clock)
    assert await look(counted, listed, owner) is None
    await store.create(NOTE, note(owner))
    clock.advance(59)
    assert await look(counted, listed, owner) is None
    assert counted.lists == 1, "a list counts for a minute"
    clock.advance(2)
    assert isinstance(await look(counted, listed, owner), Hold)
    assert counted.lists == 2


async def test_a_kind_that_cannot_be_listed_is_a_doubt_also_after_it_could(
    store: EmbeddedStore, clock: VirtualClock
) -> None:
    owner, counted = await store.create(BOX, box()), Counted(store)
    listed = ListedDependants(cast("Any", counted), [NOTE], clock=clock)
    assert await look(counted, listed, owner) is None
    counted.is_refused = True
    clock.advance(61)
    doubt = await look(counted, listed, owner)
    assert isinstance(doubt, HoldDoubt)
    assert "you may not list notes" in str(doubt)
    counted.is_refused = False
    assert await look(counted, listed, owner) is None
