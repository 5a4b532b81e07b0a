"""Managers that are broken in one way each: the case that is there for it notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lapse.workspaces.activity.port import ActivityUnavailableError, ActivityUnknown, Quiet
from lapse.workspaces.model import Ms
from tests.conformance.ttl_manager import cases  # noqa: F401 - fills the registry
from tests.conformance.ttl_manager.harness import REGISTRY, Harness
from tests.conformance.ttl_manager.worlds import embedded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from lapse.workspaces.activity.port import Signal
    from lapse.workspaces.model import WorkspaceCandidate, WorkspaceId


class Around:
    """Everything as it was."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)


class NobodyIsEverThere(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        return dict.fromkeys(workspaces, Quiet())


class SilenceIsAbsence(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        asked = list(workspaces)
        try:
            found: dict[WorkspaceId, Signal] = await self.inner.read(asked)
        except ActivityUnavailableError:
            return dict.fromkeys(asked, Quiet())
        return found


class DoubtIsAbsence(Around):
    async def read(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, Signal]:
        found: dict[WorkspaceId, Signal] = await self.inner.read(workspaces)
        return {one: Quiet() if isinstance(signal, ActivityUnknown) else signal for one, signal in found.items()}


class ComparesNothing(Around):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], **how: Any) -> Any:  # noqa: ANN401
        # What happens meanwhile happens in the store inside; then whatever is there now is changed.
        await self.inner.to_standby([], **how)
        fresh = [(await self.inner.get(one.id)).candidate for one in candidates]
        inside = getattr(self.inner, "_inner", self.inner)
        return await inside.to_standby(fresh, **how)


class NeverPutsOff(Around):
    async def advance_checks(self, checks: object) -> None:
        return


class PutsOffForTooLong(Around):
    async def advance_checks(self, checks: dict[WorkspaceCandidate, Ms]) -> None:
        await self.inner.advance_checks({one: Ms(look + 10**9) for one, look in checks.items()})


class ForgetsTheJournal(Around):
    async def to_standby(self, candidates: Sequence[WorkspaceCandidate], *, now: Ms, also: Any = None) -> Any:  # noqa: ANN401
        return await self.inner.to_standby(candidates, now=now)


class LooksTooEarly(Around):
    async def standby_candidates(self, now: Ms, **how: Any) -> Any:  # noqa: ANN401
        page = await self.inner.standby_candidates(Ms(now + 1), **how)
        return [_older(one) for one in page]


def _older(one: Any) -> Any:  # noqa: ANN401
    return msgspec.structs.replace(one, status_changed_at=Ms(one.status_changed_at - 1), last_access_at=Ms(1))


BROKEN: dict[tuple[str, type[Around]], list[str]] = {
    ("activity", NobodyIsEverThere): [
        "connect_removes_the_idle_timer_and_the_last_disconnect_sets_it_and_its_expiry_leads_to_standby",
        "a_proxy_that_was_killed_stops_counting_after_its_lease",
    ],
    ("activity", SilenceIsAbsence): [
        "while_the_activity_store_is_away_nobody_is_stopped_and_the_archive_goes_on",
    ],
    ("activity", DoubtIsAbsence): [
        "an_activity_store_that_lost_everything_is_not_believed_for_two_leases",
        "one_whose_signal_cannot_be_read_is_left_and_the_others_go_on",
    ],
    ("store", ComparesNothing): [
        "a_user_who_wants_it_running_at_the_same_moment_wins",
        "a_connection_at_the_same_moment_wins",
        "an_access_that_is_flushed_at_the_same_moment_wins",
        "a_hold_at_the_same_moment_wins",
        "whoever_races_with_the_tick_is_never_left_outside",
    ],
    ("store", NeverPutsOff): ["whoever_is_active_is_looked_at_again_only_when_its_time_may_be_over"],
    ("store", PutsOffForTooLong): ["every_workspace_has_ttls_of_its_own"],
    ("store", ForgetsTheJournal): ["every_transition_is_a_row_with_what_it_was_decided_on"],
    ("store", LooksTooEarly): ["idle_for_longer_than_its_ttl_leads_to_standby_and_at_the_instant_it_stays"],
}


@pytest.mark.parametrize(
    ("part", "broken", "name"),
    [
        pytest.param(part, broken, name, id=f"{broken.__name__}-{name}")
        for (part, broken), names in BROKEN.items()
        for name in names
    ],
)
async def test_a_broken_manager_is_caught(part: str, broken: type[Around], name: str, tmp_path: Path) -> None:
    async with embedded(tmp_path) as harness:
        whole = harness.manager

        def manager(**how: Any) -> Any:  # noqa: ANN401
            given = how.pop(part, None) or getattr(harness, part)
            made = whole(**{**how, part: broken(given)})
            made.executor._shared = True  # the wrapped store is still the one that the journal shares
            return made

        harness.manager = manager  # type: ignore[method-assign]
        with pytest.raises(AssertionError):
            await REGISTRY[name](harness)


def test_every_broken_one_is_tried() -> None:
    here = {one for one in globals().values() if isinstance(one, type) and issubclass(one, Around)} - {Around, Harness}
    assert {broken for _, broken in BROKEN} == here
