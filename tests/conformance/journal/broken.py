"""Deliberately broken journals, each wrong in one way, around a real one.

They know nothing of its inside: they stand between a case and the port, and spoil what goes through.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from lapse.engine.journal.port import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lapse.engine.journal.port import Entry, OldRow, Row, RowPosition

_EVERYTHING = 1_000


class Passing:
    """Passes everything on. Subclasses spoil one thing."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - a journal of either database
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.inner, name)


class Reading(Passing):
    """Spoils what is asked for."""

    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return how

    def read(self, rows: list[Row], how: dict[str, Any]) -> list[Row]:
        return rows

    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        return self.read(await self.inner.entries(**self.asked(how)), how)


# --- writing ----------------------------------------------------------------------------------------------------------


class WritesOneByOne(Passing):
    async def append(self, *entries: Entry) -> None:
        for entry in entries:
            await self.inner.append(entry)


class LosesDetails(Passing):
    async def append(self, *entries: Entry) -> None:
        await self.inner.append(*(replace(entry, details=None) for entry in entries))


class KeepsRowsToItself(Passing):
    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        super().__init__(inner)
        self.kept: list[Entry] = []

    async def append(self, *entries: Entry) -> None:
        self.kept += entries


class SharesWithEverybody(Passing):
    def shares(self, store: object) -> bool:
        return True


# --- reading ----------------------------------------------------------------------------------------------------------


class NewestLast(Reading):
    def read(self, rows: list[Row], how: dict[str, Any]) -> list[Row]:
        return rows if "after" in how else rows[::-1]


class PagesByTimeAlone(Reading):
    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        before = how.get("before")
        return how if before is None else {**how, "before": before._replace(id=0)}


class PagesBeginWithTheLast(Reading):
    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        before = how.get("before")
        return how if before is None else {**how, "before": before._replace(id=before.id + 1), "limit": 5}


class SinceLeavesItsMomentOut(Reading):
    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "since_ns": how["since_ns"] + 1} if "since_ns" in how else how


class UntilTakesItsMomentIn(Reading):
    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return {**how, "until_ns": how["until_ns"] + 1} if "until_ns" in how else how


class Ignores(Reading):
    """Does not look at one column, by name."""

    column: ClassVar[str]

    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in how.items() if name != self.column}


class IgnoresDomains(Ignores):
    column = "domain"


class IgnoresAddresses(Ignores):
    column = "address"


class IgnoresSearches(Ignores):
    column = "search"


class SearchesInAnyCase(Reading):
    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        text = how.pop("search", None)
        rows = await self.inner.entries(**how)
        return [row for row in rows if text is None or text.casefold() in row.address.casefold()]


class SearchesForPatterns(Reading):
    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        text = how.pop("search", None)
        rows = await self.inner.entries(**how)
        return [row for row in rows if text is None or fnmatchcase(row.address, f"*{text}*")]


class SearchesInDetails(Reading):
    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        text = how.pop("search", None)
        rows = await self.inner.entries(**how)
        return [row for row in rows if text is None or text in f"{row.address} {row.details}"]


class SearchesAPageOnly(Reading):
    """Looks for the text in the page that it has read, which may hold nothing of it."""

    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        text = how.pop("search", None)
        rows = await self.inner.entries(**how)
        return [row for row in rows if text is None or text in row.address]


class FollowersSearchNothing(Ignores):
    column = "search"

    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return super().asked(how) if "after" in how else how


class IgnoresUids(Ignores):
    column = "uid"


class IgnoresActors(Ignores):
    column = "actor"


class IgnoresOutcomes(Ignores):
    column = "outcome"


class IgnoresPolicies(Ignores):
    column = "policy"


class NothingIsFinished(Passing):
    async def unfinished(self, *, limit: int = 100) -> list[Row]:
        return list(await self.inner.entries(outcome=Outcome.INTENT, limit=limit))


# --- following --------------------------------------------------------------------------------------------------------


class FollowsByTime(Reading):
    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        after = how.pop("after", None)
        if after is None:
            return list(await self.inner.entries(**how))
        limit = how.pop("limit", 100)
        rows = reversed(await self.inner.entries(limit=_EVERYTHING, **how))
        return [row for row in rows if (row.time_ns, row.id) > after[:2]][:limit]


class FollowsById(Reading):
    """Takes the order of ids for that of commits: right where one writes at a time, and wrong elsewhere."""

    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        after = how.pop("after", None)
        if after is None:
            return list(await self.inner.entries(**how))
        limit = how.pop("limit", 100)
        rows = sorted(await self.inner.entries(limit=_EVERYTHING, **how), key=lambda row: row.id)
        return [row for row in rows if row.id > after.id][:limit]


class FollowersSeeTheLastAgain(Reading):
    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        after = how.get("after")
        return how if after is None else {**how, "after": after._replace(id=after.id - 1)}

    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        rows = await super().entries(**how)
        after = how.get("after")
        return [] if after is not None and [row.id for row in rows] == [after.id] else rows


class FollowersMissTheLastOfAPage(Reading):
    def read(self, rows: list[Row], how: dict[str, Any]) -> list[Row]:
        if "after" not in how or len(rows) < how.get("limit", 100) or len(rows) < 2:
            return rows
        return [*rows[:-2], rows[-1]]


class FollowersSeeEverything(Ignores):
    column = "domain"

    def asked(self, how: dict[str, Any]) -> dict[str, Any]:
        return super().asked(how) if "after" in how else how


class TheEndIsAhead(Passing):
    async def end(self) -> RowPosition:
        end: RowPosition = await self.inner.end()
        return end._replace(id=end.id + 1)


class TheEndIsTheBeginning(Passing):
    async def end(self) -> RowPosition:
        end: RowPosition = await self.inner.end()
        return end._replace(id=0, transaction=0)


class IdsBeginAnew(Passing):
    """Gives ids of rows that were removed once more."""

    given_again = 0

    async def remove(self, ids: Sequence[int]) -> int:
        self.given_again = max(ids, default=0)
        return int(await self.inner.remove(ids))

    async def entries(self, **how: Any) -> list[Row]:  # noqa: ANN401
        rows: list[Row] = await self.inner.entries(**how)
        return [row for row in rows if "after" not in how or row.id - self.given_again > how["after"].id]


# --- changes of a verdict ---------------------------------------------------------------------------------------------


class EveryLookIsNews(Passing):
    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        await self.inner.append(entry)
        return True


class NewsAreForgottenWithTheProcess(Passing):
    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        super().__init__(inner)
        self.last: dict[tuple[str, str], tuple[str, str, str]] = {}

    async def append(self, *entries: Entry) -> None:
        for entry in entries:
            self.last.pop((entry.domain, entry.uid), None)
        await self.inner.append(*entries)

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        of, said = (entry.domain, entry.uid), (entry.verdict, str(entry.reason), str(entry.outcome))
        if self.last.get(of) == said or (of not in self.last and unless_first):
            return False
        await self.inner.append(entry)
        self.last[of] = said
        return True


class NewsAreToldOnceForEver(Passing):
    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        super().__init__(inner)
        self.told: set[tuple[str, ...]] = set()

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        key = (entry.domain, entry.uid, entry.verdict, str(entry.reason))
        if key in self.told:
            return False
        self.told.add(key)
        return bool(await self.inner.note(entry, unless_first=unless_first))


class DomainsHideEachOthersNews(Passing):
    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        return bool(await self.inner.note(replace(entry, domain="any"), unless_first=unless_first))


class FirstLooksAreNews(Passing):
    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        return bool(await self.inner.note(entry))


class TheAuditMakesNews(Passing):
    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        super().__init__(inner)
        self.fresh: set[str] = set()

    async def append(self, *entries: Entry) -> None:
        self.fresh |= {entry.uid for entry in entries}
        await self.inner.append(*entries)

    async def note(self, entry: Entry, *, unless_first: bool = False) -> bool:
        if entry.uid in self.fresh:
            await self.inner.append(entry)
            return True
        return bool(await self.inner.note(entry, unless_first=unless_first))


# --- removing ---------------------------------------------------------------------------------------------------------


class OldRowsIncludeTheMoment(Passing):
    async def oldest(self, *, until_ns: int, behind: RowPosition | None, limit: int) -> list[OldRow]:
        return list(await self.inner.oldest(until_ns=until_ns + 1, behind=behind, limit=limit))


class OldRowsBeginAnew(Passing):
    async def oldest(self, *, until_ns: int, behind: RowPosition | None, limit: int) -> list[OldRow]:
        return list(await self.inner.oldest(until_ns=until_ns, behind=None, limit=limit))


class RemovesTheNextAsWell(Passing):
    async def remove(self, ids: Sequence[int]) -> int:
        return min(len(ids), int(await self.inner.remove([*ids, *(number + 1 for number in ids)])))


class CountsWhatWasAsked(Passing):
    async def remove(self, ids: Sequence[int]) -> int:
        await self.inner.remove(ids)
        return len(ids)
