"""People in the small world of requests: the verbs of everybody, on its store, its caches and its trash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.app.service import request_domains
from lapse.app.trash import trashed_objects
from lapse.core.believed_clock import BelievedClock
from lapse.domains import REGISTRY
from lapse.engine.safety.budget import Budgets
from lapse.engine.safety.gate import OpenGate
from lapse.engine.safety.sqlite import SQLiteGateStore
from lapse.engine.service import LocalService
from lapse.engine.trash import TrashBin
from lapse.engine.verbs.place import Caller, Place

if TYPE_CHECKING:
    from tests.integration.requests.world import World


def person(world: World, name: str = "ann", **changed: Any) -> LocalService:  # noqa: ANN401 - fields of a place
    """Return the verbs of a person, in the process of a world."""
    requests = world.requests
    domains = request_domains(
        requests,
        {
            "store": world.store,
            "holds": world.store,
            "steering": requests.steering,
            "clock": world.clock,
            "trash": requests.trash,
        },
    )

    async def open_trash() -> TrashBin:
        return TrashBin(
            trashed_objects(
                world.store,
                holds=world.store,
                dependants=world.store,
                journal=world.journal,
                clock=world.clock,
                trash=requests.trash,
            )
        )

    place = {
        "name": "here",
        "id": "1",
        "clock": BelievedClock(world.clock),
        "registry": REGISTRY,
        "domains": domains,
        "journal": world.journal,
        "gate": OpenGate(),
        "freezes": SQLiteGateStore(world.journal, budgets=Budgets(), domains=[*domains]),
        "metrics": world.metrics,
        "secret": b"s" * 32,
        "open_trash": open_trash,
        **changed,
    }
    return LocalService(Place(**place), Caller(f"user {name}"))
