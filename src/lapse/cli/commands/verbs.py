"""Verbs for things of every domain: plan, apply, approve, why, hold, release, extend, delete, undo, freeze, resume.

Each is thin over `lapse.engine.verbs.contract`: what is asked goes to the service of the place that the flags name, and
what it answers is printed. Nothing has to run for them on a state folder or a cluster.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from lapse.cli.context import InCluster
from lapse.cli.flags import FreezeFlags, VerbFlags
from lapse.cli.input import Yes
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_result,
    print_table,
    print_views,
)
from lapse.core.address import Address, AddressError
from lapse.core.errors import LapseError, UsageError
from lapse.domains import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from lapse.engine.plans.plan import Plan
    from lapse.engine.verbs.contract import AppliedPlan, Approval, SteeredView, Verbs
    from lapse.settings import Settings

    T = TypeVar("T")

Thing = Annotated[
    str,
    Parameter(
        name="ADDRESS",
        help="As in vcr/default/nightly, keeper/NAME, snapshot/NAME, history/default/NAME, workspace/lab,"
        " Job.batch/NAMESPACE/NAME, or that of a thing of your own domain.",
    ),
]
OnlyThis = Annotated[str | None, Parameter(help="Only the one with this uid; otherwise whichever has the address now.")]
_STYLES: Final = {
    "now": "yellow",
    "waits": "yellow",
    "ended": "green",
    "drifted": "yellow",
    "failed": "red",
    "refused": "red",
}


_ID: Final = re.compile("[0-9a-f]{16}")
"""Of a plan."""
_MOST_MEANT: Final = 5
_NOT_THAT: Final = (403, 404, 422)
"""What is answered of a thing that is not there, is not the caller's to know, or of a kind that the place has not."""
_EXPECTED: Final = (
    "expected KIND/NAMESPACE/NAME as in vcr/default/nightly, or KIND/NAME as in workspace/lab; requests list,"
    " history list and workspaces list show what there is"
)


class BareNameError(AddressError):
    """{text!r} is a name, and no address: {means}."""


class PlanFileError(LapseError):
    """{path} cannot be {done}: {problem}."""


class NoPlanError(UsageError):
    """{given} is no file, and no plan of that id is kept there.

    Expected a file that lapse plan --out has written, or an id that lapse plans list shows.
    """


# --- plan and apply ---------------------------------------------------------------------------------------------------


def plan(  # noqa: PLR0913 - one for each flag
    *,
    flags: VerbFlags = VerbFlags(),
    within: Annotated[str, Parameter(metavar="DURATION", help="How far to look, such as 2h or 7d.")] = "24h",
    domain: Annotated[
        list[str] | None, Parameter(help="Only this domain; may be given several times.", negative=())
    ] = None,
    policy: Annotated[str | None, Parameter(metavar="NAME", help="Only what this policy would end.")] = None,
    out: Annotated[Path | None, Parameter(metavar="FILE", help="Write the plan there, for lapse apply.")] = None,
    propose: Annotated[
        bool, Parameter(help="Keep the plan there, for others to find.", negative=(), show_default=False)
    ] = False,
    detailed_exitcode: Annotated[
        bool, Parameter(help="Exit with 2 when something is due now.", negative=(), show_default=False)
    ] = False,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show what will lapse, when and why, and what holds it.

    Nothing is changed. With --propose the plan is kept there until it expires:
    lapse plans list shows it, and lapse approve and lapse apply take its id.
    With --out it is written to a file that they take as well.
    """
    from lapse.engine.verbs.contract import PlanRequest, ProposeRequest

    asked = PlanRequest(within=within, domains=domain or [], policy=policy)

    async def make(verbs: Verbs) -> Plan:
        made = await verbs.plan(asked)
        if out is not None:
            _write(out, made)
        if propose:
            await verbs.propose(ProposeRequest(plan=made))
        return made

    found = _ask(flags, make, cluster=cluster)
    if output.for_programs:
        print_document(output, found)
    else:
        print_plan(found)
        waiting = ["--when-due"] if found.items and not found.is_due else []
        if out is not None:
            run = flags.command("apply", shlex.quote(str(out)), *waiting, cluster=cluster)
            message(f"Plan {found.id}, written to {out}, good until {found.expires_at}. To carry it out{run}")
        if propose:
            _tell_proposed(found, lambda verb, *more: flags.command(verb, found.id, *more, cluster=cluster), waiting)
    if found.problems and not found.items and not found.counts:
        return ExitCode.FAILED
    if found.problems:
        return ExitCode.PARTLY
    return ExitCode.PENDING if detailed_exitcode and found.is_due else ExitCode.DONE


def _tell_proposed(found: Plan, command: Callable[..., str], waiting: Sequence[str]) -> None:
    message(f"Plan {found.id}, proposed, kept until {found.expires_at}.")
    message(f"To approve it, as another person{command('approve')}")
    message(f"To carry it out{command('apply', *waiting)}")


def print_plan(found: Plan) -> None:
    """Print a plan for people."""
    from lapse.engine.plans.plan import COLUMNS

    if found.items:
        print_views(found.items, COLUMNS, now=found.created_at, styles=_STYLES)
    _tell_plan(found)


def _tell_plan(found: Plan) -> None:
    held = sum(one.hold is not None for one in found.items)
    waiting = Counter(one.waits_for for one in found.items if one.waits_for is not None)
    due = sum(one.due and one.hold is None and one.waits_for is None for one in found.items)
    doubted = sum(one.doubt is not None and one.hold is None for one in found.items)
    later = len(found.items) - due - held - doubted - waiting.total()
    doubt = f", {waiting.total()} waiting" if waiting else ""
    doubt += f", {doubted} in doubt" if doubted else ""
    goes = "goes" if found.following == 1 else "go"
    along = f" {found.following} more {goes} along." if found.following else ""
    message(f"{len(found.items)} lapse by {found.until}: {due} now, {later} later, {held} held{doubt}.{along}")
    for what, number in waiting.items():
        message(f"{number} {'waits' if number == 1 else 'wait'} for {what}", style="yellow")
    for one in found.counts:
        first = "" if one.first is None else f", the first at {one.first}"
        message(f"{one.domain}, application {one.scope}: {one.count} lapse by then{first}. Their names are not shown.")
    for name, problem in found.problems.items():
        message(f"{name} could not be read: {problem}", style="red")


PlanName = Annotated[
    Path,
    Parameter(
        name="PLAN",
        help="The id of a plan that was proposed, or a file that lapse plan --out has written;"
        " a file in this folder that is named like an id is meant as a file.",
    ),
]


def apply(
    file: PlanName,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    when_due: Annotated[
        bool, Parameter(help="Wait, and end each at its own deadline.", negative=(), show_default=False)
    ] = False,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Carry out a plan, and nothing else.

    Each item is read again and compared with the plan. What changed since, is
    held or not due yet stays, and is listed; then the exit code is 3.
    """
    from lapse.cli.waiting import applied_when_due
    from lapse.engine.verbs.contract import ApplyRequest

    find = _plan_named(file)

    async def carry_out(verbs: Verbs) -> tuple[Plan, AppliedPlan]:
        plan = await find(verbs)
        return plan, await (applied_when_due(verbs, plan) if when_due else verbs.apply(ApplyRequest(plan=plan)))

    planned, done = _ask(flags, carry_out, cluster=cluster)
    columns = {"address": "address", "outcome": "outcome", "because": "because"}
    if output.for_programs:
        print_document(output, done)
    else:
        if done.items:
            print_views(done.items, columns, styles=_STYLES)
        undoable = {one.address for one in planned.items if one.not_undoable is None}
        is_undoable = any(one.outcome == "ended" and one.address in undoable for one in done.items)
        undo = f" To undo{flags.command('undo', done.plan, cluster=cluster)}" if is_undoable else ""
        message(f"{done.ended} ended, {done.left} left, of {len(done.items)}.{undo}")
        if not when_due and any(one.outcome == "not_due" for one in done.items):
            run = flags.command("apply", shlex.quote(str(file)), "--when-due", cluster=cluster)
            message(f"To wait for what is not due{run}")
    if not done.left:
        return ExitCode.DONE
    is_all_failed = all(one.outcome == "failed" for one in done.items)
    return ExitCode.FAILED if is_all_failed else ExitCode.PARTLY


def approve(
    file: PlanName,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Allow a plan to be carried out, as another person than its author.

    Needed where act_by_plan names a domain or a policy.
    """
    from lapse.engine.verbs.contract import ApproveRequest

    find = _plan_named(file)

    async def allow(verbs: Verbs) -> Approval:
        return await verbs.approve(ApproveRequest(plan=await find(verbs)))

    done = _ask(flags, allow, cluster=cluster)
    print_result(output, done, f"Approved: plan {done.plan}, until {done.expires_at}.")
    return ExitCode.DONE


def _write(path: Path, plan: Plan) -> None:
    from lapse.engine.view import encode

    try:
        path.write_bytes(encode(plan) + b"\n")
    except OSError as error:
        raise PlanFileError(path=path, done="written", problem=error.strerror or str(error)) from error


def _plan_named(given: Path) -> Callable[[Verbs], Awaitable[Plan]]:
    """Return what finds a plan: in a file, or where there is none of that name by its id at the place."""
    from lapse.engine.service import NotProposedError
    from lapse.engine.verbs.contract import ProposedRequest

    is_file = str(given) == "-" or given.exists()
    in_file = _read(given) if is_file else None
    if in_file is None and not _ID.fullmatch(str(given)):
        raise NoPlanError(given=given)

    async def find(verbs: Verbs) -> Plan:
        try:
            return in_file or await verbs.proposed(ProposedRequest(id=str(given)))
        except NotProposedError as error:
            raise NoPlanError(given=given) from error

    return find


def _read(path: Path) -> Plan:
    from lapse.engine.plans.plan import read_plan

    try:
        text = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise PlanFileError(path=path, done="read", problem=error.strerror or str(error)) from error
    return read_plan(text)


# --- why --------------------------------------------------------------------------------------------------------------


def why(
    address: Thing,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    at: Annotated[
        str | None,
        Parameter(
            metavar="WHEN", help="The time to answer for: a duration from now, or a time as 2030-01-31T12:00:00Z."
        ),
    ] = None,
    uid: Annotated[
        str | None, Parameter(help="Of several of one address, the one with this uid; otherwise the latest.")
    ] = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Tell why a thing is kept or lapses.

    The rule that wins and those that lost, what its time is counted from, when
    that is over, what holds it and what would save it. Of what is gone, the
    journal tells.
    """
    from lapse.engine.explanation import explanation_rows
    from lapse.engine.verbs.contract import WhyRequest

    _demand_address(address, flags, cluster=cluster)
    told = _ask(flags, lambda verbs: verbs.why(WhyRequest(address=address, at=at, uid=uid)), cluster=cluster)
    if output.for_programs:
        print_document(output, told)
    else:
        print_table(("fact", "value"), explanation_rows(told))
    return ExitCode.DONE


# --- hold, release, extend, delete ------------------------------------------------------------------------------------


def hold(  # noqa: PLR0913 - one for each flag
    address: Thing,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    reason: Annotated[str, Parameter(metavar="TEXT", help="The reason, for others to read.")],
    until: Annotated[
        str,
        Parameter(metavar="WHEN", help="A duration from now, or a time as 2030-01-31T12:00:00Z; never has no end."),
    ] = "never",
    legal: Annotated[
        bool,
        Parameter(help="A legal hold: only another person can release it.", negative=(), show_default=False),
    ] = False,
    replace: Annotated[
        bool, Parameter(help="Also in place of a hold that lasts longer.", negative=(), show_default=False)
    ] = False,
    uid: OnlyThis = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Keep a thing from lapsing, until the hold ends or is released.

    What it owns is held with it, and its owners are kept as well. A hold stops
    Lapse and nobody else.
    """
    from lapse.engine.verbs.contract import HoldRequest

    _demand_address(address, flags, cluster=cluster)
    asked = HoldRequest(address=address, reason=reason, until=until, legal=legal, replace=replace, uid=uid)
    held = _ask(flags, lambda verbs: verbs.hold(asked), cluster=cluster)
    end = "" if held.hold is None or held.hold.until is None else f" until {held.hold.until}"
    words = ("release", held.address, *(["--legal"] if legal else []))
    said = f"To let it go{flags.command(*words, cluster=cluster)}{', by another person' if legal else ''}"
    print_result(output, held, f"Held: {held.address}{end}. {said}")
    return ExitCode.DONE


def release(
    address: Thing,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    legal: Annotated[bool, Parameter(help="A legal hold is meant.", negative=(), show_default=False)] = False,
    uid: OnlyThis = None,
    hash_: Annotated[
        str | None,
        Parameter(name="--hash", help="Only the hold with this hash, as why -o json shows it; otherwise any."),
    ] = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """End a hold. What is over lapses at the next look."""
    from lapse.engine.verbs.contract import ReleaseRequest

    _demand_address(address, flags, cluster=cluster)
    asked = ReleaseRequest(address=address, legal=legal, uid=uid, hash=hash_)
    done = _ask(flags, lambda verbs: verbs.release(asked), cluster=cluster)
    said = "Released" if done.changed else "Nothing to release: not held"
    print_result(output, done, f"{said}: {done.address}.")
    return ExitCode.DONE


def extend(
    address: Thing,
    time: Annotated[str, Parameter(name="TIME", help="More time, such as 2h, or the new deadline as a time.")],
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    uid: OnlyThis = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Give a thing a later deadline, never an earlier one.

    A duration is added to the deadline that it has, or to now if that is over.
    """
    from lapse.engine.verbs.contract import ExtendRequest

    _demand_address(address, flags, cluster=cluster)
    asked = ExtendRequest(address=address, time=time, uid=uid)
    done = _ask(flags, lambda verbs: verbs.extend(asked), cluster=cluster)
    print_result(output, done, f"Extended: {done.address} until {done.extended_until}.")
    return ExitCode.DONE


def delete(
    address: Thing,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    uid: OnlyThis = None,
    yes: Yes = False,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Delete a thing now.

    Refused while it, or something that goes with it, is held. On a terminal it
    asks before.
    """
    from lapse.cli.input import confirm
    from lapse.engine.verbs.contract import DeleteRequest

    _demand_address(address, flags, cluster=cluster)
    confirm(f"Delete {address}", yes=yes)
    asked = DeleteRequest(address=address, uid=uid)
    done: SteeredView = _ask(flags, lambda verbs: verbs.delete(asked), cluster=cluster)
    more = f" {done.says}" if done.says else ""
    print_result(output, done, f"Deleted: {done.address}.{more}")
    return ExitCode.DONE


def undo(
    thing: Annotated[str, Parameter(name="ADDRESS|PLAN", help="What lapsed, or the id of a plan that ended it.")],
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    uid: Annotated[
        str | None, Parameter(help="Of several of one address, the one with this uid; otherwise the latest.")
    ] = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Bring back what lapsed, as long as it is in the trash.

    Objects come back, effects do not. With the id of a plan, everything that
    the plan has ended comes back, as far as it can.
    """
    from lapse.engine.verbs.contract import UndoRequest

    asked = UndoRequest(address=thing, uid=uid) if "/" in thing else UndoRequest(plan=thing)
    done = _ask(flags, lambda verbs: verbs.undo(asked), cluster=cluster)
    if output.for_programs:
        print_document(output, done)
    else:
        for one in done.items:
            says = f": {one.says.rstrip('.')}" if one.says else ""
            end = f" It lapses at {one.deadline}." if one.deadline is not None and one.hold is None else ""
            print_result(output, one, f"Brought back: {one.address}{says}.{end}")
        for address, problem in done.problems.items():
            message(f"Not brought back: {address}: {problem}", style="red")
        if not done.items and not done.problems:
            message("Everything that this plan has ended is back already.")
    if not done.problems:
        return ExitCode.DONE
    return ExitCode.PARTLY if done.items else ExitCode.FAILED


# --- freeze and resume ------------------------------------------------------------------------------------------------

Domain = Annotated[str, Parameter(help=f"{', '.join(REGISTRY.freezable())}, or all.")]


def freeze(
    domain: Domain,
    /,
    *,
    flags: FreezeFlags = FreezeFlags(),
    reason: Annotated[str, Parameter(metavar="TEXT", help="The reason, for others to read.")] = "",
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Let Lapse end nothing of a domain by itself until it is resumed.

    What people delete themselves goes all the same. What is being ended at this moment is not stopped; a running
    process sees the freeze within seconds.
    A second freeze takes the place of the first, and keeps its reason where none is given.
    """
    from lapse.engine.verbs.contract import FreezeRequest

    done = _ask(flags, lambda verbs: verbs.freeze(FreezeRequest(domain=domain, reason=reason)), cluster=cluster)
    said = f"Frozen: {_named(domain)} in {done.place}. To resume{flags.command('resume', domain, cluster=cluster)}"
    print_result(output, done, said)
    return ExitCode.DONE


def resume(
    domain: Annotated[str | None, Parameter(help=f"{', '.join(REGISTRY.freezable())}, or all.")] = None,
    /,
    *,
    flags: FreezeFlags = FreezeFlags(),
    policy: Annotated[
        str | None, Parameter(metavar="NAME", help="Let a policy go on that waits to be looked at.")
    ] = None,
    hash_: Annotated[
        str | None,
        Parameter(name="--hash", help="Only the policy with this hash, as status -o json shows it; otherwise any."),
    ] = None,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Resume a frozen domain, with a deletion budget that is counted anew.

    all resumes everything that is frozen, and removes entries that cannot be read.
    """
    from lapse.engine.safety.freeze import ALL
    from lapse.engine.verbs.contract import ResumeRequest

    asked = ResumeRequest(domain=domain, policy=policy, hash=hash_)
    done = _ask(flags, lambda verbs: verbs.resume(asked), cluster=cluster)
    place = done.place
    said = f"Resumed: {', '.join(done.resumed)} in {place}." if done.resumed else f"Nothing to resume in {place}."
    if done.frozen is not None:
        said += f" Still frozen, because everything is frozen; to resume{flags.command('resume', ALL, cluster=cluster)}"
    print_result(output, done, said)
    return ExitCode.DONE


def _named(domain: str) -> str:
    return "everything" if domain == "all" else domain


# --- addresses --------------------------------------------------------------------------------------------------------


def _demand_address(given: str, flags: VerbFlags, *, cluster: bool) -> None:
    """Refuse a name alone, with the addresses that it may stand for: a look costs little, and nobody is guessed at."""
    if "/" in given:
        return
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise AddressError(text=given, problem="it is not valid UTF-8") from error
    found = _ask(flags, lambda verbs: _named_so(verbs, given, flags.load().settings), cluster=cluster)
    means = f"perhaps {' or '.join(found[:_MOST_MEANT])} is meant" if found else _EXPECTED
    raise BareNameError(text=given, means=means)


async def _named_so(verbs: Verbs, name: str, settings: Settings) -> list[str]:
    """Return the addresses of things with a name, in the namespaces that commands look at unless others are named."""
    from lapse.engine.verbs.contract import WhyRequest

    usual = {"history": settings.history_namespace}
    found: list[str] = []
    for kind in (kind for one in REGISTRY.built_in for kind in one.kinds if kind.scope in {None, "NAMESPACE"}):
        address = str(Address(kind.name, None if kind.scope is None else usual.get(kind.name, "default"), name))
        try:
            await verbs.why(WhyRequest(address=address))
        except LapseError as error:
            if error.status not in _NOT_THAT:
                raise
        else:
            found.append(address)
    return found


# --- where ------------------------------------------------------------------------------------------------------------


def _ask(flags: Any, asked: Callable[[Verbs], Awaitable[T]], *, cluster: bool) -> T:  # noqa: ANN401 - any flags
    """Ask the service of the place that the flags name."""
    from lapse.cli.context import ask

    return ask(flags, asked, cluster=cluster)
