"""What the domains of one process have in common, wherever it works: their kinds, and what can be frozen.

Domains never import each other, so this is where they meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lapse.history.api.kinds import OUR_KINDS as HISTORY_KINDS
from lapse.history.retention.passes import DOMAINS as HISTORY_DOMAINS
from lapse.requests.api.upstream import ALL_KINDS as REQUEST_KINDS
from lapse.requests.service import DOMAINS as REQUEST_DOMAINS
from lapse.workspaces.model import DOMAIN as WORKSPACES

if TYPE_CHECKING:
    from lapse.kube.resources import Kind

ACTOR: Final = "lapse"
"""Who ends things, as the journal names it."""
KINDS: Final[tuple[Kind[Any], ...]] = (*REQUEST_KINDS, *HISTORY_KINDS)
DOMAINS: Final = (*REQUEST_DOMAINS, *HISTORY_DOMAINS)
"""What can be frozen, and has a deletion budget, on a cluster."""
FOLDER_DOMAINS: Final = (*DOMAINS, WORKSPACES)
"""The same where there is a state folder."""
