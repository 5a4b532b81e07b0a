"""``lapse up``, ``operator``, ``webhook``, ``proxy`` and ``ttl-manager``: the processes that stay, as commands.

What each of them opens and runs is in `lapse.app`; here are their flags, and nothing else.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from lapse.cli.flags import OperatorFlags, ProxyFlags, ServerFlags, TTLManagerFlags, WebhookFlags
from lapse.cli.output import message


def up(
    flags: ServerFlags = ServerFlags(),
    *,
    demo: Annotated[
        bool,
        Parameter(
            help="Show things that lapse within a minute, for an hour; not again after lapse demo stop, until lapse"
            " demo start.",
            negative=(),
            show_default=False,
        ),
    ] = False,
) -> int:
    """Run everything that is enabled: loops, HTTP API, dashboard.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    from lapse.app.up import run

    return run(flags.load(), demo=demo, tell=message)


def operator(flags: OperatorFlags = OperatorFlags()) -> int:
    """Carry out requests on a Kubernetes cluster, and end what has lapsed there.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    from lapse.app.operator import run

    return run(flags.load())


def webhook(flags: WebhookFlags = WebhookFlags()) -> int:
    """Judge requests and retention policies for a Kubernetes API server.

    People may capture and restore only what they may read, detach only what they may delete, and write policies only
    about what they may delete.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    from lapse.app.webhook import run

    return run(flags.load())


def proxy(flags: ProxyFlags = ProxyFlags()) -> int:
    """Serve workspaces to their owners, each on a host name of its own, beside lapse up.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    from lapse.app.proxy import run

    return run(flags.load())


def ttl_manager(
    flags: TTLManagerFlags = TTLManagerFlags(),
    *,
    dry_run: Annotated[
        bool, Parameter(help="Only write to the journal what would be done.", negative=(), show_default=False)
    ] = False,
) -> int:
    """Stop idle workspaces and archive those long in standby, beside proxies and stores that run elsewhere.

    Every setting can also stand in lapse.toml or in the environment; lapse config show tells which one counts.
    """
    from lapse.app.ttl_manager import run

    return run(flags.load(), dry_run=dry_run)
