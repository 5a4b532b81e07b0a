"""What a policy is about, read from a store in pages, as entries.

Metadata is all that is asked for where the policy needs no more, and of whole objects no more than an entry is kept.
A listing shows one moment per namespace that the policy names, or one for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.history.policy import SYSTEM_NAMESPACE
from lapse.kube.resources import Document, metadata_only

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from lapse.core.clock import Clock
    from lapse.history.policy import Policy
    from lapse.history.retention import Entry
    from lapse.kube.resources import Kind, PartialObject
    from lapse.objects.port import Reader

PAGE: Final = 500
"""Objects of one page: what an API server sends without effort."""
LEFT_ALONE: Final = frozenset({SYSTEM_NAMESPACE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """See the module."""

    policy: Policy
    kind: Kind[Any]
    direct: Reader
    clock: Clock
    labels: Mapping[str, str]
    """Beside those of the policy."""
    left_alone: Collection[str] = LEFT_ALONE
    page: int = PAGE

    async def pages(self, proceed: Callable[[], bool]) -> AsyncIterator[list[Entry]]:
        """Yield what the policy is about; ``proceed`` is asked before each page. Raises what the store answers.

        By pages, so that there is one step of an asynchronous iterator for each page and not for each entry.
        """
        is_enough = self.policy.is_metadata_enough
        kind: Kind[Any] = metadata_only(self.kind) if is_enough else replace(self.kind, type=Document)
        labels = {**self.policy.labels, **self.labels}
        for namespace in self._namespaces():
            after: str | None = None
            while proceed():
                found = await self.direct.list(kind, namespace=namespace, labels=labels, limit=self.page, after=after)
                yield [entry for one in found.items if (entry := self._entry(one)) is not None]
                after = found.next
                if after is None:
                    break
                await self.clock.sleep(0)  # a page of an embedded store waits for nothing: others have their turn

    def _namespaces(self) -> tuple[str | None, ...]:
        return self.policy.namespaces if self.policy.namespaces and self.kind.namespaced else (None,)

    def _entry(self, found: PartialObject | Document) -> Entry | None:
        document = found.body if isinstance(found, Document) else {"metadata": msgspec.to_builtins(found.metadata)}
        if not self.policy.covers(document["metadata"].get("namespace"), left_alone=self.left_alone):
            return None
        return self.policy.entry(document)
