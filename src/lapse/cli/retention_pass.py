"""A pass of retention policies by a person's own command: what the hourly pass does, now, and with a list of it.

It ends what it ends in the person's name, with the same gate as the process that runs. Exit codes: 0 when everything
that was due went, or in a dry run would go; 3 when a part of it did, or nothing as the domain is frozen, its budget is
spent, its policy waits or an approved plan is needed; 1 when nothing could for any other reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lapse.cli.output import ExitCode, Output, message, print_document, print_views

if TYPE_CHECKING:
    from lapse.cli.context import Context
    from lapse.history.api.kinds import RetentionPolicy
    from lapse.history.view import PassView, PolicyResult

DryRun = Annotated[bool, Parameter(help="End nothing; list what would be ended.", show_default=False)]
DetailedExitcode = Annotated[
    bool, Parameter(help="Exit with 2 when something is due and was not ended, as in a dry run.", show_default=False)
]


@dataclass(frozen=True)
class Done:
    """What came of a pass."""

    report: PassView
    """Everything that was due, and the result of each policy."""
    dry_run: bool
    """Whether that was asked for."""
    doubt: str = ""
    """What stopped it, when nobody has frozen anything."""
    waits_for_yes: bool = False
    """Whether it was only dry because a person has to say yes first."""


async def pass_over(
    context: Context, *, only: Collection[str], instead: Sequence[RetentionPolicy], dry_run: bool, yes: bool = True
) -> Done:
    """Let the policies that ``only`` names pass; those of ``instead`` are taken as if they were stored.

    Without ``yes`` the first pass by a limit that nobody chose is dry.
    """
    from lapse import __version__
    from lapse.app.process import retention
    from lapse.app.trash import listed_trash
    from lapse.engine.plans.approvals import loop_gate
    from lapse.engine.running.metrics import Metrics
    from lapse.history.policy.policies import PolicyOverlay
    from lapse.history.retention.runs import RunReason
    from lapse.history.view import pass_view

    _settle_logs(context, is_dry=dry_run or (bool(instead) and all(one.spec.dry_run for one in instead)))
    settings, metrics, actor = context.settings, Metrics(__version__), (await context.caller()).name
    passes = retention(
        context.loaded,
        context.store,
        documents=context.policy_documents,
        journal=await context.journal(),
        metrics=metrics,
        holds=await context.object_holds(),
        gate=loop_gate(await context.gate(metrics, actor=actor), settings.act_by_plan),
        clock=context.clock,
        left_alone=[settings.lease_namespace] if context.is_cluster else [],
        direct=PolicyOverlay(context.store, instead) if instead else None,
        trash=listed_trash(settings, context.store, dependants=await context.dependants(), clock=context.clock),
        actor=actor,
    )
    done = await passes.run_for_person(only, dry_run=dry_run, confirmed=yes)
    runs = done.runs.values()
    doubt = await _doubt(context, {run.domain for run in runs if run.reason is RunReason.FROZEN})
    return Done(pass_view(done.items, runs), dry_run or done.waits, doubt, done.waits and bool(done.items))


async def pass_on_server(run: Callable[..., Awaitable[PassView]], *, dry_run: bool, yes: bool) -> Done:
    """Let a policy of a server pass, which asks for a yes itself; ``run`` takes ``dry_run`` and ``confirm``."""
    from lapse.client import RemoteError

    try:
        return Done(await run(dry_run=dry_run, confirm=yes), dry_run)
    except RemoteError as error:
        if error.code != "ConfirmationNeededError":
            raise
    return Done(await run(dry_run=True), dry_run=True, waits_for_yes=True)


async def _doubt(context: Context, refused: set[str]) -> str:
    """Say what is wrong with the gate itself, where something was refused that is not frozen."""
    from lapse.core.errors import LapseError

    if not refused:
        return ""
    try:
        state = await (await context.freezes()).load(context.clock.wall_ns())
    except LapseError as error:
        return f"The freezes in {context.where_frozen} cannot be read, so nothing is ended: {error}"
    if all(state.freeze_of(domain) for domain in refused):
        return ""
    return f"Nothing is frozen, but the spent budgets could not be written to {context.where_frozen}."


def _settle_logs(context: Context, *, is_dry: bool) -> None:
    """Let the journal of a cluster, which is the log, be on stderr; what else is logged, the result tells as well.

    A dry run changes nothing that a journal would have to prove, and its rows are what it lists.
    """
    import logging

    from lapse.engine.running.logs import configure_logs

    if context.is_cluster and not is_dry:
        configure_logs(form=context.settings.log_format, level="error")
    else:
        logging.getLogger("lapse").addHandler(logging.NullHandler())


# --- output -----------------------------------------------------------------------------------------------------------


def finish(done: Done, output: Output, *, pending: bool) -> int:
    """Print what came of a pass, and return the exit code; ``pending`` asks for 2 when something would still go."""
    from lapse.engine.journal.port import Outcome
    from lapse.history.retention.runs import RunReason

    report = done.report
    if output.for_programs:
        print_document(output, report)
    else:
        _print(done, report)
    if done.waits_for_yes:
        return ExitCode.PENDING if pending else ExitCode.FAILED
    outcomes = {one.outcome for one in report.items}
    stopped = {RunReason.BY_PLAN, RunReason.WAITING} | (set() if done.doubt else {RunReason.FROZEN})
    is_stopped = any(run.reason in stopped for run in report.policies)
    is_well = not outcomes & {Outcome.FAILED, Outcome.REFUSED} and all(run.ready for run in report.policies)
    if is_well and not is_stopped:
        return ExitCode.PENDING if pending and Outcome.WOULD_END in outcomes else ExitCode.DONE
    return ExitCode.PARTLY if is_stopped or outcomes & {Outcome.ENDED, Outcome.WOULD_END} else ExitCode.FAILED


def _why_dry(run: PolicyResult, *, is_asked: bool) -> str:
    from lapse.history.retention.runs import RunReason

    if is_asked:
        return "a dry run"
    match run.reason:
        case RunReason.WAITING:
            return "a dry run, as it waits for approval"
        case RunReason.BY_PLAN:
            return "a dry run, as ending needs an approved plan"
    return "a dry run, as its dryRun is not false"


def _print(done: Done, report: PassView) -> None:
    from lapse.history.view import PASS_COLUMNS

    if report.items:
        print_views(report.items, PASS_COLUMNS, styles={"failed": "red", "refused": "red", "would_end": "yellow"})
    for run in report.policies:
        why = f" ({_why_dry(run, is_asked=done.dry_run)})" if run.dry_run else ""
        message(f"{run.name}{why}: {run.message}.", style="" if run.ready else "red")
    if done.doubt:
        message(done.doubt, style="red")
    if done.waits_for_yes:
        message(
            "Nothing was deleted: --history-ttl is not set, and no pass has ever deleted a record here by its"
            " default. To delete what is listed, run lapse history prune with --yes, or with the --history-ttl that you"
            " want.",
            style="yellow",
        )
