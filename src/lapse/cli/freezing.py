"""``lapse freeze`` and ``lapse resume``: stop a domain from ending anything, and let it go on.

On the state folder of ``lapse up`` by default, and on a cluster when one is named. Nothing has to run: what is frozen
is written where whoever runs later reads it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from lapse.cli.flags import NO_BRAKE_FLAGS, BrakeFlags
from lapse.cli.output import Exit, Output, OutputOption, print_result
from lapse.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lapse.engine.freeze import BrakeStore
    from lapse.settings import Settings

    T = TypeVar("T")
    Work = Callable[[BrakeStore, int], Awaitable[T]]

Domain = Annotated[str, Parameter(help="requests, keepers, history, retention, or all.")]
InCluster = Annotated[
    bool, Parameter(help="On the cluster that kubectl would use, instead of the state folder.", negative=())
]


class NoSuchDomainError(UsageError):
    """There is no domain {given}. Expected {known}."""


class KeysCannotBeFrozenError(UsageError):
    """Keys cannot be frozen: a key is gone at the instant of its expiry, whether or not anything removes it."""


def freeze(
    domain: Domain,
    /,
    flags: BrakeFlags = NO_BRAKE_FLAGS,
    *,
    reason: Annotated[str, Parameter(metavar="TEXT", help="What others are to know about it.")] = "",
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """End nothing of a domain until somebody resumes it.

    What is being ended at this moment is not stopped; a running process sees the freeze within seconds.
    """
    from lapse.core.clock import UnixNs
    from lapse.core.timestamps import to_timestamp
    from lapse.engine.freeze import Freeze, FreezeReason, freeze_row

    _demand(domain)
    by = _who()

    async def work(store: BrakeStore, now: int) -> Freeze:
        wanted = Freeze(UnixNs(now), reason, by)
        await store.freeze(domain, wanted, freeze_row(domain, wanted, reason=FreezeReason.BY_PERSON, now=now))
        return wanted

    done, place = _at_brakes(flags, work, cluster=cluster)
    result = {"domain": domain, "frozen": True, "since": to_timestamp(done.since or 0), "reason": reason, "by": by}
    said = f"Frozen: {_named(domain)} in {place}. To go on: {_run(flags, cluster=cluster)} {domain}"
    print_result(output, {**result, "place": place}, said)
    return Exit.DONE


def resume(
    domain: Domain,
    /,
    flags: BrakeFlags = NO_BRAKE_FLAGS,
    *,
    cluster: InCluster = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Let a frozen domain go on, with a deletion budget that is counted anew.

    all resumes everything that is frozen, and clears away what cannot be read.
    """
    from lapse.engine.freeze import ALL, resume_row

    _demand(domain)
    by = _who()

    async def work(store: BrakeStore, now: int) -> tuple[list[str], bool]:
        done = await store.resume(domain, resume_row(domain, by=by, now=now))
        return done, ALL in (await store.load(now)).frozen

    (resumed, all_frozen), place = _at_brakes(flags, work, cluster=cluster)
    said = f"Resumed: {', '.join(resumed)} in {place}." if resumed else f"Nothing to resume: not frozen in {place}."
    if all_frozen:
        said += f" Still frozen, as everything is; to go on: {_run(flags, cluster=cluster)} {ALL}"
    print_result(output, {"domain": domain, "resumed": resumed, "frozen": all_frozen, "place": place}, said)
    return Exit.DONE


# --- where ------------------------------------------------------------------------------------------------------------


def _demand(domain: str) -> None:
    from lapse.cli.state_folder import DOMAINS
    from lapse.engine.freeze import ALL

    if domain == "keys":
        raise KeysCannotBeFrozenError
    known = (*DOMAINS, ALL)
    if domain not in known:
        raise NoSuchDomainError(given=repr(domain), known=f"{', '.join(known[:-1])} or {known[-1]}")


def _at_brakes(flags: BrakeFlags, work: Work[T], *, cluster: bool) -> tuple[T, str]:
    """Do some work where what is frozen is written; return also where that is."""
    import asyncio

    settings = flags.load().settings
    named = flags.kube_config is not None or flags.kube_context is not None
    return asyncio.run(_on_cluster(settings, work) if cluster or named else _in_folder(settings, work))


async def _in_folder(settings: Settings, work: Work[T]) -> tuple[T, str]:
    from lapse.cli.desk import Desk, with_store
    from lapse.cli.state_folder import open_brakes
    from lapse.requests.policy import TTLRule

    async def at_desk(desk: Desk) -> T:
        return await work(open_brakes(desk.store), desk.clock.wall_ns())

    rule = TTLRule(settings.request_ttl)
    return await with_store(settings.state_dir, rule, at_desk), str(settings.state_dir)


async def _on_cluster(settings: Settings, work: Work[T]) -> tuple[T, str]:
    from lapse.cli.cluster import LeaseNamespaceError, brakes_key, in_plain_words, open_client
    from lapse.cli.state_folder import DOMAINS
    from lapse.core.clock import SystemClock
    from lapse.kube.errors import NotFoundError
    from lapse.objects.config_map_brakes import CONFIG_MAP, ConfigMapBrakes
    from lapse.objects.kubernetes import KubernetesStore

    clock, key = SystemClock(), brakes_key(settings)
    client = open_client(settings, clock=clock)
    store: Any = KubernetesStore(client, kinds=[CONFIG_MAP])
    rights = f"get, create and patch on configmaps in {key.namespace}"
    try:
        with in_plain_words(client, rights=rights):
            try:
                done = await work(ConfigMapBrakes(store, key, domains=DOMAINS, clock=clock), clock.wall_ns())
            except NotFoundError as error:
                raise LeaseNamespaceError(namespace=key.namespace) from error
    finally:
        await store.close()
    return done, f"the ConfigMap {key} of {client.config.cluster.place}"


def _who() -> str:
    import getpass

    try:
        return f"cli ({getpass.getuser()})"
    except (KeyError, OSError):  # a container may run as a user that has no name
        return "cli"


def _run(flags: BrakeFlags, *, cluster: bool) -> str:
    """Return the command that works on the same place."""
    given = {"--kube-config": flags.kube_config, "--kube-context": flags.kube_context}
    given |= {"--lease-namespace": flags.lease_namespace, "--state-dir": flags.state_dir}
    named = [f"{name} {shlex.quote(value)}" for name, value in given.items() if value is not None]
    return " ".join(["lapse resume", *(["--cluster"] if cluster else []), *named])


def _named(domain: str) -> str:
    return "everything" if domain == "all" else domain
