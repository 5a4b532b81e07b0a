"""What policies of one kind are about, read from a store in pages, as entries: one listing for all of them.

Metadata is all that is asked for where the policies need no more, and of whole objects no more than entries are kept.
Records without our labels are read whole. A listing shows one moment per namespace that the policies name, or one for
all of them. A store that can no longer show that moment (`GoneError`) is asked anew, and what was given before is not
given again: then each object is as it was at some time during the listing. Whoever needs one moment says so, and gets
the error.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from lapse.history.policy.policy import SYSTEM_NAMESPACE
from lapse.history.retention.reading import ObjectReader
from lapse.kube.errors import GoneError
from lapse.kube.resources import Document, metadata_only

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence

    from lapse.core.clock import Clock
    from lapse.history.policy.policy import Policy
    from lapse.history.retention.policy_set import Views
    from lapse.kube.resources import Kind, ObjectKey
    from lapse.objects.port import Reader

PAGE: Final = 500
"""Objects of one page: what an API server sends without effort."""
LEFT_ALONE: Final[frozenset[str]] = frozenset({SYSTEM_NAMESPACE})
ATTEMPTS: Final = 3
"""How often a listing is begun, at most, when its moment is gone before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """See the module."""

    policies: Sequence[Policy]
    kind: Kind[Any]
    direct: Reader
    clock: Clock
    labels: Mapping[str, str]
    """Beside those of the policies."""
    left_alone: Collection[str] = LEFT_ALONE
    page: int = PAGE

    async def pages(
        self,
        proceed: Callable[[], bool],
        *,
        of_one_moment: bool = False,
        is_outdated: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[list[Views]]:
        """Yield what the policies are about; ``proceed`` is asked before each page. Raises what the store answers.

        By pages, so that there is one step of an asynchronous iterator for each page and not for each object. Whoever
        deleted much since the last page says that the moment is outdated: to show it on and on would cost a store more
        and more.
        """
        for namespace in self.namespaces():
            given, left = _Given(), ATTEMPTS
            while left:
                try:
                    async with aclosing(self._attempt(namespace, given, proceed)) as attempt:
                        async for page in attempt:
                            yield page
                            if is_outdated():
                                break
                        else:
                            break
                except GoneError:
                    left -= 1
                    if of_one_moment or not left:
                        raise
                given.is_again = True

    async def _attempt(
        self, namespace: str | None, given: _Given, proceed: Callable[[], bool]
    ) -> AsyncGenerator[list[Views], None]:
        reading, labels = self.reading(), self.asked_labels()
        pages = read_pages(
            self.direct, self.kind, reading, namespace=namespace, labels=labels, limit=self.page, proceed=proceed
        )
        async with aclosing(pages):
            async for found in pages:
                yield [views for one in given.new(found) if any(views := reading.views(one))]
                await self.clock.sleep(0)  # a page of an embedded store waits for nothing: others have their turn

    def namespaces(self) -> tuple[str | None, ...]:
        """Return the namespaces to list, one after the other; None is for all of them."""
        if not self.kind.namespaced or not all(policy.namespaces for policy in self.policies):
            return (None,)
        return tuple(sorted({namespace for policy in self.policies for namespace in policy.namespaces}))

    def asked_labels(self) -> dict[str, str]:
        """Return the labels to ask for: those that all policies want; what one wants beyond them is looked at here."""
        common = set.intersection(*(set(policy.labels.items()) for policy in self.policies))
        return {**dict(common), **self.labels}

    def reading(self) -> ObjectReader:
        """Return what makes entries of objects that have these labels."""
        return ObjectReader(self.policies, asked=self.asked_labels(), left_alone=self.left_alone)


async def read_pages(
    direct: Reader,
    kind: Kind[Any],
    reading: ObjectReader,
    *,
    namespace: str | None,
    labels: Mapping[str, str],
    limit: int,
    proceed: Callable[[], bool] = lambda: True,
) -> AsyncGenerator[Sequence[Any], None]:
    """Yield the objects of a kind, as far as policies need them: their metadata, or whole; ask before each page.

    A page of records of which some lack our labels is read again, whole, and the next one at once: page by page, so
    that a store is asked for no more than there are. All pages show one moment.
    """
    bare: Kind[Any] = metadata_only(kind)
    whole: Kind[Any] = replace(kind, type=Document)
    asked = bare if reading.is_metadata_enough else whole
    after: str | None = None
    while proceed():
        found = await direct.list(asked, namespace=namespace, labels=labels, limit=limit, after=after)
        if reading.is_metadata_enough:
            is_lacking = any(map(reading.lacks_labels, found.items))
            if is_lacking and asked is bare:
                found = await direct.list(whole, namespace=namespace, labels=labels, limit=limit, after=after)
            asked = whole if is_lacking else bare
        yield found.items
        after = found.next
        if after is None:
            return


@dataclass(slots=True)
class _Given:
    """What a listing has given so far: of each namespace that it came to, names up to one; in the last one, or all."""

    is_again: bool = False
    _passed: set[str | None] = field(default_factory=set)
    _last: ObjectKey | None = None

    def new(self, page: Sequence[Any]) -> Sequence[Any]:
        """Return those that were not given before, and remember them."""
        found = [one for one in page if self._is_new(one.metadata.key)] if self.is_again else page
        if found:
            self._passed.update([one.metadata.namespace for one in found])
            self._last = found[-1].metadata.key
        return found

    def _is_new(self, key: ObjectKey) -> bool:
        if self._last is not None and key.namespace == self._last.namespace:
            return key.name > self._last.name
        return key.namespace not in self._passed
