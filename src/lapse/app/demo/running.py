"""The demo in a running process: the loop that lets it go on, and the settings of ``lapse up --demo``.

Guarantees. Only the process that leads makes things and removes them. Of the settings, only what nobody has set is
another one with ``--demo``: how often idle workspaces and old scratch files are looked for, and that the TTL on a
request counts; no TTL of the settings is shortened.

Not guaranteed: that things go as soon where somebody has set how often is looked; the status of the demo says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lapse.app.demo.control import LOOK_SECONDS
from lapse.app.demo.note import LABEL, SCRATCH
from lapse.core.duration import SECOND, Duration
from lapse.domains import REGISTRY
from lapse.kube.resources import metadata_only
from lapse.requests.api.kinds import REQUEST_KINDS, TTL
from lapse.requests.lifecycle.policy import InvalidTTLAnnotationError, TTLMode, ttl_of
from lapse.settings import SETTINGS, Origin

if TYPE_CHECKING:
    from lapse.app.demo.control import Demo
    from lapse.core.clock import Clock
    from lapse.engine.running.coordinator import Turn
    from lapse.settings import LoadedSettings, Settings

EVERY_SECONDS: Final = 10.0
"""How often something new comes."""
_QUICK: Final = {
    "ttl_manager_interval": "5s",
    "request_ttl_mode": TTLMode.ANNOTATION.value,
}
_QUICK_SCRATCH: Final = "5s"


class DemoLoop:
    """A `lapse.engine.running.coordinator.Loop` that lets the demo go on, where this process leads."""

    name: Final = "demo"
    interval: Final = LOOK_SECONDS
    leader_only: Final = True
    of_engine: Final = True

    def __init__(self, clock: Clock, *, domain: str) -> None:
        """Do nothing until there is a demo (`attach`); failures are those of ``domain``."""
        self._clock, self.domain = clock, domain
        self._demo: Demo | None = None
        self._turn: Turn | None = None
        self._next_ns = 0

    def attach(self, demo: Demo) -> None:
        """Let this demo go on."""
        self._demo = demo
        demo.wake = self._wake

    def begin(self, turn: Turn) -> None:
        """See `lapse.engine.running.coordinator.Steered`."""
        self._turn = turn

    def _wake(self) -> None:
        self._next_ns = 0
        if self._turn is not None:
            self._turn.wake()

    async def tick(self) -> float | None:
        """Look at it once."""
        if self._demo is None:
            return None
        now = self._clock.monotonic_ns()
        is_time = now >= self._next_ns
        if is_time:
            self._next_ns = now + round(EVERY_SECONDS * SECOND)
        return await self._demo.look(is_time=is_time)


async def demo_settings(loaded: LoadedSettings, clock: Clock) -> tuple[LoadedSettings, list[str]]:
    """Return the settings of ``lapse up --demo``, and which of them are its own: only what nobody has set.

    They say how often is looked, and that the TTL on a request counts. That would shorten the time of a request whose
    annotation says less than request_ttl, so it is left as it is where there is such a request of somebody else's.
    """
    quick = dict(_QUICK)
    if await _is_shortened(loaded.settings, clock):
        del quick["request_ttl_mode"]
    quick = {key: value for key, value in quick.items() if loaded.origins[key].layer == "default"}
    values: dict[str, Any] = {key: SETTINGS[key].read(value) for key, value in quick.items()}
    own, told = loaded.settings.domains.get(SCRATCH, {}), [f"{key}={value}" for key, value in quick.items()]
    if SCRATCH in REGISTRY.installed_names() and "interval" not in own:
        values["domains"] = {**loaded.settings.domains, SCRATCH: {**own, "interval": _QUICK_SCRATCH}}
        told.append(f"domains.{SCRATCH}.interval={_QUICK_SCRATCH}")
    origins = {**loaded.origins, **dict.fromkeys(quick, Origin("flag", "--demo"))}
    return replace(loaded, settings=replace(loaded.settings, **values), origins=origins), told


async def _is_shortened(settings: Settings, clock: Clock) -> bool:
    """Whether a request of somebody else's would go earlier if its annotation counted."""
    from lapse.app.record import FILE_NAME, open_store

    if not (settings.state_dir / FILE_NAME).exists():
        return False
    store = open_store(settings.state_dir, clock=clock)
    try:
        for kind in REQUEST_KINDS:
            for one in (await store.list(metadata_only(kind))).items:
                text = one.metadata.annotations.get(TTL)
                if text is not None and not one.metadata.labels.get(LABEL) and _is_shorter(text, settings.request_ttl):
                    return True
    finally:
        await store.close()
    return False


def _is_shorter(text: str, ttl: Duration) -> bool:
    try:
        return ttl_of(text) < ttl
    except InvalidTTLAnnotationError:  # then it stays for ever
        return False
