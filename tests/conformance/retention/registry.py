"""The registry of the cases of retention, with the world that they are given, what they try in it, and helpers.

A case is a plain coroutine function that takes a `World` and asserts what the specification says about the state of the
world afterwards; `case` puts it into the registry. It knows nothing of how a decision is made, so the same cases run on
the product, on a model of a few lines, and on models that are broken in one way each. It names objects by
`World.namespace` and `unique` only, so that it can run on a server that others use at the same time.

Time. ``World.clock`` stands still unless a case moves it. Creation times are the store's own: on a real API server they
are real, so a case never sets them. It makes a record, lets the store's clock go on (`World.tick`) and then puts the
injected clock where the record has the age that is wanted (`age`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from lapse.core.duration import HOUR
from lapse.core.identity import secret_bytes
from lapse.core.timestamps import from_timestamp, to_timestamp
from lapse.engine.safety.holds import HOLD, HOLD_UNTIL
from lapse.history.api.kinds import CHAOS_EXPERIMENT_HISTORY, Execution, ExperimentRef, HistorySpec
from lapse.kube.resources import NO_LABELS, Document, Json, Kind, ObjectKey, untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lapse.core.clock import VirtualClock
    from lapse.engine.running.metrics import Metrics
    from lapse.objects.port import ObjectStore

RECORD: Final[Kind[Any]] = CHAOS_EXPERIMENT_HISTORY
WIDGET: Final = untyped("test.lapse.dev/v1", "Widget", "widgets")
"""A kind of somebody else, of which any field may be there."""
KINDS: Final[tuple[Kind[Any], ...]] = (RECORD, WIDGET)
"""What a store is told."""
SUCCESS: Final = "success"
FAILURE: Final = "failure"
EXPIRED: Final = "ttl_expired"
TOO_MANY: Final = "retention_limit"


@dataclass(frozen=True, slots=True)
class Result:
    """What one pass says about one policy."""

    matched: int = 0
    due: Mapping[str, int] = field(default_factory=Counter)
    """By reason."""
    ended: int = 0


class Implementation(Protocol):
    """What is tried. A policy is whatever it makes of one: cases only hand it back."""

    def history(self, **flags: Any) -> Any:  # noqa: ANN401 - see above
        """Read flags: ``namespace``, ``ttl`` (a text), ``limit``, ``keep``, ``dry_run``; raises `ValueError`."""
        ...

    def policy(self, name: str, spec: Json) -> Any:  # noqa: ANN401 - see above
        """Read the spec of a RetentionPolicy; raises `ValueError`."""
        ...

    async def run(self, policies: Sequence[Any], *, labels: Mapping[str, str] = NO_LABELS) -> Mapping[str, Result]:
        """Apply policies of one kind, in one pass; return what came of it, by the names of the policies."""
        ...

    async def write(self, spec: HistorySpec, *, namespace: str) -> tuple[str, bool]:
        """Write the record of a run; return its name, and whether it is a new one."""
        ...


class World(Protocol):
    """A store, what is tried in it, and what a case may ask of its surroundings."""

    @property
    def store(self) -> ObjectStore:
        """The store itself, as somebody else reads and writes it."""
        ...

    @property
    def clock(self) -> VirtualClock:
        """What decides about ages."""
        ...

    @property
    def metrics(self) -> Metrics:
        """What the implementation counts in."""
        ...

    @property
    def tried(self) -> Implementation:
        """What is tried."""
        ...

    @property
    def meddler(self) -> Meddler:
        """What happens while it works."""
        ...

    async def namespace(self) -> str:
        """Return a namespace of the case's own, empty."""
        ...

    async def tick(self) -> None:
        """Return when the store gives new objects a later creation time than the last one."""
        ...


@dataclass
class Meddler:
    """Lets things happen between what an implementation reads and what it does."""

    after_list: Callable[[int], Awaitable[object]] | None = None
    """Called after each page was read, and before the implementation sees it, with the page's number from 1."""
    failing: set[str] = field(default_factory=set)
    """Names of objects of which every deletion fails."""
    lists: int = 0


Case = Callable[[World], Coroutine[Any, Any, None]]
REGISTRY: Final[dict[str, Case]] = {}
"""Every case by its name."""


def case(function: Case) -> Case:
    """Put a case into the registry."""
    assert function.__name__ not in REGISTRY, f"two cases are called {function.__name__}"
    REGISTRY[function.__name__] = function
    return function


def unique(stem: str) -> str:
    """Return a name that nobody else uses."""
    return f"{stem}-{secret_bytes(5).hex()}"


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Demand that the block refuses what it is given."""
    try:
        yield
    except ValueError:
        return
    raise AssertionError("expected a refusal, and nothing was raised")


# --- records ----------------------------------------------------------------------------------------------------------

FIRST_START: Final = from_timestamp("2026-01-01T00:00:00Z") or 0


class Experiment:
    """An experiment that runs again and again; its runs begin an hour apart, and leave records in ``home``."""

    def __init__(
        self, world: World, home: str, *, name: str = "kill-pods", namespace: str = "shop", uid: str | None = "u-1"
    ) -> None:
        self.world, self.home = world, home
        self.ref = ExperimentRef(name=name, namespace=namespace, uid=uid)
        self._runs = 0

    def spec(self, status: str = SUCCESS, *, start: int | None = None) -> HistorySpec:
        """Describe the next run."""
        if start is None:
            self._runs += 1
            start = FIRST_START + self._runs * HOUR
        return HistorySpec(experiment_ref=self.ref, execution=Execution(start_time=to_timestamp(start), status=status))

    async def run(self, status: str = SUCCESS, *, start: int | None = None) -> str:
        """Run once, and return the name of the record."""
        name, is_new = await self.world.tried.write(self.spec(status, start=start), namespace=self.home)
        assert is_new, f"the record {name} of a new run was there before"
        return name

    async def runs(self, count: int, status: str = SUCCESS) -> list[str]:
        """Run several times, without a pause; the oldest is the first."""
        return [await self.run(status) for _ in range(count)]

    async def spaced(self, count: int, status: str = SUCCESS) -> list[str]:
        """Run several times; each record has a later creation time than the one before."""
        names = [await self.run(status)]
        while len(names) < count:
            await self.world.tick()
            names.append(await self.run(status))
        return names


async def left(world: World, home: str, kind: Kind[Any] = RECORD) -> list[str]:
    """Return the names of what is left in a namespace, in order."""
    return [one.metadata.name for one in (await world.store.list(kind, namespace=home)).items]


async def age(world: World, home: str, name: str, ns: int, *, kind: Kind[Any] = RECORD) -> None:
    """Put the clock where an object is that old."""
    found = await world.store.get(kind, ObjectKey(home, name))
    created = from_timestamp(found.metadata.creation_timestamp or "")
    assert created is not None
    step = created + ns - world.clock.wall_ns()
    assert step >= 0, "the case lets time go back"
    world.clock.advance(ns=step)


async def prune(world: World, home: str, **flags: Any) -> Result:  # noqa: ANN401 - of a history
    """Apply the history's own policy; flags that are not named are off."""
    return await apply(world, history(world, home, **flags))


def history(world: World, home: str, **flags: Any) -> Any:  # noqa: ANN401 - of a history; a policy of what is tried
    """Read the history's own policy; flags that are not named are off."""
    return world.tried.history(**{"namespace": home, "ttl": "0", "limit": 0, **flags})


async def apply(world: World, policy: Any) -> Result:  # noqa: ANN401 - a policy of what is tried
    """Apply one policy."""
    (result,) = (await world.tried.run([policy])).values()
    return result


async def hold(world: World, home: str, name: str, *, kind: Kind[Any] = RECORD, until: int | None = None) -> None:
    """Hold an object, as `lapse hold` does."""
    annotations = {HOLD: "true"} | ({} if until is None else {HOLD_UNTIL: to_timestamp(until)})
    await world.store.patch(kind, ObjectKey(home, name), {"metadata": {"annotations": annotations}})


def counted(world: World, reason: str, *, domain: str = "history") -> int:
    """Return how many deletions the metrics tell."""
    return metric(world, f'lapse_deletions_total{{domain="{domain}",reason="{reason}"}}')


def metric(world: World, series: str) -> int:
    """Return a number of the metrics; 0 when there is no such series."""
    lines = world.metrics.exposition().decode().splitlines()
    return next((int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(f"{series} ")), 0)


# --- any kind ---------------------------------------------------------------------------------------------------------


async def widget(
    world: World,
    home: str,
    name: str,
    *,
    labels: Mapping[str, str] = NO_LABELS,
    **fields: Any,  # noqa: ANN401 - any fields
) -> str:
    """Make an object of somebody else's kind."""
    body = {"metadata": {"name": name, "namespace": home, "labels": dict(labels)}, **fields}
    return (await world.store.create(WIDGET, Document(body))).metadata.name


def widgets(world: World, home: str, name: str = "widgets", **spec: Any) -> Any:  # noqa: ANN401 - a policy of what is tried
    """Read a policy about the widgets of a namespace; it deletes, unless it is said."""
    selector = {"apiVersion": WIDGET.api_version, "kind": WIDGET.kind, "namespaces": [home]}
    return world.tried.policy(name, {"selector": selector, "dryRun": False, **spec})
