"""The demo as people steer it: start, status and stop; and what the process that leads does at each look.

Guarantees. It runs for an hour, on whatever process leads, and is not started by ``lapse up --demo`` once a person has
stopped it. Of a pass that makes things and one that removes them, the second waits. When its time is over by itself,
nothing is removed while the clock is in doubt.

Not guaranteed: that a stop from another process sees what is being made at that moment: the next look removes it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from lapse.app.demo.making import Maker
from lapse.app.demo.note import APP, LABELS, POLICY, SCRATCH, DemoMade, DemoState
from lapse.app.demo.removal import DemoRemoval, OwnThings
from lapse.core.decision import Due
from lapse.core.duration import Duration
from lapse.core.identity import uuid
from lapse.domains import REGISTRY
from lapse.engine.domain import action_of, decided
from lapse.engine.executor import Executor
from lapse.engine.plans.approvals import loop_gate
from lapse.engine.verbs.demo import DemoView
from lapse.engine.verbs.place import Caller
from lapse.engine.view import Moment
from lapse.history.api.kinds import RETENTION_POLICY
from lapse.kube.errors import NotFoundError
from lapse.kube.resources import ObjectKey, metadata_only
from lapse.requests.lifecycle.policy import TTLMode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from lapse.app.demo.note import DemoContext

LASTS: Final = Duration.parse("1h")
LOOK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_ACTOR: Final = Caller("lapse demo", is_person=False)


async def _nothing(_names: Collection[str], _labels: Mapping[str, str]) -> None:
    """Let no policy pass: a command does not."""


@dataclass
class Demo:
    """The demo of one place; a `lapse.engine.verbs.demo.DemoControl`."""

    context: DemoContext
    pass_over: Callable[[Collection[str], Mapping[str, str]], Awaitable[object]] = _nothing
    """Lets policies pass now, by their names, over what has labels; in a running process."""
    served: bool = True
    """Whether a process runs that makes its things."""
    wake: Callable[[], None] = lambda: None
    """Lets the process look at once."""
    own: OwnThings = field(init=False)
    maker: Maker = field(init=False)
    removal: DemoRemoval = field(init=False)
    _alone: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of a pass that makes things and one that removes them, the second waits."""

    def __post_init__(self) -> None:
        """Put its parts together; nothing is read yet."""
        self.own, self.maker = OwnThings(self.context), Maker(self.context)
        self.removal = DemoRemoval(self.context, self.own)

    async def status(self) -> DemoView:
        """See `DemoControl`."""
        return await self._view(await self.context.state())

    async def start(self) -> DemoView:
        """See `DemoControl`."""
        state = await self.context.state()
        if state is None or state.stopped:
            now = self.context.now
            state = DemoState(now, now + (LASTS.nanoseconds or 0))
            await self.context.write_state(state)
        self.wake()
        return await self._view(state)

    async def resume(self) -> str:
        """Start it as ``lapse up --demo`` does: not where a person has stopped it; return what to do then."""
        state = await self.context.state()
        if state is not None and self.context.now >= state.ends_ns:  # its time was over while no process ran
            state = msgspec.structs.replace(state, stopped=True)
            await self.context.write_state(state)
        if state is not None and state.stopped and state.by_person:
            return "lapse demo start starts it again"
        await self.start()
        return "lapse demo stop removes it"

    async def stop(self, caller: Caller) -> DemoView:
        """See `DemoControl`. Ordinary holds on things of the demo are released; a legal hold keeps what it is on."""
        state = await self.context.state()
        if state is None:
            return await self._view(None)
        state = msgspec.structs.replace(state, stopped=True, by_person=True)
        await self.context.write_state(state)
        await self.remove(caller)
        self.wake()
        return await self._view(state)

    async def is_on(self) -> bool:
        """Whether it runs, wherever a process makes its things."""
        state = await self.context.state()
        return state is not None and not state.stopped

    async def _view(self, state: DemoState | None) -> DemoView:
        made = await self.context.made()
        runs, found = state is not None and not state.stopped, await self.own.found(made)
        there = frozenset() if runs else {one.address for one in found}
        things: dict[str, list[str]] = {}
        for one in found:
            things.setdefault(one.domain, []).append(one.address)
        return DemoView(
            running=runs,
            served=self.served,
            started_at=None if state is None else Moment(state.started_ns),
            ends_at=Moment(state.ends_ns) if state is not None and runs else None,
            things={domain: sorted(addresses) for domain, addresses in sorted(things.items())},
            keys=len(await self.own.key_names()),
            app=APP,
            notes=self._shortcomings() if runs else [],
            problems={address: problem for address, problem in made.problems.items() if address in there},
        )

    def _shortcomings(self) -> list[str]:
        """Say what is missing here, and what is slow because the settings are not those of a demo."""
        told = []
        if self.context.scratch is None:
            told.append("No scratch files: the example domain is not installed, or has a folder of yours")
        if self.context.workspaces is None:
            told.append("No workspace: workspaces are not served")
        if self.context.settings.request_ttl_mode is not TTLMode.ANNOTATION:
            told.append(f"Requests go after {self.context.settings.request_ttl}: request_ttl_mode is not annotation")
        return told

    async def look(self, *, is_time: bool) -> float:
        """Do what is to be done now; return the seconds until the next look. For the process that leads."""
        state = await self.context.state()
        if state is None:
            return LOOK_SECONDS
        is_over = not state.started_ns <= self.context.now < state.ends_ns  # or it began by a wrong clock
        if is_over and not state.stopped:
            state = msgspec.structs.replace(state, stopped=True)
            await self.context.write_state(state)
        if state.stopped:
            return await self._clear(is_asked=state.by_person)
        if is_time:
            async with self._alone:
                await self._make_more()
            await self._let_policy_pass()
        await self._end_files()
        return LOOK_SECONDS

    async def _end_files(self) -> None:
        """End its files that are over, as their domain decides; holds, freezes, budgets and the clock stop that.

        Their times are set back, so that they look older than the policy of their domain, which is dry about such.
        """
        made = await self.context.made()
        files = [one async for one in self.own.others(made) if one.domain == SCRATCH]
        place, gate = self.context.place, loop_gate(self.context.place.gate, self.context.settings.act_by_plan)
        for one in files:
            domain = await place.domain(SCRATCH)
            found = await domain.find(REGISTRY.parse(one.address))
            decision = None if found is None else decided(domain, found, place.now)
            if found is None or decision is None or not isinstance(decision.verdict, Due):
                continue
            action = msgspec.structs.replace(action_of(domain, found, decision), actor=_ACTOR.name)
            target = await domain.deletion_target(found)
            executor = Executor(
                target, place.journal, clock=place.clock, metrics=place.metrics, actor=_ACTOR.name, gate=gate
            )
            await executor.execute([action])  # what came of it is in the journal

    async def _let_policy_pass(self) -> None:
        """Let its own policy pass over its own records: other policies pass when the settings say."""
        try:
            found = await self.context.objects.get(metadata_only(RETENTION_POLICY), ObjectKey(None, POLICY))
        except NotFoundError:
            return
        if await self.own.is_own({*(await self.context.made()).uids}, found.metadata):
            await self.pass_over({POLICY}, LABELS)

    async def _clear(self, *, is_asked: bool) -> float:
        """Remove what is left; nothing is looked at any more once nothing is known."""
        if await self.context.made() == DemoMade():
            return LOOK_SECONDS
        if not is_asked and self.context.place.clock.in_doubt():
            return LOOK_SECONDS
        await self.remove(_ACTOR, is_asked=is_asked)
        made = await self.context.made()
        if not await self.own.found(made) and not await self.own.key_names() and not await self.own.is_in_trash(made):
            await self.context.write_made(DemoMade())
            return LOOK_SECONDS
        return _RETRY_SECONDS if is_asked else LOOK_SECONDS

    async def _make_more(self) -> None:
        """Note what is there, and make what comes next."""
        made = await self.context.made()
        made.run = made.run or uuid()
        found = await self.own.found(made)
        made.know(one.uid for one in found)
        if self.context.scratch is not None:  # what is gone is forgotten: its inode is used again
            made.files = {one.address: one.uid for one in found if one.domain == SCRATCH}
        alive = len(found) + len(await self.own.key_names())
        await self.maker.make_more(made, alive=alive)

    async def remove(self, caller: Caller, *, is_asked: bool = True) -> None:
        """Remove everything that is there; see `DemoRemoval.remove`."""
        async with self._alone:
            await self.removal.remove(caller, is_asked=is_asked)
