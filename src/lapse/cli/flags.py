"""Every setting as a flag: named as in the file and the environment, taken as text and checked in one place.

A test holds the fields equal to those of `lapse.settings.Settings`, which is not imported here, so that help texts
stay quick.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from lapse.settings import Loaded

Flag = Annotated[str | None, Parameter(show_default=False, allow_leading_hyphen=True)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConfigFlags:
    """Where to look."""

    config: Flag = None
    """The file to read; otherwise LAPSE_CONFIG, ./lapse.toml or ~/.config/lapse/lapse.toml."""

    def load(self) -> Loaded:
        """Read file, environment and these flags; raises `SettingsError` with everything that is wrong."""
        from lapse.settings import load_settings

        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "config"}
        return load_settings(given, config=self.config)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StateFlags(ConfigFlags):
    """For commands that need the state folder only."""

    state_dir: Flag = None
    """Folder for the embedded stores and the tokens."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RequestFlags:
    """How long requests and what they made stay."""

    request_ttl: Flag = None
    """How long a finished request stays, such as 10m; never keeps it."""
    request_ttl_mode: Flag = None
    """scanner: request_ttl decides when a finished request goes; annotation: the request's own annotation does."""
    request_deadline: Flag = None
    """When a request that does not finish fails, such as 24h; never lets it wait."""
    keeper_mode: Flag = None
    """FollowObject: snapshots go with their request; FollowObjectWithTTL: keeper_ttl later."""
    keeper_ttl: Flag = None
    """How long snapshots outlive their request, such as 24h."""
    restore_ownership: Flag = None
    """user: restored data is the user's; keeper: it goes with the keeper."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProcessFlags:
    """What every process that stays has."""

    probes_host: Flag = None
    """Address of /healthz, /readyz and /metrics."""
    probes_port: Flag = None
    """Port of /healthz, /readyz and /metrics; 0 picks a free one."""
    log_format: Flag = None
    """auto, console or json."""
    log_level: Flag = None
    """debug, info, warning or error."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerFlags(ProcessFlags, RequestFlags, StateFlags):
    """What `lapse up` takes."""

    keys_url: Flag = None
    """Where keys are stored, such as memory:// or file:///path/keys.db."""
    keys_sweep_interval: Flag = None
    """Pause between rounds that remove expired keys physically, such as 1s; never turns them off."""
    http_host: Flag = None
    """Address of the API and the pages; other than loopback needs a token."""
    http_port: Flag = None
    """Port of the API and the pages; 0 picks a free one."""
    http_allowed_hosts: Flag = None
    """Further names under which clients may call, separated by commas."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """Which cluster, and who leads in it."""

    kube_config: Flag = None
    """The kubeconfig to read; otherwise KUBECONFIG, the pod's service account or ~/.kube/config."""
    kube_context: Flag = None
    """Which context of the kubeconfig to use; otherwise its current one."""
    kube_qps: Flag = None
    """Calls a second to the API server; 0 is as many as it takes."""
    kube_burst: Flag = None
    """Calls at once after a rest; 0 is what kube_qps allows in a second."""
    lease_namespace: Flag = None
    """Namespace of the Lease that the replicas share."""
    lease_name: Flag = None
    """Name of the Lease that the replicas share."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OperatorFlags(ProcessFlags, RequestFlags, ClusterFlags, ConfigFlags):
    """What `lapse operator` takes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags(ServerFlags, ClusterFlags):
    """All settings; each given on the command line wins over the environment and the file."""


NO_STATE_FLAGS = StateFlags()
NO_FLAGS = Flags()
NO_SERVER_FLAGS = ServerFlags()
NO_OPERATOR_FLAGS = OperatorFlags()
