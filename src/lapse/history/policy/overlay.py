"""A store as it would be with other policies in it: for a pass by a policy that nobody has stored, or a changed one.

What is not stored protects and deletes as if it were; nothing is written, and it has no status.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lapse.history.api.kinds import RETENTION_POLICY, RetentionPolicy
from lapse.kube.resources import NO_LABELS, Json, Object, ObjectMeta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lapse.kube.resources import Kind, ObjectKey, Page
    from lapse.objects.port import Reader

    T = TypeVar("T", bound=Object)


class WithPolicies:
    """Reads like ``direct``, but for the policies: those of the same names are hidden behind ``documents``."""

    def __init__(self, direct: Reader, documents: Sequence[RetentionPolicy]) -> None:
        """Take ``documents`` as if they were stored; what a store fills in is left out of them."""
        self._direct = direct
        self._bodies = {one.metadata.name: _as_stored(one) for one in documents}

    async def get(self, kind: Kind[T], key: ObjectKey) -> T:
        """See `Reader`."""
        return await self._direct.get(kind, key)

    async def resolve(self, api_version: str, kind: str) -> Kind[Any]:
        """See `Reader`."""
        return await self._direct.resolve(api_version, kind)

    async def list(
        self,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[T]:
        """See `Reader`; the policies that are not stored are on the last page."""
        page = await self._direct.list(kind, namespace=namespace, labels=labels, limit=limit, after=after)
        if (kind.api_version, kind.kind) != (RETENTION_POLICY.api_version, RETENTION_POLICY.kind):
            return page
        items = [one for one in page.items if one.metadata.name not in self._bodies]
        if page.next is None:
            items += [kind.convert(body) for body in self._bodies.values()]
        return replace(page, items=tuple(items))


def _as_stored(policy: RetentionPolicy) -> Json:
    bare = RetentionPolicy(metadata=ObjectMeta(name=policy.metadata.name), spec=policy.spec)
    body: Json = msgspec.to_builtins(bare)
    return RETENTION_POLICY.body(body)
