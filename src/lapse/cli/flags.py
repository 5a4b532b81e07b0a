"""Flags of commands, made from the declarations in `lapse.settings`: same names, same meaning, taken as text.

A command says which keys it takes; name and help of each flag come from the key, and what is given is checked where
the file and the environment are checked, so that everything wrong is told at once. Nothing is decided here: `load`
returns the settings with flags over environment over file over default.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from cyclopts import Parameter

from lapse.settings import SETTINGS, LoadedSettings, load_settings


def _flag(meaning: str) -> Any:  # noqa: ANN401 - a type, made at run time
    return Annotated[str | None, Parameter(help=f"{meaning}.", show_default=False, allow_leading_hyphen=True)]


class Flags:
    """The file to read, and in a subclass the keys that it names; frozen, and equal to another with the same given.

    ``class SomeFlags(Flags, keys=("state_dir",), http_port="Port of the API")`` takes two keys, the second one with a
    meaning of its own, because for that command it is a narrower one.
    """

    config: str | None = None
    for_server: ClassVar[Sequence[str]] = ()
    """Keys that are sent to a server that is asked."""

    if TYPE_CHECKING:

        def __init__(self, *, config: str | None = None, **given: str) -> None: ...

    def __init_subclass__(cls, *, keys: Sequence[str] = (), for_server: Sequence[str] = (), **meanings: str) -> None:
        """Make a dataclass of it, which is what the command line library fills."""
        cls.for_server = for_server
        own = {key: _flag(meanings.get(key) or SETTINGS[key].meaning) for key in (*keys, *meanings)}
        file = _flag("The file to read; otherwise LAPSE_CONFIG, ./lapse.toml or ~/.config/lapse/lapse.toml")
        cls.__annotations__ = {"config": file, **own}
        for key in own:
            setattr(cls, key, None)
        Parameter(name="*")(dataclass(frozen=True, kw_only=True)(cls))

    @property
    def given(self) -> Mapping[str, str]:
        """What was given on the command line, by key."""
        return {key: value for key in SETTINGS if (value := getattr(self, key, None)) is not None}

    @property
    def asks_server(self) -> str | None:
        """The server that was named on the command line, which is then asked."""
        named: str | None = getattr(self, "server", None)
        return named

    @property
    def names_cluster(self) -> bool:
        """Whether a cluster was named, which is then worked on."""
        return not self.given.keys().isdisjoint(_CLUSTER)

    def command(self, *words: str, cluster: bool = False) -> str:
        """Return ``: lapse WORDS`` for the same place: one that can be pasted, so that no flag is half shown.

        A URL with a password is left out, and named before the colon: what came from the file or the environment is
        there the next time too.
        """
        from lapse.settings import show_value

        place = {"config": self.config, "server": self.asks_server, **{key: self.given.get(key) for key in _WHERE}}
        named = {f"--{key.replace('_', '-')}": value for key, value in place.items() if value is not None}
        secret = [flag for flag, value in named.items() if show_value(value) != value]
        shown = [f"{flag} {shlex.quote(value)}" for flag, value in named.items() if flag not in secret]
        same = f", with the same {' and '.join(secret)}" if secret else ""
        verb, *rest = words
        return f"{same}: {' '.join(['lapse', verb, *(['--cluster'] if cluster else []), *shown, *rest])}"

    def load(self) -> LoadedSettings:
        """Read file, environment and these flags; raises `SettingsError` with everything that is wrong."""
        return load_settings(self.given, config=self.config)

    def load_and_warn(self) -> LoadedSettings:
        """Do the same for a command that ends soon: what goes with the next version is told on stderr."""
        from lapse.cli.output import message

        loaded = self.load()
        for warning in loaded.deprecations:
            message(f"warning: {warning}", style="yellow")
        return loaded


# --- keys that go together --------------------------------------------------------------------------------------------

_PROCESS: Final = ("probes_host", "probes_port", "log_format", "log_level")
_CLUSTER: Final = ("kube_config", "kube_context")
_REQUESTS: Final = (
    *("request_ttl", "request_ttl_mode", "request_deadline", "keeper_mode", "keeper_ttl", "restore_ownership"),
    *("artifact_ttl_max", "extend_max", "plan_ttl", "trash_ttl"),
    *("deletion_budget", "request_deletion_budget", "keeper_deletion_budget", "schedule_deletion_budget"),
)
HISTORY_LIMITS: Final = ("history_ttl", "history_retention_limit", "history_keep_last_success")
_RECORDS: Final = ("history_namespace", *HISTORY_LIMITS)
_HISTORY: Final = (*_RECORDS, "retention_interval", "history_deletion_budget", "retention_deletion_budget")
_WORKSPACE_DEFAULTS: Final = ("default_standby_ttl", "default_archive_ttl")
_WORKSPACE_TTLS: Final = ("ttl_manager_interval", "workspaces_deletion_budget", "journal_ttl")
_DATABASE: Final = ("database_url", "workspaces_url")
_ACTIVITY: Final = ("activity_url", "proxy_lease")
_PROXY_ADDRESS: Final = ("proxy_port", "proxy_suffix", "proxy_scheme")
_PROXY: Final = (
    *(*_DATABASE, *_ACTIVITY, *_PROXY_ADDRESS, "proxy_host", "workspaces_beyond_loopback", "idle_timer"),
    *("proxy_max_connections", "proxy_max_connections_per_peer"),
)
_WEBHOOK: Final = ("webhook_host", "webhook_port", "webhook_cert_file", "webhook_key_file")
_SERVER: Final = (
    *("state_dir", *_REQUESTS, *_HISTORY, *_WORKSPACE_DEFAULTS, *_WORKSPACE_TTLS, *_PROXY, *_PROCESS),
    *(
        *("dry_run_domains", "act_by_plan"),
        "busy_most",
        "workspaces_stop_on_exit",
        "retention_policies",
        "domains",
        "webhooks",
        "expiry_warning",
        "keys_url",
        "keys_sweep_interval",
    ),
    *("http_host", "http_port", "http_allowed_hosts", "http_max_connections", "http_max_connections_per_peer"),
    *("http_tls_certificate", "http_tls_key"),
)
_PLACE: Final = {
    "kube_config": "The kubeconfig of the cluster to work on, instead of the state folder",
    "kube_context": "The context of the kubeconfig, instead of the state folder",
    "lease_namespace": "Namespace of the operator on the cluster",
}
_AT: Final = {"server": "The running Lapse to ask, as https://HOST; otherwise LAPSE_SERVER, or a place of this machine"}
_WHERE: Final = ("state_dir", *_DATABASE, *_PLACE)
"""What names the place that a command works on, beside a server."""
_TICKETS: Final = "Where keys are stored, the tickets that open workspaces among them; the same as for lapse up"


# --- one class for each set of flags ----------------------------------------------------------------------------------


class AllFlags(Flags, keys=tuple(SETTINGS)):
    """All settings; each given on the command line wins over the environment and the file."""


class StateFlags(Flags, keys=("state_dir",)):
    """For commands that need the state folder only."""


class TokenFlags(Flags, keys=("state_dir", "database_url")):
    """For commands that make or revoke tokens, which the journal tells."""


class KeysFlags(Flags, keys=("state_dir",), **_AT):
    """For `lapse keys`."""


class WorkspaceFlags(Flags, keys=("state_dir", *_DATABASE), **_AT):
    """For `lapse workspaces`: the workspace store and the journal, or a server."""


class WorkspaceStoreFlags(Flags, keys=("state_dir", *_DATABASE)):
    """For commands that work on the store itself, or on files of this machine."""


class PlaceFlags(Flags, keys=("state_dir",), **_PLACE, **_AT):
    """For commands that work on the state folder, on a cluster, or on a server."""


class RunFlags(Flags, keys=("state_dir", "database_url"), **_PLACE, **_AT):
    """For those of them that end something, which the journal tells."""


class OpenFlags(
    Flags,
    keys=("state_dir",),
    http_host="Address of the API and the pages, as for lapse up",
    http_port="Port of the API and the pages, as for lapse up",
):
    """For `lapse open`."""


class ServerFlags(Flags, keys=_SERVER):
    """For `lapse up`."""


class OperatorFlags(
    Flags,
    keys=(
        *(*_CLUSTER, "kube_qps", "kube_burst", "lease_namespace", "lease_name", "hold_kinds", "retention_account"),
        *(*_REQUESTS, "restore_executor", "schedule_manifests", "dry_run_domains", "act_by_plan", *_HISTORY, *_PROCESS),
    ),
):
    """For `lapse operator`."""


class WebhookFlags(
    Flags,
    keys=(*_CLUSTER, "retention_account", *_WEBHOOK, *_PROCESS),
    lease_namespace="Namespace of the operator, and of the service account that policies act as",
):
    """For `lapse webhook`."""


class ProxyFlags(Flags, keys=("state_dir", *_PROXY, *_PROCESS), keys_url=_TICKETS):
    """For `lapse proxy`."""


class TTLManagerFlags(
    Flags,
    keys=("state_dir", *_DATABASE, *_ACTIVITY, *_WORKSPACE_TTLS, *_PROCESS, "webhooks"),
    keys_url="Not used any more: which TTL manager leads is decided in the database of the workspaces",
    deletion_budget="How much may be ended in any window, such as 10000/1h; past it workspaces are frozen;"
    " off sets no limit",
):
    """For `lapse ttl-manager`."""


class DefinitionsFlags(Flags, keys=_CLUSTER):
    """For `lapse crds`."""


class FreezeFlags(Flags, keys=("state_dir", *_PLACE, *_DATABASE), **_PLACE, **_AT):
    """For `lapse freeze` and `lapse resume`."""


class HistoryFlags(Flags, keys=("state_dir", *_PLACE, *_RECORDS), for_server=HISTORY_LIMITS, **_PLACE, **_AT):
    """For `lapse history`."""


class PruneFlags(
    Flags, keys=("state_dir", "database_url", *_PLACE, *_RECORDS), for_server=HISTORY_LIMITS, **_PLACE, **_AT
):
    """For `lapse history prune`."""


class RecordFlags(Flags, keys=("state_dir", "database_url", *_PLACE, "history_namespace"), **_PLACE, **_AT):
    """For `lapse history record` and `lapse history delete`."""


class LintFlags(Flags, retention_interval="Pause between passes; maxAge is compared with it"):
    """For `lapse retention lint`."""


class GrantFlags(Flags, keys=("state_dir", *_PLACE, "retention_account"), **_PLACE):
    """For `lapse retention rbac`."""


class OpenWorkspaceFlags(Flags, keys=("state_dir", *_DATABASE, *_PROXY_ADDRESS), keys_url=_TICKETS, **_AT):
    """For `lapse workspaces open`."""


class BusyFlags(
    Flags,
    keys=("state_dir", *_DATABASE),
    http_host="Address of the API of lapse up, unless a server is named",
    http_port="Port of the API of lapse up, unless a server is named",
):
    """For `lapse busy`."""


class VerbFlags(Flags, keys=("state_dir", "keys_url", *_DATABASE, *_ACTIVITY), **_PLACE, **_AT):
    """For the verbs that work on things of every domain."""


class DemoFlags(Flags, keys=("state_dir", "keys_url", *_DATABASE), **_AT):
    """For `lapse demo`."""
