"""``lapse keys conformance``: run the kit on a store and show what holds.

The result table and the capability table go to stdout, progress and the summary to stderr. The exit code is 0 when no
rule is violated; a rule that this store gives no occasion to ask about counts neither way, and the table says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lapse.cli.output import ExitCode, Output, OutputOption, message, print_json, print_table, print_text, stderr
from lapse.keys.conformance import CaseOutcome, CaseResult, StoreTarget, list_cases, run_conformance
from lapse.keys.port import Capabilities
from lapse.keys.url import parse_url

_SUMMARY: Final = {
    CaseOutcome.HOLDS: "hold",
    CaseOutcome.VIOLATED: "violated",
    CaseOutcome.NOT_APPLICABLE: "not applicable",
}
_STYLES: Final = {CaseOutcome.HOLDS: "green", CaseOutcome.VIOLATED: "bold red", CaseOutcome.NOT_APPLICABLE: "dim"}


def conformance(
    url: Annotated[str, Parameter(metavar="URL", help="The store, as memory:// or file:///path/keys.db.")],
    /,
    *,
    only: Annotated[
        list[str] | None,
        Parameter(metavar="ID", help="Only the cases with these ids.", consume_multiple=True, negative=()),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Run the kit and print what holds; the help text stands where the command is registered."""
    target = StoreTarget.from_url(url)
    with closing(_watched(target, only)) as played:
        found = {result.case.id: result for result in played}
    results = [found[case.id] for case in list_cases() if case.id in found]
    if output is Output.JSON:
        print_json(_as_json(url, results, target.capabilities()))
    else:
        _print_tables(results, target.capabilities())
    return _conclude(results)


def _watched(target: StoreTarget, only: list[str] | None) -> Generator[CaseResult]:
    """Yield the results while a bar on the terminal shows how far it is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = stderr()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("playing", total=len(set(only)) if only else len(list_cases()))
        for result in run_conformance(target, only=only or None):
            progress.advance(task)
            yield result


def _print_tables(results: list[CaseResult], promises: Capabilities) -> None:
    rows = ((result.outcome, result.case.id, _told(result)) for result in results)
    print_table(("result", "id", "rule"), rows, styles=_STYLES)
    print_text("")
    print_table(("capability", "promise"), ((name.replace("_", " "), told) for name, told in _promised(promises)))


def _told(result: CaseResult) -> str:
    return f"{result.case.title} ({result.detail})" if result.detail else result.case.title


def _promised(promises: Capabilities) -> Iterator[tuple[str, str]]:
    for name, told in asdict(promises).items():
        yield name, {True: "yes", False: "no"}.get(told, str(told)) if isinstance(told, bool) else str(told)


def _as_json(url: str, results: list[CaseResult], promises: Capabilities) -> dict[str, Any]:
    cases = [
        {
            "id": result.case.id,
            "title": result.case.title,
            "rule": result.case.rule,
            "result": result.outcome,
            "detail": result.detail,
            "seconds": round(result.seconds, 3),
        }
        for result in results
    ]
    return {"store": str(parse_url(url)), "holds": _holds(results), "cases": cases, "capabilities": asdict(promises)}


def _holds(results: list[CaseResult]) -> bool:
    return all(result.outcome is not CaseOutcome.VIOLATED for result in results)


def _conclude(results: list[CaseResult]) -> int:
    for result in results:
        if result.outcome is CaseOutcome.VIOLATED:
            message(f"violated: {result.case.id}: {result.detail}", style="red")
    counts = Counter(result.outcome for result in results)
    message(", ".join(f"{counts[outcome]} {told}" for outcome, told in _SUMMARY.items()) + ".")
    return ExitCode.DONE if _holds(results) else ExitCode.FAILED
