"""Settings: one model for file, environment and flags.

Every key has one flat name. ``keys_url`` is ``url`` under ``[keys]`` in the file, ``LAPSE_KEYS_URL`` in the
environment and ``--keys-url`` on the command line. A flag wins over the environment, the environment over the file,
the file over the default, and `Loaded.origins` remembers which one it was.

Everything that is wrong is reported at once, with the line of the file where there is one. An unknown key in the
file is an error; an unknown ``LAPSE_`` variable is only a warning, because the environment belongs to other
programs as well (test runs, wrappers, newer versions of Lapse). Read by `cli` and `web` only: everything below is
given its values.

A file that another user owns or may write is refused. From ``./lapse.toml`` nothing is taken that can lead to a program
that is run: a folder that somebody else has filled, such as a download, must not decide that by being the working
directory.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from lapse.core.duration import Duration, DurationError
from lapse.core.errors import UsageError
from lapse.core.masking import masked
from lapse.engine.safety.budget import OFF, Budget
from lapse.files.ownership import distrust
from lapse.history.errors import HistorySettingError
from lapse.history.policy import default_policy as configured
from lapse.history.policy.rbac import ACCOUNT
from lapse.requests.api.kinds import KeeperMode
from lapse.requests.lifecycle.policy import RestoreOwnership, TTLMode
from lapse.workspaces.model import DEFAULT_ARCHIVE_TTL_SECONDS, DEFAULT_STANDBY_TTL_SECONDS, LONGEST_TTL_SECONDS

PREFIX: Final = "LAPSE_"
CONFIG_VARIABLE: Final = "LAPSE_CONFIG"
FILE_NAME: Final = "lapse.toml"
FOUNDING_NAMES: Final = (
    "REQUEST_TTL", "REQUEST_TTL_MODE", "REQUEST_DEADLINE", "KEEPER_MODE", "KEEPER_TTL", "RESTORE_OWNERSHIP",
)  # fmt: skip
"""Variables that are accepted without the prefix, because deployments that follow the founding documents have them."""
FOUNDING_SECONDS: Final = {
    "TTL_MANAGER_INTERVAL": "ttl_manager_interval",
    "DEFAULT_STANDBY_TTL": "default_standby_ttl",
    "DEFAULT_ARCHIVE_TTL": "default_archive_ttl",
    "IDLE_TIMER_SECONDS": "idle_timer",
    f"{PREFIX}IDLE_TIMER_SECONDS": "idle_timer",
}
"""The same for variables that hold a number of seconds, or a duration; the last of several for one key wins."""
_NO_SETTINGS: Final = frozenset(
    PREFIX + name for name in ("CONFIG", "SERVER", "TOKEN", "WORKSPACE", "WORKSPACE_TOKEN", "RUN")
)
"""Variables of ours that are read, or given to the programs of workspaces, and are no settings."""
RUNNING_KEYS: Final = ("kube_config", "state_dir", "workspaces_url", "domains")
"""What can lead to programs: a kubeconfig names plugins, and workspaces, wherever they are stored, have commands.
What a domain of another distribution does with its section, nobody knows."""
_MAX_PORT: Final = 65_535
_OBJECT_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_KIND: Final = re.compile(r"(?:[a-z0-9.-]+/)?v[0-9][a-z0-9]*/[A-Z][A-Za-z0-9]*")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


class SettingsError(UsageError, ValueError):
    """The settings cannot be used:{listing}"""  # noqa: D400 - a list follows


# --- the field types -------------------------------------------------------------------------------------------------


def _duration(value: object) -> Duration:
    if isinstance(value, Duration):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a text with a unit, such as 10m or 1h30m")  # noqa: TRY004 - pydantic collects ValueError only
    return Duration.parse(value)


def _interval(value: object) -> Duration:
    duration = _duration(value)
    if duration.nanoseconds is not None and duration.nanoseconds <= 0:
        raise ValueError("expected a duration above zero, or never")
    return duration


def _lifetime(value: object) -> Duration:
    duration = _duration(value)
    if duration.nanoseconds is None or duration.nanoseconds <= 0:
        raise ValueError("expected a duration above zero, such as 24h")
    return duration


def _port(value: object) -> int:
    # By hand, because the lax mode that accepts the environment's text also accepts true and 8750.0.
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= _MAX_PORT:
        raise ValueError(f"expected a port number from 0 to {_MAX_PORT}; 0 picks a free one")
    return number


def _count(value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError("expected a whole number, 0 for no limit")
    return number


def _hosts(value: object) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and _HOST.fullmatch(name) for name in names
    ):
        raise ValueError('expected host names with or without a port, such as "lapse.example.org" or "10.0.0.5:8750"')
    return tuple(name.lower() for name in names)


def _kinds(value: object) -> tuple[str, ...]:
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and _KIND.fullmatch(name) for name in names
    ):
        raise ValueError('expected kinds as apiVersion/Kind, such as "v1/ConfigMap" or "apps/v1/Deployment"')
    if "v1/Secret" in names:
        raise ValueError("expected other kinds than v1/Secret: a watch on Secrets can read them all")
    return tuple(dict.fromkeys(names))


def _host(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a host name or an address, such as 127.0.0.1")
    return value.strip().removeprefix("[").removesuffix("]")


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("expected the path of a folder")
    return Path(value).expanduser().absolute()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a text")  # noqa: TRY004 - as above
    return value


def _object_name(value: object) -> str:
    if not isinstance(value, str) or not _OBJECT_NAME.fullmatch(value):
        raise ValueError("expected a name of lower-case letters, digits and dashes, such as lapse-system")
    return value


def _keys_url(value: object) -> str:
    from lapse.keys.url import parse_url  # imports the backend's module: only when there is a URL to check

    if not isinstance(value, str):
        raise ValueError("expected a URL such as memory:// or file:///path/keys.db")  # noqa: TRY004 - as above
    if value:
        parse_url(value)
    return value


def _keeper_mode(value: object) -> KeeperMode:
    modes = [KeeperMode.FOLLOW_OBJECT, KeeperMode.FOLLOW_OBJECT_WITH_TTL]
    if value not in modes:
        raise ValueError(f"expected {' or '.join(modes)}")
    return KeeperMode(str(value))


def _budget(value: object) -> Budget:
    if isinstance(value, Budget):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a text such as 10000/1h, or off")  # noqa: TRY004 - as above
    return Budget.parse(value)


def _history_ttl(value: object) -> Duration:
    if value == 0 and not isinstance(value, bool):  # the one number that means the same in every unit
        return Duration(0)
    try:
        return configured.read_ttl(value) if isinstance(value, str) else _duration(value)
    except HistorySettingError as error:
        # Without the flag: the value may come from elsewhere, and its origin is told anyway.
        raise ValueError(f"{error.details['problem']}; expected {error.details['expected']}") from error


def _policies(value: object) -> tuple[dict[str, Any], ...]:
    """Take documents as they are: whether each can be used is told with its status, and others go on beside it."""
    expected = "expected a list of RetentionPolicy documents: in the file each is [[retention.policies]], else JSON"
    try:
        documents = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise ValueError(expected) from None
    if not isinstance(documents, list | tuple) or not all(isinstance(one, dict) for one in documents):
        raise ValueError(expected)
    names = [_policy_name(one) for one in documents]
    if not all(_OBJECT_NAME.fullmatch(name) for name in names):
        raise ValueError("expected metadata.name in every policy: lower-case letters, digits and dashes")
    if configured.POLICY_NAME in names:
        raise ValueError(f"expected another name than {configured.POLICY_NAME}: that policy is made of history_ttl")
    if len(set(names)) < len(names):
        raise ValueError("expected every policy to have a name of its own")
    return tuple(documents)


def _sections(value: object) -> dict[str, dict[str, Any]]:
    """Take sections as they are: what may stand in one, its domain says."""
    expected = "expected a table for each domain: in the file [domains.NAME], else JSON"
    try:
        sections = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise ValueError(expected) from None
    if not isinstance(sections, dict) or not all(isinstance(one, dict) for one in sections.values()):
        raise ValueError(expected)
    return sections


def _policy_name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def _workspaces_url(value: object) -> str:
    from lapse.workspaces.opening import check_workspaces_url  # imports a driver: only when there is a URL to check

    if not isinstance(value, str):
        raise ValueError("expected a URL such as postgresql://HOST/DATABASE or file:///path/workspaces.db")  # noqa: TRY004 - as above
    if value:
        check_workspaces_url(value)
    return value


def _activity_url(value: object) -> str:
    from lapse.workspaces.opening import check_activity_url

    if not isinstance(value, str):
        raise ValueError("expected a URL such as redis://HOST:6379/0")  # noqa: TRY004 - as above
    check_activity_url(value)
    return value


def _workspace_ttl(value: object) -> Duration:
    duration, longest = _duration(value), LONGEST_TTL_SECONDS
    if duration.is_never or duration.seconds % 1 or not 1 <= duration.seconds <= longest:
        raise ValueError("expected whole seconds from 1s to 3650d; to keep a workspace for good, hold it")
    return duration


def _suffix(value: object) -> str:
    from lapse.workspaces.model import check_suffix

    return check_suffix(_text(value))


def _yes_or_no(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.lower() not in {"true", "false"}:
        raise ValueError("expected true or false")
    return value.lower() == "true"


def _choice(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Interval = Annotated[Duration, PlainValidator(_interval)]
Port = Annotated[int, PlainValidator(_port)]
Count = Annotated[int, PlainValidator(_count)]
Host = Annotated[str, PlainValidator(_host)]
Switch = Annotated[bool, PlainValidator(_yes_or_no)]
WorkspaceTTL = Annotated[Duration, PlainValidator(_workspace_ttl)]
DeletionBudget = Annotated[Budget, PlainValidator(_budget)]
LogFormat = Annotated[Literal["auto", "console", "json"], BeforeValidator(_choice)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_choice)]


def default_state_dir() -> Path:
    """Return the folder for what must outlive the process, as the XDG specification places it."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "lapse"


class Settings(BaseSettings):
    """The effective values. Built by `load_settings`."""

    # Without decoding: the library would take a variable of a type it does not know for JSON.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True, enable_decoding=False
    )

    state_dir: Annotated[Path, PlainValidator(_path)] = Field(
        default_factory=default_state_dir, description="Folder for the embedded stores and the tokens"
    )
    keys_url: Annotated[str, PlainValidator(_keys_url)] = Field(
        default="", description="Where keys are stored; by default keys.db in state_dir"
    )
    keys_sweep_interval: Interval = Field(
        default=Duration.of_seconds(1),
        description="Pause between rounds that remove expired keys physically; never turns them off",
    )
    request_ttl: Interval = Field(
        default=Duration.parse("10m"), description="How long a finished request stays; never keeps it"
    )
    request_ttl_mode: Annotated[TTLMode, BeforeValidator(_choice)] = Field(
        default=TTLMode.SCANNER,
        description="What ends a finished request: scanner is request_ttl, annotation is the request's own TTL",
    )
    request_deadline: Interval = Field(
        default=Duration.parse("24h"), description="When a request that does not finish fails; never lets it wait"
    )
    keeper_mode: Annotated[KeeperMode, PlainValidator(_keeper_mode)] = Field(
        default=KeeperMode.FOLLOW_OBJECT_WITH_TTL,
        description="How long snapshots stay: FollowObject with the request, FollowObjectWithTTL keeper_ttl longer",
    )
    keeper_ttl: Annotated[Duration, PlainValidator(_lifetime)] = Field(
        default=Duration.parse("24h"), description="How long snapshots outlive their request"
    )
    restore_ownership: Annotated[RestoreOwnership, BeforeValidator(_choice)] = Field(
        default=RestoreOwnership.USER,
        description="Who owns restored data: user, or keeper to delete it with the keeper",
    )
    deletion_budget: DeletionBudget = Field(
        default=Budget.parse("100000/1h"),
        description="How much may be ended in any window; past it a domain is frozen until lapse resume; off: no limit",
    )
    request_deletion_budget: DeletionBudget = Field(default=OFF, description="The same for requests alone")
    keeper_deletion_budget: DeletionBudget = Field(default=OFF, description="The same for keepers alone")
    history_namespace: Annotated[str, PlainValidator(_object_name)] = Field(
        default=configured.DEFAULT_NAMESPACE, description="Where records of experiments are kept"
    )
    history_ttl: Annotated[Duration, PlainValidator(_history_ttl)] = Field(
        default=configured.DEFAULT_TTL, description="How old records become: 0 for any age, or at least 1h"
    )
    history_retention_limit: Count = Field(
        default=configured.DEFAULT_LIMIT, description="How many records of each experiment stay; 0 for all"
    )
    history_keep_last_success: Count = Field(
        default=0, description="How many successful records of each experiment stay whatever their age and number"
    )
    retention_interval: Interval = Field(
        default=Duration.parse("1h"), description="Pause between passes over records, and over what policies select"
    )
    retention_policies: Annotated[tuple[dict[str, Any], ...], PlainValidator(_policies)] = Field(
        default=(), description="RetentionPolicy documents for the embedded store"
    )
    retention_account: Annotated[str, PlainValidator(_object_name)] = Field(
        default=ACCOUNT, description="The service account in lease_namespace that policies act as on a cluster"
    )
    history_deletion_budget: DeletionBudget = Field(default=OFF, description="deletion_budget for records alone")
    retention_deletion_budget: DeletionBudget = Field(
        default=OFF, description="deletion_budget for what other policies select alone"
    )
    workspaces_url: Annotated[str, PlainValidator(_workspaces_url)] = Field(
        default="", description="Where workspaces are stored; by default workspaces.db in state_dir"
    )
    workspaces_beyond_loopback: Switch = Field(
        default=False,
        description="Serve workspaces also where other machines can call: who may create one can run programs here",
    )
    workspaces_stop_on_exit: Switch = Field(
        default=True, description="Stop the programs of workspaces when Lapse stops; otherwise they run on"
    )
    workspaces_deletion_budget: DeletionBudget = Field(
        default=OFF, description="deletion_budget for workspaces alone: how many go to standby or to the archive"
    )
    domains: Annotated[dict[str, dict[str, Any]], PlainValidator(_sections)] = Field(
        default={}, description="Settings of domains of your own, a table for each: see a-domain-of-your-own"
    )
    activity_url: Annotated[str, PlainValidator(_activity_url)] = Field(
        default="", description="Where connections are counted: redis://HOST; by default in the process itself"
    )
    default_standby_ttl: WorkspaceTTL = Field(
        default=Duration.of_seconds(DEFAULT_STANDBY_TTL_SECONDS),
        description="How long a new workspace may be idle before it is stopped",
    )
    default_archive_ttl: WorkspaceTTL = Field(
        default=Duration.of_seconds(DEFAULT_ARCHIVE_TTL_SECONDS),
        description="How long a new workspace stays in standby before it is archived",
    )
    ttl_manager_interval: Annotated[Duration, PlainValidator(_lifetime)] = Field(
        default=Duration.parse("1m"), description="Pause between looks for workspaces whose TTL is over"
    )
    idle_timer: Annotated[Duration, PlainValidator(_lifetime)] = Field(
        default=Duration.parse("5m"), description="How long a workspace counts as in use after its last connection"
    )
    busy_most: Annotated[Duration, PlainValidator(_lifetime)] = Field(
        default=Duration.parse("24h"), description="How long one lapse busy keeps a workspace from lapsing at most"
    )
    proxy_host: Host = Field(default="127.0.0.1", description="Address of the workspace proxy")
    proxy_port: Port = Field(default=8752, description="Port of the workspace proxy")
    proxy_suffix: Annotated[str, PlainValidator(_suffix)] = Field(
        default="w.localhost", description="What follows the name of a workspace in its host name"
    )
    proxy_scheme: Annotated[Literal["http", "https"], BeforeValidator(_choice)] = Field(
        default="http",
        description="Scheme of workspace addresses: https when something in front of the proxy ends TLS on port 443",
    )
    proxy_lease: Annotated[Duration, PlainValidator(_lifetime)] = Field(
        default=Duration.parse("30s"), description="How long a connection counts after its proxy has died"
    )
    proxy_max_connections: Count = Field(
        default=4096, description="Connections to the workspace proxy, websockets included; 0 for no limit"
    )
    proxy_max_connections_per_peer: Count = Field(
        default=1024, description="The same from one address; 0 where a reverse proxy stands in front"
    )
    kube_config: Annotated[str, PlainValidator(_text)] = Field(
        default="", description="The kubeconfig to read; by default KUBECONFIG, the service account, ~/.kube/config"
    )
    kube_context: Annotated[str, PlainValidator(_text)] = Field(
        default="", description="Which context of the kubeconfig to use; by default its current one"
    )
    kube_qps: Count = Field(default=0, description="Calls a second to the API server; 0 for no limit")
    kube_burst: Count = Field(
        default=0, description="Calls at once after a rest; 0 is what kube_qps allows in a second"
    )
    lease_namespace: Annotated[str, PlainValidator(_object_name)] = Field(
        default="lapse-system", description="Namespace of the Lease that the replicas of an operator share"
    )
    lease_name: Annotated[str, PlainValidator(_object_name)] = Field(
        default="lapse-operator", description="Name of the Lease that the replicas of an operator share"
    )
    hold_kinds: Annotated[tuple[str, ...], PlainValidator(_kinds)] = Field(
        default=(), description="Kinds beside our own whose holds keep their owners on a cluster, such as v1/ConfigMap"
    )
    http_host: Host = Field(
        default="127.0.0.1", description="Address of the API and the pages; other than loopback needs a token"
    )
    http_port: Port = Field(default=8750, description="Port of the API and the pages")
    http_allowed_hosts: Annotated[tuple[str, ...], PlainValidator(_hosts)] = Field(
        default=(), description="Further names under which clients may call, such as that of a reverse proxy"
    )
    http_max_connections: Count = Field(default=512, description="Connections to the API and the pages; 0 for no limit")
    http_max_connections_per_peer: Count = Field(
        default=256, description="The same from one address; 0 where a reverse proxy stands in front"
    )
    webhook_host: Host = Field(default="127.0.0.1", description="Address of the admission webhook")
    webhook_port: Port = Field(default=8443, description="Port of the admission webhook")
    webhook_cert_file: Annotated[str, PlainValidator(_text)] = Field(
        default="",
        description="Certificate of the admission webhook, in PEM form; read again when it is replaced",
    )
    webhook_key_file: Annotated[str, PlainValidator(_text)] = Field(
        default="", description="Private key of that certificate, in PEM form"
    )
    probes_host: Host = Field(default="127.0.0.1", description="Address of /healthz, /readyz and /metrics")
    probes_port: Port = Field(default=8751, description="Port of /healthz, /readyz and /metrics")
    log_format: LogFormat = Field(default="auto", description="auto is console on a terminal and json otherwise")
    log_level: LogLevel = Field(default="info", description="The least important events to log")

    @model_validator(mode="after")
    def _derive(self) -> Settings:
        if not self.keys_url:
            # Frozen for everybody else: this default follows from another key.
            object.__setattr__(self, "keys_url", (self.state_dir / "keys.db").as_uri())
        if not self.workspaces_url:
            object.__setattr__(self, "workspaces_url", (self.state_dir / "workspaces.db").as_uri())
        return self

    @classmethod
    def settings_customise_sources(  # noqa: PLR0917 - the library's signature
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - their signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - their signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - their signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take only what is passed in: `load_settings` stacks the layers itself, because it must know each origin."""
        return (init_settings,)


# --- loading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    layer: Literal["flag", "environment", "file", "default"]
    name: str = ""
    """The flag, the variable, or the file with its line."""

    def __str__(self) -> str:
        """Print it for people."""
        if self.layer == "default":
            return "default"
        return self.name if self.layer == "file" else f"{self.layer} {self.name}"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings with the origin of every key, and what looked odd without being wrong."""

    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None
    warnings: tuple[str, ...] = ()

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """Give key, value and origin as text, secrets masked."""
        for key in Settings.model_fields:
            yield key, show_value(getattr(self.settings, key)), str(self.origins[key])


def load_settings(flags: Mapping[str, str | None] | None = None, *, config: str | Path | None = None) -> LoadedSettings:
    """Read file, environment and ``flags``, which are by flat key; None means not given.

    Raises `SettingsError` with everything that is wrong.
    """
    path, is_named = _find_file(config)
    values: dict[str, Any] = {}
    origins = {key: Origin("default") for key in Settings.model_fields}
    problems: list[str] = []
    if path is not None:
        for key, value, origin in _read_file(path, problems, is_named=is_named):
            values[key], origins[key] = value, origin
    for key, value, origin in _read_environment():
        values[key], origins[key] = value, origin
    for key, flag in (flags or {}).items():
        if flag is not None:
            values[key], origins[key] = flag, Origin("flag", "--" + key.replace("_", "-"))
    settings = _validate(values, origins, problems)
    if settings is None or problems:
        raise SettingsError(listing="".join(f"\n  {problem}" for problem in problems))
    return LoadedSettings(settings, origins, path, (*_odd_variables(), *_odd_values(settings, origins)))


def _read_environment() -> Iterator[tuple[str, Any, Origin]]:
    """Give what is set, our own names last, because they win."""
    for name in FOUNDING_NAMES:
        if name in os.environ:
            yield name.lower(), os.environ[name], Origin("environment", name)
    for name, key in FOUNDING_SECONDS.items():
        if name in os.environ:
            yield key, _in_seconds(os.environ[name]), Origin("environment", name)
    for key, value in EnvSettingsSource(Settings)().items():
        yield key, value, Origin("environment", PREFIX + key.upper())


def _in_seconds(text: str) -> str:
    """Give a bare number its unit."""
    return f"{text.strip()}s" if text.strip().isascii() and text.strip().isdigit() else text


def show_value(value: object) -> str:
    """Print a value for people: as it would be written, with a URL's credentials masked."""
    if isinstance(value, list | tuple):
        return ", ".join(_policy_name(one) if isinstance(one, dict) else str(one) for one in value)
    if isinstance(value, dict):  # sections of domains, whose values may be secrets
        return ", ".join(value)
    return masked(str(value).lower() if isinstance(value, bool) else str(value))


def _validate(values: dict[str, Any], origins: Mapping[str, Origin], problems: list[str]) -> Settings | None:
    try:
        return Settings(**values)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            key = str(found["loc"][0])
            cause = found.get("ctx", {}).get("error")
            rule = str(cause) if cause else found["msg"]
            # A duration is told with its error; documents are long, and what they say may be nobody's business.
            is_told = isinstance(cause, DurationError) or key in {"retention_policies", "domains"}
            given = "" if is_told else f" = {show_value(values.get(key))!r}"
            problems.append(f"{origins[key]}: {key}{given}: {rule}")
        return None


def _odd_variables() -> Iterator[str]:
    for name in sorted(os.environ):
        key = name.removeprefix(PREFIX).lower()
        known = name in _NO_SETTINGS or name in FOUNDING_SECONDS or key in Settings.model_fields
        if name.startswith(PREFIX) and not known:
            yield f"the environment variable {name} is not a setting{_closest(key, lambda near: PREFIX + near.upper())}"


def _odd_values(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    if warning := configured.ttl_warning(settings.history_ttl):
        yield f"{origins['history_ttl']}: {warning}"
    if settings.retention_interval.is_never and origins["history_ttl"].layer == "default":
        yield (
            f"{origins['retention_interval']}: retention_interval is never, so no pass over all records is made, and "
            "until one was, none is deleted: set history_ttl, or run lapse history prune"
        )


def _closest(key: str, spell: Any = str) -> str:  # noqa: ANN401 - any way to print a name
    near = get_close_matches(key, list(Settings.model_fields), n=1)
    return f"; did you mean {spell(near[0])}?" if near else ""


# --- the file --------------------------------------------------------------------------------------------------------


def _find_file(config: str | Path | None) -> tuple[Path | None, bool]:
    """Return the file to read, and whether it was named by the user rather than found in the working directory.

    One that was named must exist; one that is looked for need not.
    """
    named = config or os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            source = "--config" if config else CONFIG_VARIABLE
            raise SettingsError(listing=f"\n  {source} names {path}, which is not a file")
        return path, True
    local, own = Path(FILE_NAME), _own_file()
    if local.is_file():
        return local, False
    return (own if own.is_file() else None), True


def _own_file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "lapse" / FILE_NAME


def _read_file(path: Path, problems: list[str], *, is_named: bool) -> Iterator[tuple[str, Any, Origin]]:
    try:
        text = _read_own(path, problems)
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(_unreadable(path, error))
        return
    lines = dict(reversed([*_lines(text)]))  # of several tables of one list, the first
    seen: set[str] = set()
    for dotted, value in _flatten(document):
        key = dotted.replace(".", "_")
        where = f"{path}:{lines[dotted]}" if dotted in lines else str(path)
        if key not in Settings.model_fields:
            problems.append(f"{where}: {dotted}: no such key{_closest(key, _in_file)}")
        elif key in seen:
            problems.append(f"{where}: {dotted}: the key {key} is given twice")
        elif key in RUNNING_KEYS and not is_named:
            told = f"not taken from the working directory, as it can run programs; name the file with --config {path}"
            problems.append(f"{where}: {dotted}: {told}, or set the key in {_own_file()}")
        elif key in RUNNING_KEYS and _is_relative(value):
            told = "expected an absolute path: a relative one depends on the working directory"
            problems.append(f"{where}: {dotted}: {told}")
        else:
            seen.add(key)
            yield key, value, Origin("file", where)


def _read_own(path: Path, problems: list[str]) -> str:
    """Return what is in the file; nothing, and a problem, where another user decides about it."""
    with path.open(encoding="utf-8") as file:
        # The file that is open, not its name: that may lead to another one by now. And the link, where it is one.
        problem = distrust(os.fstat(file.fileno()))
        if problem is None and path.is_symlink() and path.lstat().st_uid not in {os.geteuid(), 0}:
            problem = "is a link of another user"
        if problem is None:
            return file.read()
    instead = f"chmod go-w {path}" if "written" in problem else "use a file of your own, or work in another folder"
    problems.append(f"{path}: it {problem}, and settings can run programs; {instead}")
    return ""


def _is_relative(value: object) -> bool:
    return isinstance(value, str) and "://" not in value and value != "" and value[0] not in "/~"


def _unreadable(path: Path, error: Exception) -> str:
    match = re.search(r" \(at line (\d+), column \d+\)$", str(error))
    if match:
        return f"{path}:{match[1]}: not valid TOML: {str(error)[: match.start()]}"
    reason = error.strerror if isinstance(error, OSError) else "it is not valid TOML in UTF-8"
    return f"{path}: cannot be read: {reason}"


def _flatten(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and f"{above}{name}".replace(".", "_") not in Settings.model_fields:
            yield from _flatten(value, f"{above}{name}.")
        else:
            yield above + name, value


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """Find the line of each key. Good for messages only: a line inside a multi-line string may be taken for a key."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.\s-]+?)\s*\]", line):
            name = re.sub(r"\s", "", header[2])
            table = name + "."
            if header[1] == "[[":
                yield name, number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            yield table + key[1], number


def _in_file(key: str) -> str:
    table, _, name = key.partition("_")
    return f"{name} under [{table}]"
