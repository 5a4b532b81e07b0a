"""Deliberately broken services, each wrong in one way, around the real one.

They know nothing of the inside: they stand between a case and the verbs, and spoil what goes through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec.structs import replace

from lapse.core.errors import LapseError
from lapse.engine.plans.planner import NoSuchPolicyError
from lapse.engine.service import ExtensionError, NotAuthorError
from lapse.engine.verbs.contract import PlanRequest, SteeredView, UndoRequest

if TYPE_CHECKING:
    from lapse.engine.verbs.contract import Verbs


class Passing:
    """Passes everything on. Subclasses spoil one thing."""

    def __init__(self, inner: Verbs) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        return getattr(self.inner, name)


class AppliesAll(Passing):
    """Ends more than was chosen."""

    async def apply(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.apply(replace(asked, only=None))


class AppliesWhatItKnows(Passing):
    """Ignores what was chosen and is not in the plan."""

    async def apply(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        known = {one.address for one in asked.plan.items}
        only = None if asked.only is None else [one for one in asked.only if one in known]
        return await self.inner.apply(replace(asked, only=only))


class AppliesWhatIsDueNow(Passing):
    """Carries out a plan of its own instead of the one that it was given."""

    async def apply(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.apply(replace(asked, plan=await self.inner.plan(PlanRequest())))


class TakesWhateverHasTheAddress(Passing):
    """Does to another thing of the same address what was asked of one."""

    async def delete(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.delete(replace(asked, uid=None))


class PlansForADay(Passing):
    """Looks no less far than a day."""

    async def plan(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.plan(replace(asked, within="24h"))


class ForgetsDomains(Passing):
    """Plans for all domains, whatever was asked."""

    async def plan(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.plan(replace(asked, domains=[]))


class ForecastsForADay(Passing):
    """Knows no other window."""

    async def forecast(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.forecast(replace(asked, within="24h"))


class ForecastsTheFirstPage(Passing):
    """Begins every page with the nearest thing."""

    async def forecast(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.forecast(replace(asked, after=None))


class ForgetsPolicies(Passing):
    """Plans for all policies, whatever was asked."""

    async def plan(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.plan(replace(asked, policy=None))


class PlansNothingForUnknownPolicies(Passing):
    """Has an empty plan for a policy that nobody knows."""

    async def plan(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        try:
            return await self.inner.plan(asked)
        except NoSuchPolicyError:
            return replace(await self.inner.plan(replace(asked, policy=None)), items=[])


class AnswersForNow(Passing):
    """Explains no other time."""

    async def why(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.why(replace(asked, at=None))


class DecodesAddresses(Passing):
    """Decodes what is decoded later, as a server does that takes the path apart."""

    async def why(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.why(replace(asked, address=unquote(asked.address)))


class ForgetsLegal(Passing):
    """Makes a legal hold a plain one."""

    async def hold(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.hold(replace(asked, legal=False))


class HoldsForEver(Passing):
    """Forgets when a hold ends."""

    async def hold(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.hold(replace(asked, until="never"))


class ReplacesHolds(Passing):
    """Lets every hold take the place of the one before."""

    async def hold(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.hold(replace(asked, replace=True))


class ReleasesLegalHolds(Passing):
    """Takes every release for one of a legal hold."""

    async def release(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.release(replace(asked, legal=True))


class ReleasesAnyHold(Passing):
    """Releases another hold than the one that was seen."""

    async def release(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.release(replace(asked, hash=None))


class AlwaysReleased(Passing):
    """Says that something was released, also where nothing was held."""

    async def release(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return replace(await self.inner.release(asked), changed=True)


class ExtendsInWords(Passing):
    """Says that it has given more time than is allowed."""

    async def extend(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        try:
            return await self.inner.extend(asked)
        except ExtensionError:
            return SteeredView(address=asked.address, domain="", uid="")


class DeletesInWords(Passing):
    """Says that it has deleted something."""

    async def delete(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return SteeredView(address=asked.address, domain="", uid="u-1")


class UndoesTheFirst(Passing):
    """Brings back one of several."""

    async def undo(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        if asked.plan is None or asked.address is not None:
            return await self.inner.undo(asked)
        return await self.inner.undo(UndoRequest(address="thing/a"))


class EmptiesAll(Passing):
    """Removes more from the trash than was asked."""

    async def empty_trash(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.empty_trash(replace(asked, address=None))


class OffersAnyUndo(Passing):
    """Offers to bring back whatever is gone."""

    async def why(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        told = await self.inner.why(asked)
        return replace(told, undo=f"lapse undo {told.address}") if told.verdict == "gone" else told


class ForgetsEnds(Passing):
    """Does not tell when what it has brought back lapses."""

    async def undo(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        done = await self.inner.undo(asked)
        return replace(done, items=[replace(one, deadline=None) for one in done.items])


class EmptiesAllOfAnAddress(Passing):
    """Forgets which one of several is meant."""

    async def empty_trash(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.empty_trash(replace(asked, uid=None))


class TellsAllOfTheTrash(Passing):
    """Knows no pages of the trash."""

    async def trash(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.trash(replace(asked, after=None))


class FreezesWithoutReason(Passing):
    """Forgets why something is frozen."""

    async def freeze(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.freeze(replace(asked, reason=""))


class FirstPageOnly(Passing):
    """Forgets where a page of the journal begins."""

    async def journal(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.journal(replace(asked, before=None))


class FollowsNobody(Passing):
    """Forgets after which row it is to go on."""

    async def journal(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.journal(replace(asked, after=None))


class KnowsNoFilters(Passing):
    """Tells rows of every time and everybody."""

    async def journal(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.journal(replace(asked, since=None, actor=None))


class SearchesNothing(Passing):
    """Tells of all addresses, whatever is searched for."""

    async def journal(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return await self.inner.journal(replace(asked, search=None))


class NothingIsFrozen(Passing):
    """Tells of no freeze."""

    async def status(self) -> Any:  # noqa: ANN401 - as the verb has it
        told = await self.inner.status()
        return replace(told, domains=[replace(one, frozen=None) for one in told.domains])


class OneError(Passing):
    """Raises one error for all, as a client does that does not read what a server answers."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any verb
        verb = super().__getattr__(name)

        async def call(*asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
            try:
                return await verb(*asked)
            except LapseError as error:
                raise LapseError from error

        return call


class ProposesForOthers(Passing):
    """Says that somebody else's plan is kept."""

    async def propose(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        try:
            return await self.inner.propose(asked)
        except NotAuthorError:
            return None


class ListsOnePageOfPlans(Passing):
    """Has no plans behind the first page."""

    async def plans(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        return replace(await self.inner.plans(asked), next=None)


class MakesAPlanInstead(Passing):
    """Shows a plan of its own instead of the one that was proposed."""

    async def proposed(self, asked: Any) -> Any:  # noqa: ANN401 - as the verb has it
        await self.inner.proposed(asked)
        return await self.inner.plan(PlanRequest())


BROKEN = [
    AppliesAll, AppliesWhatItKnows, AppliesWhatIsDueNow, PlansForADay, ForgetsDomains, ForgetsPolicies,
    ForecastsForADay, ForecastsTheFirstPage, PlansNothingForUnknownPolicies, AnswersForNow, DecodesAddresses,
    ProposesForOthers, ListsOnePageOfPlans, MakesAPlanInstead,
    ForgetsLegal, HoldsForEver, ReplacesHolds, ReleasesLegalHolds,
    ReleasesAnyHold, AlwaysReleased, ExtendsInWords, DeletesInWords,
    TakesWhateverHasTheAddress,
    UndoesTheFirst, EmptiesAll, EmptiesAllOfAnAddress, OffersAnyUndo, ForgetsEnds, TellsAllOfTheTrash,
    FreezesWithoutReason, FirstPageOnly, FollowsNobody, KnowsNoFilters, SearchesNothing, NothingIsFrozen, OneError,
]  # fmt: skip
