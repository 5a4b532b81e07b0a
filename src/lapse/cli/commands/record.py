"""Commands that read the record of a place: ``lapse journal``, ``status``, ``trash`` and ``plans``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from lapse.cli.context import InCluster
from lapse.cli.flags import VerbFlags
from lapse.cli.input import Yes
from lapse.cli.output import (
    ExitCode,
    Output,
    OutputOption,
    message,
    print_document,
    print_page,
    print_table,
    print_text,
    print_views,
)
from lapse.cli.paging import FIRST_PAGE, Paging
from lapse.cli.usage import NumberError, commands_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lapse.engine.trash import TrashEntry
    from lapse.engine.verbs.contract import DomainStatus, JournalRequest, ProposedPlan, StatusView, Verbs
    from lapse.engine.view import Columns, ViewPage

_FOLLOW_SECONDS: Final = 1.0
trash_app = App("trash", help="See what lapsed and can be brought back.", help_format="plaintext")
_trash = commands_of(trash_app)
plans_app = App("plans", help="See plans that were proposed.", help_format="plaintext")
_plans = commands_of(plans_app)


# --- journal ----------------------------------------------------------------------------------------------------------


def journal(  # noqa: PLR0913 - one for each flag
    *,
    flags: VerbFlags = VerbFlags(),
    since: Annotated[str | None, Parameter(metavar="WHEN", help="How far back: 1d, or a time.")] = None,
    until: Annotated[str | None, Parameter(metavar="WHEN", help="Up to when: so long ago, as 1h, or a time.")] = None,
    domain: Annotated[str | None, Parameter(help="Only this domain; audit for what people did.")] = None,
    address: Annotated[str | None, Parameter(help="Only about this thing.")] = None,
    search: Annotated[
        str | None, Parameter(metavar="TEXT", help="Only of addresses with this text in them; it is no pattern.")
    ] = None,
    actor: Annotated[str | None, Parameter(metavar="NAME", help="Only what this person or loop did.")] = None,
    outcome: Annotated[str | None, Parameter(metavar="WORD", help="Only this outcome, such as ended or held.")] = None,
    limit: Annotated[int, Parameter(help="How many rows at most, without --follow; 0 for all.")] = 100,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], help="Go on with rows as they come.", negative=(), show_default=False)
    ] = False,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Tell who let what lapse, when, and by which rule.

    The newest rows first; with --follow, new rows as they are written, after
    those since --since, oldest first. With -o json each row is one line.
    """
    from lapse.cli.context import ask
    from lapse.engine.verbs.contract import JournalRequest

    if limit < 0:
        raise NumberError(name="--limit", given=limit, expected="0 for all, or a number above 0")
    asked = JournalRequest(
        since=since,
        until=until,
        domain=domain,
        address=address,
        search=search,
        actor=actor,
        outcome=outcome,
        limit=min(limit or 1000, 1000),
    )
    if follow:
        return ask(flags, lambda verbs: _follow(verbs, asked, output), cluster=cluster)
    rows = ask(flags, lambda verbs: _rows(verbs, asked, limit), cluster=cluster)
    _print_rows(rows, output)
    return ExitCode.DONE


async def _rows(verbs: Verbs, asked: JournalRequest, limit: int) -> list[Any]:
    """Return as many rows as are wanted, page by page; 0: all."""
    from msgspec.structs import replace

    found: list[Any] = []
    while True:
        page = await verbs.journal(replace(asked, limit=min(1000, limit - len(found)) if limit else 1000))
        found += page.items
        if page.next is None or len(found) >= limit > 0:
            return found
        asked = replace(asked, before=page.next)


async def _follow(verbs: Verbs, asked: JournalRequest, output: Output) -> int:
    """Print rows as they were written, from ``since`` or from now on, without an end."""
    from msgspec.structs import replace

    from lapse.core.clock import SystemClock
    from lapse.engine.journal.port import BEGINNING
    from lapse.engine.journal.view import END

    clock = SystemClock()
    asked = replace(asked, after=END if asked.since is None else str(BEGINNING), until=None)
    while True:
        page = await verbs.journal(asked)
        _print_rows(page.items, output, is_more=True)
        asked = replace(asked, after=page.next)
        if not page.items:  # what comes from here on is new, whatever time it has
            asked = replace(asked, since=None)
            await clock.sleep(_FOLLOW_SECONDS)


def _print_rows(rows: list[Any], output: Output, *, is_more: bool = False) -> None:
    from lapse.engine.journal.view import COLUMNS, row_line

    if output.for_programs:
        for row in rows:
            print_document(output, row)
    elif is_more:
        for row in rows:
            print(row_line(row), flush=True)  # noqa: T201 - a line of a result, as it comes
    elif rows:
        print_views(rows, COLUMNS)
    else:
        message("Nothing was journalled that fits.")


# --- status -----------------------------------------------------------------------------------------------------------


def status(*, flags: VerbFlags = VerbFlags(), cluster: InCluster = False, output: OutputOption = Output.TABLE) -> int:
    """Show what runs, what stands still, and what lapses next.

    Of a state folder or a cluster its stores are read; who leads, and what the
    loops do, tells a running Lapse: --server.
    """
    from lapse.cli.context import ask
    from lapse.cli.remote import server_of

    told = ask(flags, lambda verbs: verbs.status(), cluster=cluster)
    if output.for_programs:
        print_document(output, told)
    else:
        _print_status(told, lambda policy: flags.command("resume", "--policy", policy, cluster=cluster))
    is_folder = not (told.running or cluster or flags.names_cluster)
    server = server_of(flags.load().settings.state_dir) if is_folder else None
    if server is not None:
        message(f"A Lapse serves this folder, and was not asked. To ask it: lapse status --server {server}")
    return ExitCode.DONE


_DOMAINS: Final[Columns] = {
    "domain": "name",
    "acts": lambda one, _: "frozen" if one.frozen else _acts(one),
    "due": "due",
    "due and held": "held",
    "next": lambda one, now: None if one.next_lapse is None else _in(one.next_lapse, now),
    "next thing": "next_address",
    "budget left": lambda one, _: None if one.budget is None or one.budget.left is None else one.budget.left,
    "problem": lambda one, _: one.problem or (None if one.frozen is None else str(one.frozen)),
}
LOOPS: Final[Columns] = {
    "loop": "name",
    "domain": "domain",
    "ticks": "ticks",
    "errors": "errors",
    "last success": lambda one, now: None if one.last_success_at is None else _in(one.last_success_at, now),
    "next": lambda one, now: None if one.next_run_at is None else _in(one.next_run_at, now),
    "lag": lambda one, _: None if one.lag_seconds is None else _short(one.lag_seconds),
    "last error": "last_error",
}


def _print_status(told: StatusView, resume: Callable[[str], str]) -> None:
    leads = {True: "leads", False: "does not lead", None: "not asked; --server URL asks a Lapse that runs"}
    facts = [
        ("place", told.place),
        ("version", told.version),
        ("now", str(told.now)),
        ("leader", leads[told.leader]),
        *(("signal", f"{one.source} is {'up' if one.up else 'down'}") for one in told.signals),
        *(
            ("waits", f"policy {one.name} would end {one.due} at once; to allow that{resume(one.name)}")
            for one in told.waiting
        ),
        *(("problem", f"{name}: {problem}") for name, problem in told.problems.items()),
    ]
    print_table(("fact", "value"), facts)
    print_views(told.domains, _DOMAINS, now=told.now, styles={"frozen": "red"})
    if told.loops:
        print_views(told.loops, LOOPS, now=told.now)


def _acts(one: DomainStatus) -> str:
    return one.act if one.first_pass_until is None else f"first pass until {one.first_pass_until}"


def _short(seconds: float) -> str:
    from lapse.core.duration import SECOND, short

    return short(round(seconds * SECOND))


def _in(moment: int, now: int) -> str:
    from lapse.core.duration import short

    return f"in {short(moment - now)}" if moment > now else f"{short(now - moment)} ago"


# --- trash ------------------------------------------------------------------------------------------------------------

_TRASH: Final[Columns] = {
    "address": "address",
    "domain": "domain",
    "ended": lambda one, _: one.ended_at,
    "until": lambda one, _: one.expires_at,
    "bytes": "bytes",
    "comes back": "comes_back",
}


@_trash("lapse trash list", "lapse trash list --domain history -o json", name="list")
def list_trash(
    *,
    flags: VerbFlags = VerbFlags(),
    domain: Annotated[str | None, Parameter(help="Only of this domain.")] = None,
    paging: Paging = FIRST_PAGE,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List what lapsed and can be brought back, the newest first, until when, and what it costs."""
    from lapse.cli.context import ask

    paging.check()
    found = ask(flags, lambda verbs: _in_trash(verbs, domain), cluster=cluster)
    page = paging.page(found, place=_when, name=lambda one: "/".join(_when(one)), placed=_placed, last_first=True)
    is_one_each = len({one.address for one in page.items}) == len(page.items)
    columns = _TRASH if is_one_each else {**_TRASH, "uid": "uid"}
    print_page(output, page, columns, none="Nothing is in the trash.")
    if page.items and not output.for_programs:
        back = flags.command("undo", "ADDRESS", cluster=cluster)
        size = sum(one.bytes or 0 for one in found)
        message(f"{len(found)} in the trash, {size} bytes. To bring one back{back}")
    return ExitCode.DONE


async def _in_trash(verbs: Verbs, domain: str | None) -> list[TrashEntry]:
    """Return everything that is there: what is newest, and how much it is together, only all of it tells."""
    from lapse.cli.remote import read_pages
    from lapse.engine.verbs.contract import TrashRequest

    async def page(*, limit: int, after: str | None) -> ViewPage[TrashEntry]:
        return await verbs.trash(TrashRequest(domain=domain, limit=limit, after=after))

    return (await read_pages(page, limit=0)).items


def _when(one: TrashEntry) -> tuple[str, str]:
    """Return the place of an entry in the list: by the time at which it was ended, as it is shown."""
    return str(one.ended_at or ""), one.id


def _placed(text: str) -> tuple[str, str] | None:
    when, slash, entry = text.partition("/")
    return (when, entry) if slash else None


@_trash("lapse trash empty --yes", "lapse trash empty snapshot/NAME", name="empty")
def empty_trash(
    address: Annotated[str | None, Parameter(name="ADDRESS", help="Only this one.")] = None,
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    uid: Annotated[
        str | None, Parameter(help="Of several of one address, the one with this uid; otherwise all of them.")
    ] = None,
    domain: Annotated[str | None, Parameter(help="Only of this domain.")] = None,
    yes: Yes = False,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Remove what lapsed for good, before its time in the trash is over.

    What is held stays. On a terminal it asks before.
    """
    from lapse.cli.context import ask
    from lapse.cli.input import confirm
    from lapse.engine.verbs.contract import EmptyTrashRequest

    confirm(f"Remove {address or uid or 'everything in the trash'} for good", yes=yes)
    asked = EmptyTrashRequest(address=address, uid=uid, domain=domain)
    done = ask(flags, lambda verbs: verbs.empty_trash(asked), cluster=cluster)
    if output.for_programs:
        print_document(output, done)
    else:
        for name, problem in done.problems.items():
            message(f"{name} stays: {problem}", style="yellow")
        print_text(f"Removed for good: {len(done.items)}.")
    if not done.problems:
        return ExitCode.DONE
    return ExitCode.PARTLY if done.items else ExitCode.FAILED


# --- plans ------------------------------------------------------------------------------------------------------------

_PLANS: Final[Columns] = {
    "id": "id",
    "author": "author",
    "items": "items",
    "due": "due",
    "domains": lambda one, _: ", ".join(one.domains),
    "until": "expires_at",
    "approved by": "approved_by",
    "carried out by": "applied_by",
    "ended": "ended",
    "left": "left",
}


@_plans("lapse plans list", "lapse plans list -o json", name="list")
def list_plans(
    *,
    flags: VerbFlags = VerbFlags(),
    paging: Paging = FIRST_PAGE,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """List the plans that were proposed and have not expired, the newest first."""
    from lapse.cli.context import ask
    from lapse.cli.remote import read_pages
    from lapse.engine.verbs.contract import PlansRequest

    paging.check()

    async def read(verbs: Verbs) -> ViewPage[ProposedPlan]:
        async def page(*, limit: int, after: str | None) -> ViewPage[ProposedPlan]:
            return await verbs.plans(PlansRequest(limit=limit, after=after))

        return await read_pages(page, limit=paging.limit, after=paging.after)

    found = ask(flags, read, cluster=cluster)
    print_page(output, found, _PLANS, none="No plan is proposed.")
    return ExitCode.DONE


@_plans("lapse plans show 0de47e3b0b5fbe1a", "lapse plans show 0de47e3b0b5fbe1a -o json", name="show")
def show_plan(
    plan: Annotated[str, Parameter(name="ID", help="As lapse plans list shows it.")],
    /,
    *,
    flags: VerbFlags = VerbFlags(),
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Show what is in a plan that was proposed, as it was when the plan was made."""
    from lapse.cli.commands.verbs import print_plan
    from lapse.cli.context import ask
    from lapse.engine.verbs.contract import ProposedRequest

    found = ask(flags, lambda verbs: verbs.proposed(ProposedRequest(id=plan)), cluster=cluster)
    if output.for_programs:
        print_document(output, found)
    else:
        message(f"Plan {found.id} of {found.author}, made at {found.created_at}, good until {found.expires_at}.")
        print_plan(found)
    return ExitCode.DONE
