"""The registration of the keys domain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapse.core.address import AddressKind
from lapse.engine.registry import DomainVerb, Noun, Registration, ScopeForm
from lapse.keys.validation import MAX_APP_ID, app_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.core.decision import Reason
    from lapse.core.errors import LapseError


def _app_problem(text: str) -> str | None:
    return None if _is_app(text) else f"the application id must be a whole number from 0 to {MAX_APP_ID}"


def _is_app(text: str) -> bool:
    return app_number(text) is not None


def _reasons() -> Iterable[Reason]:
    from lapse.core.decision import DueReason

    return (DueReason.TTL_EXPIRED,)


def _errors() -> tuple[type[LapseError], ...]:
    from lapse.keys.errors import BackendError

    return (BackendError,)


KEYS: Final = Registration(
    name="keys",
    kinds=(AddressKind("key", "APP", _app_problem),),
    reasons=_reasons,
    unsupported={
        DomainVerb.FREEZE: "Keys cannot be frozen: a key is gone at the instant of its expiry, whether or not anything "
        "removes it",
        DomainVerb.APPLY: "Keys are ended by no plan: a key is gone at the instant of its expiry, by itself",
        DomainVerb.HOLD: "Keys cannot be held: a key is gone at the instant of its expiry. Give it more time with "
        "lapse extend",
        DomainVerb.DELETE: "Keys are deleted with lapse keys delete: other deletions are journalled by name, and names "
        "of keys are secrets",
        DomainVerb.UNDO: "Keys cannot be brought back: their names and values are secrets, of which no copy is kept",
    },
    errors=_errors,
    scope=ScopeForm("APP", "7", _is_app),
    noun=Noun("lapse.cli.commands.keys:app", "Read and write expiring keys; prove a backend."),
)
DOMAINS: Final = (KEYS,)
