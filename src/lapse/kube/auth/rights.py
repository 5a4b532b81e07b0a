"""Rights on a cluster: one verb on one kind, as roles give them and as the API server is asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lapse.kube.resources import Kind


class Right(NamedTuple):
    """One verb on one kind; ``subresource`` is empty or such as status."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str | None = None
    """None: in all of them."""
    name: str = ""
    """Of the one object that is meant; empty: all of them."""

    def __str__(self) -> str:
        """Print as an API server does."""
        part = f"/{self.subresource}" if self.subresource else ""
        place = f" in {self.namespace}" if self.namespace else ""
        named = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{part}{f'.{self.group}' if self.group else ''}{named}{place}"


def rights_on(kind: Kind[Any], *verbs: str, subresource: str = "", namespace: str | None = None) -> list[Right]:
    """Return one right for each verb."""
    return [Right(verb, kind.group, kind.plural, subresource, namespace) for verb in verbs]
