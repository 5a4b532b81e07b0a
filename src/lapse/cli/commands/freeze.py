"""``lapse freeze`` and ``lapse resume``: stop a domain from ending anything, and let it go on.

In the record of ``lapse up`` (the state folder, or the database that ``database_url`` names), and on a cluster when one
is named. Nothing has to run: what is frozen is written where whoever runs later reads it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from lapse.cli.context import InCluster, who
from lapse.cli.flags import FreezeFlags
from lapse.cli.output import ExitCode, Output, OutputOption, print_result
from lapse.domains import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.cli.context import Context
    from lapse.engine.safety.freeze import GateStore
    from lapse.settings import Settings

    T = TypeVar("T")
    Work = Callable[[GateStore, int], Awaitable[T]]

Domain = Annotated[str, Parameter(help=f"{', '.join(REGISTRY.freezable())}, or all.")]


def freeze(
    domain: Domain,
    /,
    flags: FreezeFlags = FreezeFlags(),
    *,
    reason: Annotated[str, Parameter(metavar="TEXT", help="The reason, for others to read.")] = "",
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """End nothing of a domain until it is resumed.

    What is being ended at this moment is not stopped; a running process sees the freeze within seconds.
    """
    from lapse.core.clock import UnixNs
    from lapse.core.timestamps import to_timestamp
    from lapse.engine.safety.freeze import Freeze, FreezeReason, freeze_row

    _demand(domain, flags, cluster=cluster)
    by = who()

    async def work(store: GateStore, now: int) -> Freeze:
        wanted = Freeze(UnixNs(now), reason, by)
        await store.freeze(domain, wanted, freeze_row(domain, wanted, reason=FreezeReason.BY_PERSON, now=now))
        return wanted

    done, place = _at_gate(flags, work, cluster=cluster)
    result = {"domain": domain, "frozen": True, "since": to_timestamp(done.since or 0), "reason": reason, "by": by}
    said = f"Frozen: {_named(domain)} in {place}. To resume: {_run(flags, cluster=cluster)} {domain}"
    print_result(output, {**result, "place": place}, said)
    return ExitCode.DONE


def resume(
    domain: Domain,
    /,
    flags: FreezeFlags = FreezeFlags(),
    *,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Resume a frozen domain, with a deletion budget that is counted anew.

    all resumes everything that is frozen, and removes entries that cannot be read.
    """
    from lapse.engine.safety.freeze import ALL, resume_row

    _demand(domain, flags, cluster=cluster)
    by = who()

    async def work(store: GateStore, now: int) -> tuple[list[str], bool]:
        done = await store.resume(domain, resume_row(domain, by=by, now=now))
        return done, ALL in (await store.load(now)).frozen

    (resumed, all_frozen), place = _at_gate(flags, work, cluster=cluster)
    said = f"Resumed: {', '.join(resumed)} in {place}." if resumed else f"Nothing to resume: not frozen in {place}."
    if all_frozen:
        said += f" Still frozen, because everything is frozen; to resume: {_run(flags, cluster=cluster)} {ALL}"
    print_result(output, {"domain": domain, "resumed": resumed, "frozen": all_frozen, "place": place}, said)
    return ExitCode.DONE


# --- where ------------------------------------------------------------------------------------------------------------


def _demand(domain: str, flags: FreezeFlags, *, cluster: bool) -> None:
    from lapse.engine.registry import DomainVerb, UnsupportedVerbError, no_such_domain
    from lapse.engine.safety.freeze import ALL

    on_cluster = cluster or flags.names_cluster
    known = (*REGISTRY.freezable(cluster=on_cluster), ALL)
    if domain in known:
        return
    for one in REGISTRY.built_in:
        if one.name == domain and not one.supports(DomainVerb.FREEZE):
            raise UnsupportedVerbError(problem=one.unsupported[DomainVerb.FREEZE])
    raise no_such_domain(domain, known)


def _at_gate(flags: FreezeFlags, work: Work[T], *, cluster: bool) -> tuple[T, str]:
    """Do some work where what is frozen is written; return also where that is."""
    from lapse.app.cluster import LeaseNamespaceError, gate_key
    from lapse.cli.context import in_context
    from lapse.kube.errors import NotFoundError

    async def at_gate(context: Context) -> tuple[T, str]:
        try:
            store = await context.freezes()  # first, because the clock goes on from what stands there
            return await work(store, context.clock.wall_ns()), context.where_frozen
        except NotFoundError as error:
            raise LeaseNamespaceError(namespace=gate_key(context.settings).namespace) from error

    def rights(settings: Settings) -> str:
        return f"get, create and patch on configmaps in {settings.lease_namespace}"

    return in_context(flags, at_gate, cluster=cluster, rights=rights)


def _run(flags: FreezeFlags, *, cluster: bool) -> str:
    """Return the command that works on the same context."""
    from lapse.settings import show_value

    # Shown, that is without the password of a URL.
    named = [f"--{key.replace('_', '-')} {shlex.quote(show_value(given))}" for key, given in flags.given.items()]
    return " ".join(["lapse resume", *(["--cluster"] if cluster else []), *named])


def _named(domain: str) -> str:
    return "everything" if domain == "all" else domain
