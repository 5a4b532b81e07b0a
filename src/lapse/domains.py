"""The domains of this installation: those of Lapse itself, in one list, and those of other distributions.

A domain of Lapse itself is added by its `Registration` in this list; one of another distribution by an entry point (see
`lapse.engine.registry`). Domains never import each other: this is where they meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.engine.registry import Registry
from lapse.history.registration import DOMAINS as HISTORY
from lapse.keys.registration import DOMAINS as KEYS
from lapse.requests.registration import DOMAINS as REQUESTS
from lapse.workspaces.registration import DOMAINS as WORKSPACES

if TYPE_CHECKING:
    from lapse.kube.resources import Kind

REGISTRY: Final = Registry([*KEYS, *REQUESTS, *HISTORY, *WORKSPACES])


def object_kinds() -> tuple[Kind[Any], ...]:
    """Return every kind of object that a domain of Lapse itself owns."""
    return tuple(kind for one in REGISTRY.built_in for kind in one.object_kinds())
