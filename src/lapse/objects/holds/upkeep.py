"""The upkeep of holds: marks that say what is no longer so are removed, and legal holds reach what was made later.

The admission policy of a cluster has no clock: it refuses the deletion of whatever carries a mark. So a hold whose end
has passed is removed here, on the kinds that are watched; and so is an entry of a note on an owner whose object is
gone, or is not held any more. An object that comes to be owned by one under a legal hold is marked as well, and one
whose owner was released is released. A hold on what came back from the trash reaches the keepers of what it has made.

Only what carries a mark is looked at: a cluster without holds costs nothing. Each removal is decided again on what the
store itself says, and compares its version. Doubt keeps: nothing is removed while the clock is in doubt, and no mark of
an object that cannot be read.

Not guaranteed: marks on kinds that are not watched, or that may not be written (a missing right is logged); they hold
nothing, but the admission policy refuses a deletion until somebody removes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.core.clock import UnixNs
from lapse.core.errors import LapseError
from lapse.core.log import get_logger
from lapse.engine.safety.holds import HELD_DEPENDENTS, held_dependents, own_hold_of
from lapse.kube.errors import NotFoundError, UnknownKindError
from lapse.kube.resources import metadata_only
from lapse.objects.holds.passed_on import source_of
from lapse.objects.holds.steering import ObjectPlace, read_path
from lapse.objects.trash.rules import BROUGHT_BACK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.clock import Clock
    from lapse.engine.safety.holds import HeldDependent
    from lapse.kube.resources import Kind, Object, ObjectKey
    from lapse.objects.holds.cluster import Dependants
    from lapse.objects.holds.steering import Steering
    from lapse.objects.port import Reader

INTERVAL_SECONDS: Final = 600.0
"""How often notes are held against what they tell of; an end that comes sooner wakes the loop."""
_NS: Final = 1_000_000_000
_log = get_logger("lapse.objects.holds.upkeep")


class HoldUpkeep:
    """A `lapse.engine.running.coordinator.Loop`; see the module."""

    name = "holds"
    interval = INTERVAL_SECONDS
    leader_only = True
    of_engine = True

    def __init__(
        self, direct: Reader, steering: Steering, *, dependants: Dependants, clock: Clock, domain: str
    ) -> None:
        """Look at nothing before `changed` has told of it."""
        self.domain = domain
        self._direct, self._steering, self._dependants, self._clock = direct, steering, dependants, clock
        self._marked: dict[tuple[Kind[Any], ObjectKey], Object] = {}

    def changed(self, kind: Kind[Any], old: Object | None, new: Object | None) -> None:
        """Take note of a change, as the caches tell it."""
        if new is not None and _is_marked(new):
            self._marked[kind, new.metadata.key] = new
        elif old is not None or new is not None:
            found = old if new is None else new
            assert found is not None  # noqa: S101 - one of them is there
            self._marked.pop((kind, found.metadata.key), None)

    async def tick(self) -> float | None:
        """Look at everything that carries a mark; return the seconds to the next end."""
        if self._clock.in_doubt():
            return None
        for (kind, key), obj in list(self._marked.items()):
            try:
                await self._look(ObjectPlace(kind, key, obj.metadata.uid), obj)
            except NotFoundError:
                continue  # the caches will tell
            except LapseError as error:
                _log.warning("hold_not_looked_at", kind=kind.kind, name=str(key), problem=str(error))
        return self._wait()

    def _wait(self) -> float:
        now = self._clock.wall_ns()
        ends = [end for obj in self._marked.values() for end in _ends(obj) if end > now]
        return min(INTERVAL_SECONDS, (min(ends) - now) / _NS + 1) if ends else INTERVAL_SECONDS

    async def _look(self, place: ObjectPlace, obj: Object) -> None:
        annotations, now = obj.metadata.annotations, UnixNs(self._clock.wall_ns())
        hold = own_hold_of(annotations)
        if hold is not None and not hold.active(now):
            await self._steering.remove_ended(place, now)
            _log.info("hold_ended", kind=place.kind.kind, name=str(place.key))
        elif source_of(annotations) is not None and not place.kind.follows:
            await self._steering.take_back(place)  # what follows its source has a controller that looks after it
        if hold is not None and (BROUGHT_BACK in annotations or (hold.is_legal and await self._is_missing(place))):
            await self._steering.complete(place)
        over = [one.uid for one in held_dependents(annotations) if await self._is_over(one, now)]
        if over:
            await self._steering.forget_dependents(place, over)

    async def _is_missing(self, place: ObjectPlace) -> bool:
        """Whether something that is owned here is not under a legal hold."""
        await self._dependants.prepare(place.kind)
        for _, owned in self._dependants.owned_by(place.uid):
            hold = own_hold_of(owned.metadata.annotations)
            if hold is None or not hold.is_legal:
                return True
        return False

    async def _is_over(self, entry: HeldDependent, now: UnixNs) -> bool:
        """Whether an entry of a note tells of nothing any more; one that was written by hand stays."""
        if (end := entry.end()) is not None and end <= now:
            return True
        found = read_path(entry.object)
        if found is None:
            return False
        api_version, name, key = found
        try:
            kind = await self._direct.resolve(api_version, name)
            obj = await self._direct.get(metadata_only(kind), key)
        except NotFoundError:
            return True
        except UnknownKindError:
            return False  # its definition may come back, with the objects
        hold = own_hold_of(obj.metadata.annotations)
        return obj.metadata.uid != entry.uid or hold is None or not hold.active(now)


def _is_marked(obj: Object) -> bool:
    annotations = obj.metadata.annotations
    return own_hold_of(annotations) is not None or HELD_DEPENDENTS in annotations


def _ends(obj: Object) -> Iterable[UnixNs]:
    annotations = obj.metadata.annotations
    hold = own_hold_of(annotations)
    if hold is not None and hold.until is not None:
        yield hold.until
    for entry in held_dependents(annotations):
        if (end := entry.end()) is not None:
            yield end
