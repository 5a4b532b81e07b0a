"""The runner of the conformance kit: all cases by theme, chosen, run side by side, each result given as it comes.

A case that raises anything unexpected is violated: a store that fails is no store that holds. Not guaranteed: the
order of the results.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final

from lapse.core.errors import UsageError
from lapse.keys.conformance.case import Case, CaseKind, CaseOutcome, CaseResult, NotApplicable, TooSlow, Violation
from lapse.keys.conformance.cases import (
    cleanup,
    counts,
    expiry,
    isolation,
    locks,
    operations,
    races,
    scans,
    texts,
)
from lapse.keys.conformance.fixture import CaseFixture, Session, now_ns
from lapse.keys.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from lapse.keys.conformance.fixture import StoreTarget

_ATTEMPTS: Final = 3
"""How often a case is run when the machine was too slow for it, or a write's outcome stayed unknown."""
_THREADS_EXACT: Final = 4
_THREADS_REAL: Final = 32  # most of them wait for a TTL to be over
_NO_NEWS_SECONDS: Final = 60.0

CASES: Final[tuple[Case, ...]] = tuple(
    case
    for theme in (operations, expiry, texts, scans, isolation, cleanup, counts, locks, races)
    for case in theme.REGISTRY.cases
)
BY_ID: Final = {case.id: case for case in CASES}


class UnknownCaseError(UsageError):
    """There is no conformance case {given}. A run without a choice shows the ids of all."""


def list_cases() -> tuple[Case, ...]:
    """Return all cases, grouped by theme."""
    return CASES


def run_conformance(target: StoreTarget, *, only: Sequence[str] | None = None) -> Generator[CaseResult, None, None]:
    """Run the cases, or ``only`` those with the given ids, and yield each result as soon as it is known.

    The store may hold other records: they are left alone. An unknown id is an error at once, a store that cannot be
    opened is one when the first result is asked for; what goes wrong later is a result. A caller that does not listen
    to the end closes the generator, which lets the cases at hand end and cleans up.
    """
    return _run_all(target, _chosen(only))


def _chosen(only: Sequence[str] | None) -> list[Case]:
    if only is None:
        return list(CASES)
    unknown = [wanted for wanted in only if wanted not in BY_ID]
    if unknown:
        raise UnknownCaseError(given=repr(unknown[0]))
    return [case for case in CASES if case.id in set(only)]


def _run_all(target: StoreTarget, cases: list[Case]) -> Generator[CaseResult, None, None]:
    session = Session(target)
    run = _Run(session)
    try:
        yield from run.results([case for case in cases if case.kind is not CaseKind.LAST])
        for case in cases:
            if case.kind is CaseKind.LAST:
                yield run_case(session, case)
    finally:
        run.stop()
        session.close()


class _Run:
    """The lanes of one run: a few threads for the plain cases, one for the races."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._results: queue.SimpleQueue[CaseResult] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._lanes: list[threading.Thread] = []
        self._hangs = False

    def results(self, cases: list[Case]) -> Iterator[CaseResult]:
        """Start the lanes and yield what they find."""
        waiting = {case.id: case for case in cases}
        races = [case for case in cases if case.kind is CaseKind.RACE]
        exact = [
            case
            for case in cases
            if case.kind is not CaseKind.RACE and CaseFixture.is_exact(self._session.target, case)
        ]
        real = [case for case in cases if case.kind is not CaseKind.RACE and case not in exact]
        for lane, threads in ((races, 1), (exact, _THREADS_EXACT), (real, _THREADS_REAL)):
            self._start(lane, threads=threads)
        while waiting:
            try:
                result = self._results.get(timeout=_NO_NEWS_SECONDS)
            except queue.Empty:
                self._hangs = True
                yield from (_hanging(case) for case in waiting.values())
                return
            del waiting[result.case.id]
            yield result

    def stop(self) -> None:
        """Let the cases at hand end and start no other. One that hangs stays behind in a thread of its own."""
        self._stopped.set()
        for lane in self._lanes:
            if not self._hangs:
                lane.join()

    def _start(self, cases: list[Case], *, threads: int) -> None:
        todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in cases:
            todo.put(case)
        for _ in range(min(threads, len(cases))):
            lane = threading.Thread(target=self._work, args=(todo,), name="lapse-conformance-lane", daemon=True)
            self._lanes.append(lane)
            lane.start()

    def _work(self, todo: queue.SimpleQueue[Case]) -> None:
        while not self._stopped.is_set():
            try:
                case = todo.get_nowait()
            except queue.Empty:
                return
            self._results.put(run_case(self._session, case))


def run_case(session: Session, case: Case) -> CaseResult:
    """Run one case in a fixture of its own and clean up after it."""
    started_ns = now_ns()
    outcome, detail = CaseOutcome.NOT_APPLICABLE, "not run"
    for _ in range(_ATTEMPTS):
        try:
            outcome, detail = CaseOutcome.HOLDS, _in_fixture(session, case) or ""
        except (TooSlow, OutcomeUnknownError) as reason:
            outcome, detail = (
                CaseOutcome.NOT_APPLICABLE,
                f"run {_ATTEMPTS} times without a clear answer: {_told(reason)}",
            )
            continue
        except NotApplicable as reason:
            outcome, detail = CaseOutcome.NOT_APPLICABLE, str(reason)
        except Violation as finding:
            outcome, detail = CaseOutcome.VIOLATED, str(finding)
        except Exception as error:  # noqa: BLE001 - whatever a store raises is a finding about it
            outcome, detail = CaseOutcome.VIOLATED, f"expected no error, saw {_told(error)}"
        break
    return CaseResult(case, outcome, session.target.without_secrets(detail), (now_ns() - started_ns) / 1e9)


def _in_fixture(session: Session, case: Case) -> str | None:
    fixture = CaseFixture(session, case)
    try:
        return case.check(fixture)
    finally:
        fixture.leave()


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error) or type(error).__doc__}"


def _hanging(case: Case) -> CaseResult:
    detail = f"expected an end, saw no news from it or any other case for {_NO_NEWS_SECONDS:.0f} s"
    return CaseResult(case, CaseOutcome.VIOLATED, detail, _NO_NEWS_SECONDS)
