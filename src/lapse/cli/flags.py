"""Every setting as a flag: named as in the file and the environment, taken as text and checked in one place.

A test holds the fields equal to those of `lapse.settings.Settings`, which is not imported here, so that help texts
stay quick.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from lapse.settings import LoadedSettings

Flag = Annotated[str | None, Parameter(show_default=False, allow_leading_hyphen=True)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ConfigFlags:
    """Where to look."""

    config: Flag = None
    """The file to read; otherwise LAPSE_CONFIG, ./lapse.toml or ~/.config/lapse/lapse.toml."""

    def load(self) -> LoadedSettings:
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
class OpenFlags(StateFlags):
    """What `lapse open` takes."""

    http_host: Flag = None
    """Address of the API and the pages, as for lapse up."""
    http_port: Flag = None
    """Port of the API and the pages, as for lapse up."""


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
    deletion_budget: Flag = None
    """How much may be ended in any window, such as 10000/1h; past it a domain is frozen; off sets no limit."""
    request_deletion_budget: Flag = None
    """The same for requests alone."""
    keeper_deletion_budget: Flag = None
    """The same for keepers alone."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RecordPlaceFlags:
    """Where records are."""

    history_namespace: Flag = None
    """Where records of experiments are kept."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RecordFlags(RecordPlaceFlags):
    """Where records are, and how long they stay."""

    history_ttl: Flag = None
    """How old records become, such as 720h, at least 1h; 0 for any age."""
    history_retention_limit: Flag = None
    """How many records of each experiment stay; 0 for all."""
    history_keep_last_success: Flag = None
    """How many successful records of each experiment stay, whatever their age and number."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HistoryFlags(RecordFlags):
    """How long records and what policies select stay."""

    retention_interval: Flag = None
    """Pause between passes over records, and over what policies select, such as 1h; never turns them off."""
    history_deletion_budget: Flag = None
    """How many records may be ended in any window, such as 1000/1h; past it history is frozen; off sets no limit."""
    retention_deletion_budget: Flag = None
    """The same for what retention policies select."""


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
class WorkspaceStoreFlags:
    """Where workspaces are."""

    workspaces_url: Flag = None
    """Where workspaces are stored, such as postgresql://HOST/DATABASE; otherwise a file in state_dir."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkspaceDefaultFlags:
    """What new workspaces get."""

    default_standby_ttl: Flag = None
    """How long a new workspace may be idle before it is stopped, such as 5m."""
    default_archive_ttl: Flag = None
    """How long a new workspace stays in standby before it is archived, such as 24h."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkspaceTTLFlags:
    """When workspaces are looked at, and how many may lapse."""

    ttl_manager_interval: Flag = None
    """Pause between looks for workspaces whose TTL is over, such as 1m."""
    workspaces_deletion_budget: Flag = None
    """How many workspaces may go to standby or to the archive in any window, such as 1000/1h; off sets no limit."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ActivityFlags:
    """Who is connected."""

    activity_url: Flag = None
    """Where connections are counted, such as redis://HOST:6379; otherwise in the process itself."""
    proxy_lease: Flag = None
    """How long a connection counts after its proxy has died, such as 30s; the same for all that share activity_url."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProxyPlaceFlags:
    """Where people find workspaces."""

    proxy_port: Flag = None
    """Port of the workspace proxy; 0 picks a free one."""
    proxy_suffix: Flag = None
    """What follows the name of a workspace in its host name, such as w.example.com."""
    proxy_scheme: Flag = None
    """http, or https when something in front of the proxy ends TLS on port 443."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProxyFlags(ProxyPlaceFlags, ActivityFlags, WorkspaceStoreFlags):
    """How workspaces are served."""

    proxy_host: Flag = None
    """Address of the workspace proxy; other than loopback needs workspaces_beyond_loopback."""
    workspaces_beyond_loopback: Flag = None
    """true: serve workspaces also where other machines can call; who may create one can run programs here."""
    idle_timer: Flag = None
    """How long a workspace counts as in use after its last connection, such as 5m."""
    proxy_max_connections: Flag = None
    """Connections to the workspace proxy, websockets included; 0 for no limit."""
    proxy_max_connections_per_peer: Flag = None
    """The same from one address; 0 where a reverse proxy stands in front."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServerFlags(
    ProcessFlags, ProxyFlags, WorkspaceTTLFlags, WorkspaceDefaultFlags, HistoryFlags, RequestFlags, StateFlags
):
    """What `lapse up` takes."""

    busy_most: Flag = None
    """How long one lapse busy keeps a workspace from lapsing at most, such as 24h."""
    workspaces_stop_on_exit: Flag = None
    """false: leave the programs of workspaces running when Lapse stops."""
    retention_policies: Flag = None
    """RetentionPolicy documents for the embedded store, as a JSON list; better in the file."""

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
    http_max_connections: Flag = None
    """Connections to the API and the pages; 0 for no limit."""
    http_max_connections_per_peer: Flag = None
    """The same from one address; 0 where a reverse proxy stands in front."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TTLManagerFlags(ProcessFlags, WorkspaceTTLFlags, ActivityFlags, WorkspaceStoreFlags, StateFlags):
    """What `lapse ttl-manager` takes."""

    keys_url: Flag = None
    """Where keys are stored, and which TTL manager leads; the same for all TTL managers."""
    deletion_budget: Flag = None
    """How much may be ended in any window, such as 10000/1h; past it workspaces are frozen; off sets no limit."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProxyProcessFlags(ProcessFlags, ProxyFlags, StateFlags):
    """What `lapse proxy` takes."""

    keys_url: Flag = None
    """Where keys are stored, the tickets that open workspaces among them; the same as for lapse up."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkspaceFlags(WorkspaceStoreFlags, StateFlags):
    """What `lapse workspaces` takes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OpenWorkspaceFlags(ProxyPlaceFlags, WorkspaceFlags):
    """What `lapse workspaces open` takes."""

    keys_url: Flag = None
    """Where keys are stored, the tickets that open workspaces among them; the same as for lapse up."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BusyFlags(WorkspaceFlags):
    """What `lapse busy` takes."""

    http_host: Flag = None
    """Address of the API of lapse up, unless a server is named."""
    http_port: Flag = None
    """Port of the API of lapse up, unless a server is named."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WhyFlags(ActivityFlags, WorkspaceFlags):
    """What `lapse why` takes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """Which cluster."""

    kube_config: Flag = None
    """The kubeconfig to read; otherwise KUBECONFIG, the pod's service account or ~/.kube/config."""
    kube_context: Flag = None
    """Which context of the kubeconfig to use; otherwise its current one."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """How often the cluster is called."""

    kube_qps: Flag = None
    """Calls a second to the API server; 0 for no limit."""
    kube_burst: Flag = None
    """Calls at once after a rest; 0 is what kube_qps allows in a second."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HoldFlags:
    """What may hold other things."""

    hold_kinds: Flag = None
    """Kinds beside our own whose holds keep their owners on a cluster, such as v1/ConfigMap."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LeaseFlags:
    """Who leads."""

    lease_namespace: Flag = None
    """Namespace of the Lease that the replicas share."""
    lease_name: Flag = None
    """Name of the Lease that the replicas share."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AccountFlags:
    """Who policies act as."""

    retention_account: Flag = None
    """The service account that policies act as, in the namespace of the operator."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DefinitionsFlags(ClusterFlags, ConfigFlags):
    """What `lapse crds` takes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OperatorFlags(
    ProcessFlags,
    HistoryFlags,
    RequestFlags,
    AccountFlags,
    HoldFlags,
    LeaseFlags,
    CallFlags,
    ClusterFlags,
    ConfigFlags,
):
    """What `lapse operator` takes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReviewFlags:
    """Where the admission webhook is found, and how it proves that it is the one."""

    webhook_host: Flag = None
    """Address of the admission webhook."""
    webhook_port: Flag = None
    """Port of the admission webhook; 0 picks a free one."""
    webhook_cert_file: Flag = None
    """The certificate that it shows, in PEM form; read again when it is replaced."""
    webhook_key_file: Flag = None
    """The private key of that certificate, in PEM form."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WebhookFlags(ProcessFlags, ReviewFlags, AccountFlags, ClusterFlags, ConfigFlags):
    """What `lapse webhook` takes."""

    lease_namespace: Flag = None
    """Namespace of the operator, and of the service account that policies act as."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags(ServerFlags, ReviewFlags, AccountFlags, HoldFlags, LeaseFlags, CallFlags, ClusterFlags):
    """All settings; each given on the command line wins over the environment and the file."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlaceFlags(StateFlags):
    """Where a command works: on the state folder, or on a cluster."""

    kube_config: Flag = None
    """The kubeconfig of the cluster to work on, instead of the state folder."""
    kube_context: Flag = None
    """The context of the kubeconfig, instead of the state folder."""
    lease_namespace: Flag = None
    """Namespace of the operator on the cluster."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FreezeFlags(WorkspaceStoreFlags, PlaceFlags):
    """What `lapse freeze` and `lapse resume` take."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RecordingFlags(RecordPlaceFlags, PlaceFlags):
    """What `lapse history record` takes."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class HistoryPlaceFlags(RecordFlags, PlaceFlags):
    """What `lapse history` takes otherwise."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RetentionFlags(ConfigFlags):
    """What `lapse retention lint` takes."""

    retention_interval: Flag = None
    """Pause between passes; maxAge is compared with it."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GrantFlags(AccountFlags, PlaceFlags):
    """What `lapse retention rbac` takes."""


NO_PLACE_FLAGS = PlaceFlags()
NO_GRANT_FLAGS = GrantFlags()
NO_FREEZE_FLAGS = FreezeFlags()
NO_RETENTION_FLAGS = RetentionFlags()
NO_HISTORY_PLACE_FLAGS = HistoryPlaceFlags()
NO_RECORDING_FLAGS = RecordingFlags()
NO_STATE_FLAGS = StateFlags()
NO_OPEN_FLAGS = OpenFlags()
NO_FLAGS = Flags()
NO_SERVER_FLAGS = ServerFlags()
NO_TTL_MANAGER_FLAGS = TTLManagerFlags()
NO_PROXY_PROCESS_FLAGS = ProxyProcessFlags()
NO_WORKSPACE_FLAGS = WorkspaceFlags()
NO_OPEN_WORKSPACE_FLAGS = OpenWorkspaceFlags()
NO_WHY_FLAGS = WhyFlags()
NO_BUSY_FLAGS = BusyFlags()
NO_DEFINITIONS_FLAGS = DefinitionsFlags()
NO_OPERATOR_FLAGS = OperatorFlags()
NO_WEBHOOK_FLAGS = WebhookFlags()
