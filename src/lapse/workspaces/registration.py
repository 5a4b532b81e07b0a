"""The registration of the workspaces domain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from lapse.core.address import AddressKind
from lapse.engine.registry import Noun, Registration, ScopeForm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.decision import Reason
    from lapse.core.errors import LapseError

_OWNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,252}")


def _reasons() -> Iterable[Reason]:
    from lapse.workspaces.ttl_manager import WorkspaceRule

    return WorkspaceRule.reasons


def _errors() -> tuple[type[LapseError], ...]:
    from lapse.workspaces.errors import WorkspaceStoreError

    return (WorkspaceStoreError,)


WORKSPACES: Final = Registration(
    name="workspaces",
    kinds=(AddressKind("workspace"),),
    reasons=_reasons,
    errors=_errors,
    is_in_database=True,
    budget_setting="workspaces_deletion_budget",
    scope=ScopeForm("OWNER", "alice", lambda text: _OWNER.fullmatch(text) is not None),
    routes={
        Registration.LISTS: ("GET /workspaces",),
        "operate": tuple(f"POST /workspaces/{{name}}/{verb}" for verb in ("start", "stop", "archive")),
        "holds": tuple(f"POST /workspaces/{{name}}/{verb}" for verb in ("hold", "release")),
    },
    noun=Noun("lapse.cli.commands.workspaces:app", "Create, open, stop and archive workspaces."),
)
DOMAINS: Final = (WORKSPACES,)
