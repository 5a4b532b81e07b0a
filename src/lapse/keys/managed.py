"""Live keys as people see and steer them: `lapse.engine.domain.ManagedDomain` and `CountedDomain`.

A key is over by itself at the instant of its expiry, so most of what people do to other things makes no sense here, and
is refused with the reason: it is not held, frozen, carried out by a plan, or brought back. What is left: why a live key
is there and until when, more time for it, which is a touch, and how many keys of each application expire soon.

Names and values are secrets. A plan has numbers, never names; a name is in an answer only where the question had it; a
value is in none. Neither is in a uid: a key has no identity but its name, so its expiry stands for it, and changes when
the key is renewed or replaced.

Guarantees: an extension never makes a key live shorter than it does at that look, whatever the clock of the server.
Not guaranteed: that two who give a key time at the same moment end with the longer of both; the last touch counts. A
server cannot tell how many keys expire, so none are counted there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

from lapse.core.clock import UnixNs
from lapse.core.decision import Decision, Due, DueReason, Keep, KeepReason
from lapse.core.errors import LapseError
from lapse.engine.domain import Candidate, SimpleDomain
from lapse.engine.explanation import Grounds, single_rule, words
from lapse.engine.plans.plan import PlanCount
from lapse.engine.registry import DomainVerb, UnsupportedVerbError
from lapse.engine.view import Moment
from lapse.keys.backends.layout import Prefix
from lapse.keys.port import NS_PER_MS, is_over
from lapse.keys.registration import KEYS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from lapse.core.address import Address
    from lapse.engine.domain import Action, Also, Consequence, Result, Target
    from lapse.engine.safety.blast_radius import PolicyChecks
    from lapse.engine.safety.holds import Hold
    from lapse.keys.aio import AsyncAppKeys, AsyncKeys

EXPIRE: Final = "expire"
"""What happens to a key: nothing is done to it."""
_MS_PER_SECOND: Final = 1000


class KeyOverError(LapseError):
    """There is no such key any more: it is over, or was deleted. Write it again with a new TTL."""

    status = 404


class ManagedKeys(SimpleDomain[UnixNs]):
    """See the module. What is decided on is the expiry."""

    name: Final = KEYS.name
    not_undoable: str | None = "names and values of keys are secrets, of which no copy is kept"

    def __init__(self, keys: AsyncKeys) -> None:
        """Steer the keys of a store, which its opener closes."""
        self._keys = keys

    @property
    def target(self) -> Target:
        """See `ManagedDomain`: no hold is found there, and nothing is ended."""
        return self

    # --- reading ------------------------------------------------------------------------------------------------------

    async def find(self, address: Address) -> Candidate[UnixNs] | None:
        """See `ManagedDomain`: a live key, as the backend has it."""
        item = await self._app(address).get_item(address.name)
        if item is None:
            return None
        expiry = str(item.expires_ms)
        state = UnixNs(item.expires_ms * NS_PER_MS)
        return Candidate(address=address, uid=expiry, version=expiry, state=state, handle=None)

    async def find_all(self, addresses: Sequence[Address]) -> Sequence[Candidate[UnixNs] | None]:
        """See `ManagedDomain`."""
        return await asyncio.gather(*map(self.find, addresses))

    def upcoming(self, until: UnixNs, *, size: int) -> AsyncGenerator[Sequence[Candidate[UnixNs]], None]:
        """See `ManagedDomain`: none, because names are secrets; see `counts`."""
        return _no_pages()

    async def counts(self, until: UnixNs) -> list[PlanCount] | None:
        """See `CountedDomain`: live keys by application; None where the store cannot tell.

        In a thread: a million of them take longer than a loop should stand still.
        """
        told = await asyncio.to_thread(self._keys.backend.expiring, until)
        return (
            None
            if told is None
            else [
                PlanCount(self.name, str(one.app_id), one.number, Moment(one.first_ns))
                for one in told
                if one.prefix is Prefix.APPLICATION_TTL  # locks, elections and tickets are no keys of anybody's
            ]
        )

    async def counts_between(self, edges: Sequence[UnixNs], until: UnixNs) -> list[int] | None:
        """See `CountedDomain`: live keys of all applications; in a thread, as `counts`."""
        before = [edge - 1 for edge in edges]  # a key is over at the instant of its expiry: it is not before that
        told = await asyncio.to_thread(self._keys.backend.expiring, until, before)
        if told is None:
            return None
        ours = [one.parts or (one.number,) for one in told if one.prefix is Prefix.APPLICATION_TTL]
        return [sum(part) for part in zip(*ours, strict=True)] or [0] * (len(edges) + 1)

    def _app(self, address: Address) -> AsyncAppKeys:
        assert address.scope is not None  # noqa: S101 - an address of this kind has one, see the registration
        return self._keys.app(int(address.scope))

    # --- deciding -----------------------------------------------------------------------------------------------------

    def decide(self, candidate: Candidate[UnixNs], now: UnixNs) -> Decision:
        """See `ManagedDomain`. A record has its expiry and no time of writing, so there is no anchor."""
        expiry = candidate.state
        if is_over(expiry, now):
            return Decision(Due(EXPIRE, DueReason.TTL_EXPIRED, since=expiry), deadline=expiry)
        return Decision(Keep(KeepReason.NOT_YET), deadline=expiry)  # no next look: nobody needs to look

    def policy(self, candidate: Candidate[UnixNs]) -> str:
        """See `ManagedDomain`: none, a key has a TTL of its own."""
        return ""

    def policy_name(self, candidate: Candidate[UnixNs]) -> str:
        """See `ManagedDomain`."""
        return ""

    def policies(self) -> Mapping[str, str]:
        """See `ManagedDomain`: none."""
        return {}

    def governed(self, *, size: int) -> AsyncGenerator[Sequence[Candidate[UnixNs]], None]:
        """See `ManagedDomain`: nothing."""
        return _no_pages()

    async def look_at_policies(self, guard: PolicyChecks) -> None:
        """See `ManagedDomain`: there are none to look at."""

    def explain(self, candidate: Candidate[UnixNs], decision: Decision, now: UnixNs) -> Grounds:
        """See `ManagedDomain`."""
        because = words(decision.verdict.reason.value)
        return Grounds(
            rules=(single_rule(decision, "absent from the end of its TTL on", action=EXPIRE),),
            because=f"{because}, and reads do not see it" if isinstance(decision.verdict, Due) else because,
            facts={"clock": self._keys.backend.capabilities.clock},
            not_undoable=self.not_undoable,
        )

    async def takes_along(self, candidate: Candidate[UnixNs]) -> Sequence[str]:
        """See `ManagedDomain`: nothing."""
        return ()

    async def leads_to(self, candidate: Candidate[UnixNs], end: UnixNs) -> Sequence[Consequence]:
        """See `ManagedDomain`: nothing."""
        return ()

    # --- steering -----------------------------------------------------------------------------------------------------

    async def extend(self, candidate: Candidate[UnixNs], until: UnixNs, *, by: str) -> None:
        """See `ManagedDomain`: touch it, with a TTL of whole seconds, which ends less than a second after ``until``.

        Counted on top of what is left by the clock that decides, which may be a server's. One that ends later by now
        is left alone. A key does not know the expiry that it had first, so ``extend_max`` counts for each extension,
        and for all of them together the limit of every TTL, 365 days from now. Raises `KeyOverError`.
        """
        keys, name = self._app(candidate.address), candidate.address.name
        item = await keys.get_item(name)
        left = await keys.query_ttl(name)
        if item is None or left is None:
            raise KeyOverError
        more_ms = -(-until // NS_PER_MS) - item.expires_ms
        if more_ms <= 0:
            return
        ttl_seconds = -(-(round(left * _MS_PER_SECOND) + more_ms) // _MS_PER_SECOND)
        if not await keys.touch(name, ttl_seconds):
            raise KeyOverError

    async def hold(self, candidate: Candidate[UnixNs], hold: Hold, *, replace: bool) -> None:
        """Refuse."""
        _refuse(DomainVerb.HOLD)

    async def release(
        self, candidate: Candidate[UnixNs], *, by: str, legal: bool, only: str | None = None
    ) -> Hold | None:
        """Refuse."""
        _refuse(DomainVerb.HOLD)

    async def deletion_target(self, candidate: Candidate[UnixNs]) -> Target:
        """Refuse."""
        _refuse(DomainVerb.DELETE)

    async def apply(self, actions: Sequence[Action], *, also: Also | None) -> Sequence[Result]:
        """Refuse."""
        _refuse(DomainVerb.DELETE)


async def _no_pages() -> AsyncGenerator[Sequence[Candidate[UnixNs]], None]:
    nothing: tuple[Sequence[Candidate[UnixNs]], ...] = ()
    for page in nothing:
        yield page


def _refuse(verb: DomainVerb) -> NoReturn:
    raise UnsupportedVerbError(problem=KEYS.unsupported[verb])
