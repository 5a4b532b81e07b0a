"""A case of the conformance kit: one rule, shown by one small check, with an answer that a person can read.

A case is a function of a `CaseFixture`; its name is its stable id and its docstring is its title. It returns when the
rule holds (with a note, if there is something to say about how it was shown), raises `Violation` when it does not, and
`NotApplicable` when this store gives no occasion to ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lapse.keys.conformance.fixture import CaseFixture

Check = Callable[["CaseFixture"], "str | None"]

_LONGEST_SHOWN: Final = 120


class ContractRule(StrEnum):
    """The rules of the contract that the cases hold, in its words."""

    OPERATIONS = "every operation does what it says on a live, an absent and an expired key"
    INSTANT = (
        "a key is gone at the instant now >= expiry, swept or not; on servers never early, late within the stated bound"
    )
    TTL = "a TTL is whole: it starts with the write, restarts with swap, put and touch, and with nothing else"
    QUERY_TTL = "query_ttl never shows 0 for a live key, nor more than was given; expires_at is the absolute expiry"
    LIMITS = "keys of 1 to 1024 bytes and values of 0 to 65536 bytes of UTF-8 are stored"
    AS_IS = "keys and values are stored as they are: any character, no normalisation"
    ISOLATION = "each application id has a storage of its own"
    BUCKETS = "bucket spreading changes where records live and nothing else; another number of buckets is an error"
    SCAN = "scan gives live keys in byte order, in pages, without state on the server"
    MANY = "get_many gives the live ones; insert_many inserts if absent, item by item"
    CLEANUP = "cleanup removes what is over, physically, and never a record that was renewed or rewritten since"
    COUNT = "a count of what expires until a moment holds live records, each once, at its present expiry"
    ATOMIC = "each operation is one atomic step: one winner, no update lost"
    LOCK = "a lock has one holder at a time, grows its fencing number and says when it was lost"
    NOTHING_LEFT = "the kit leaves nothing behind"


class CaseOutcome(StrEnum):
    """What a case found."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_APPLICABLE = "not applicable"


class CaseKind(Enum):
    """How a case must be run."""

    PLAIN = "beside others"
    REAL = "beside others, and in real time on every store"
    SWEEP = "beside others; sweeps the whole store, so in real time where others use it"
    RACE = "alone in its lane, with workers in threads and processes"
    LAST = "after all others"


class CallStyle(Enum):
    """Which of the two APIs of keys a case calls."""

    BLOCKING = "blocking"
    AWAITED = "awaited"


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of the kit."""

    id: str
    """Stable; to be named in ``only`` and in bug reports."""
    title: str
    """A sentence that is true when the rule holds."""
    rule: ContractRule
    check: Check
    kind: CaseKind = CaseKind.PLAIN
    style: CallStyle = CallStyle.BLOCKING

    def awaited(self) -> Case:
        """Return the same case for the awaitable API."""
        return replace(self, id=f"async-{self.id}", title=f"{self.title} (awaited)", style=CallStyle.AWAITED)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a case found, and in a sentence why."""

    case: Case
    outcome: CaseOutcome
    detail: str
    """Violated: what was expected and what was seen. Not applicable: why. Holds: how it was shown, or empty."""
    seconds: float


class Violation(AssertionError):  # noqa: N818 - a finding about a store, not an error of the program
    """The rule does not hold: the message says what was expected and what was seen."""


class NotApplicable(Exception):  # noqa: N818 - a reason, not an error
    """This store gives no occasion for the case: the message says why."""


class TooSlow(Exception):  # noqa: N818 - a reason to run the case again
    """The machine stood still for longer than a TTL of the case, so its answers prove nothing."""


class CaseRegistry:
    """The cases of one theme, in the order in which they are written down."""

    def __init__(self, *, both_styles: bool = False) -> None:
        """With ``both_styles`` each case is also run through the awaitable API."""
        self._both_styles = both_styles
        self.cases: list[Case] = []

    def case(self, rule: ContractRule, *, kind: CaseKind = CaseKind.PLAIN) -> Callable[[Check], Check]:
        """Register a function as a case: its name becomes the id, the first sentence of its docstring the title."""

        def register(check: Check) -> Check:
            name = check.__name__.strip("_").replace("_", "-")
            title = " ".join((check.__doc__ or name).split()).removesuffix(".")
            entry = Case(name, title, rule, check, kind)
            self.cases += [entry, entry.awaited()] if self._both_styles else [entry]
            return check

        return register


def expect(saw: object, wanted: object, what: str) -> None:
    """Raise `Violation` unless ``saw`` equals ``wanted``, and is of the same type: 1 is not True."""
    if type(saw) is not type(wanted) or saw != wanted:
        raise Violation(f"{what}: expected {shown(wanted)}, saw {shown(saw)}")


def expect_that(holds: bool, what: str, *, wanted: str, saw: object) -> None:  # noqa: FBT001 - the first argument is the assertion
    """Raise `Violation` unless ``holds``."""
    if not holds:
        raise Violation(f"{what}: expected {wanted}, saw {shown(saw)}")


def shown(value: Any) -> str:  # noqa: ANN401 - anything a store may answer
    """Print a value for a sentence: printable ASCII, and not longer than a person reads."""
    text = ascii(value)
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[:_LONGEST_SHOWN]}... ({len(text)} characters)"
