"""Discovery of kinds: asked once per group and version, kept for a while, and asked again for what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.kube.api.wire import is_api_version, root
from lapse.kube.errors import NotFoundError, UnknownKindError
from lapse.kube.resources import Document, Kind, Struct

if TYPE_CHECKING:
    from lapse.kube.api.client import KubeClient

KEPT_SECONDS: Final = 600
"""A definition that was removed and made again may have another scope."""
_NS: Final = 1_000_000_000


class _Resource(Struct, frozen=True):
    name: str
    kind: str
    namespaced: bool = False


class _Resources(Struct, frozen=True):
    resources: tuple[_Resource, ...] | None = None


class _Version(Struct, frozen=True):
    group_version: str


class _Group(Struct, frozen=True):
    preferred_version: _Version | None = None


class Discovery:
    """See the module. Belongs to one event loop."""

    def __init__(self, client: KubeClient) -> None:
        """Know nothing yet."""
        self._client = client
        self._known: dict[str, tuple[int, dict[str, Kind[Any]]]] = {}

    async def find(self, api_version: str, kind: str) -> Kind[Any]:
        """Return the kind of that name, untyped; raises `UnknownKindError` after asking the server."""
        if not is_api_version(api_version):
            raise UnknownKindError(kind=kind, api_version=api_version)
        until_ns, kinds = self._known.get(api_version, (0, {}))
        if kind not in kinds or self._client.clock.monotonic_ns() >= until_ns:
            kinds = await self._ask(api_version)
        try:
            return kinds[kind]
        except KeyError:
            raise UnknownKindError(kind=kind, api_version=api_version) from None

    async def find_preferred(self, name: str) -> Kind[Any]:
        """Return the kind ``KIND.GROUP``, or ``KIND`` of the core group, in the version that the server prefers."""
        kind, _, group = name.partition(".")
        if not group:
            return await self.find("v1", kind)
        try:
            found = await self._client.fetch(f"/apis/{group}", _Group)
        except (NotFoundError, UnknownKindError):  # whichever it is, it is about the group, and not about this kind
            raise UnknownKindError(kind=kind, api_version=group) from None
        if found.preferred_version is None:
            raise UnknownKindError(kind=kind, api_version=group)
        return await self.find(found.preferred_version.group_version, kind)

    async def _ask(self, api_version: str) -> dict[str, Kind[Any]]:
        try:
            found = await self._client.fetch(root(api_version), _Resources)
        except (NotFoundError, UnknownKindError):
            self._known.pop(api_version, None)
            return {}
        resources = found.resources or ()
        names = {resource.name for resource in resources}
        kinds: dict[str, Kind[Any]] = {
            resource.kind: Kind(
                api_version,
                resource.kind,
                resource.name,
                Document,
                namespaced=resource.namespaced,
                status=f"{resource.name}/status" in names,
            )
            for resource in resources
            if "/" not in resource.name
        }
        self._known[api_version] = (self._client.clock.monotonic_ns() + KEPT_SECONDS * _NS, kinds)
        return kinds
