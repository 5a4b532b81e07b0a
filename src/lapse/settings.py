"""Settings: one model for file, environment and flags.

Every key has one flat name. ``keys_url`` is ``url`` under ``[keys]`` in the file, ``LAPSE_KEYS_URL`` in the
environment and ``--keys-url`` on the command line. A flag wins over the environment, the environment over the file,
the file over the default, and `LoadedSettings.origins` remembers which one it was. A key is declared once, here, with
its default as a person would write it, the function that reads it and its meaning: the flags of all commands and the
help of each are made from that (`lapse.cli.flags`), and a test compares the reference page with it. So that help texts
stay quick, what reads a value imports its domain when there is a value to read, not before.

Everything that is wrong is reported at once, with the line of the file where there is one. An unknown key in the
file is an error; an unknown ``LAPSE_`` variable is only a warning, because the environment belongs to other
programs as well (test runs, wrappers, newer versions of Lapse). Read by `cli`, `app` and `web` only: everything below
is given its values.

A file that another user owns or may write is refused. From ``./lapse.toml`` nothing is taken that can lead to a program
that is run, or sends anything elsewhere: a folder that somebody else has filled, such as a download, must not decide
that by being the working directory.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from lapse.core.duration import DAY, Duration, DurationError
from lapse.core.errors import UsageError
from lapse.core.text import masked
from lapse.files.ownership import distrust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lapse.engine.journal.webhook import Webhook
    from lapse.engine.safety.budget import Budget
    from lapse.requests.api.kinds import KeeperMode
    from lapse.requests.lifecycle.policy import RestoreExecutor, RestoreOwnership, TTLMode

T = TypeVar("T")
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
    PREFIX + name
    for name in ("CONFIG", "SERVER", "SERVER_CERTIFICATE", "CA_FILE", "TOKEN", "WORKSPACE", "WORKSPACE_TOKEN", "RUN")
)
"""Variables of ours that are read, or given to the programs of workspaces, and are no settings."""
RUNNING_KEYS: Final = ("kube_config", "state_dir", "database_url", "workspaces_url", "domains")
"""What can lead to programs: a kubeconfig names plugins, and workspaces, wherever they are stored, have commands.
What a domain of another distribution does with its section, nobody knows."""
SENDING_KEYS: Final = ("webhooks",)
"""What is sent elsewhere: what the journal tells of this user's things."""
_MAX_PORT: Final = 65_535
_OBJECT_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_KIND: Final = re.compile(r"(?:[a-z0-9.-]+/)?v[0-9][a-z0-9]*/[A-Z][A-Za-z0-9]*")
_HOST: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


_DECLARED: Final = "declared"


class SettingsError(UsageError, ValueError):
    """The settings cannot be used:{listing}"""  # noqa: D400 - a list follows


class ValuesError(ValueError):
    """Values that no setting may have, with the reason by key."""

    def __init__(self, problems: Mapping[str, ValueError]) -> None:
        """Name the keys."""
        super().__init__("; ".join(f"{key}: {problem}" for key, problem in problems.items()))
        self.problems = problems


# --- the field types -------------------------------------------------------------------------------------------------


def _duration(value: object) -> Duration:
    if isinstance(value, Duration):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a text with a unit, such as 10m or 1h30m")  # noqa: TRY004 - problems are collected by this type
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


def _journal_ttl(value: object) -> Duration:
    duration = _duration(value)
    if duration.nanoseconds is not None and duration.nanoseconds < DAY:
        raise ValueError("expected a duration of at least 1d, such as 400d, or never")
    return duration


def _port(value: object) -> int:
    # The environment has text only; true is an int to Python, and no port.
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


def _file(value: object) -> str:
    """Read the path of a file, absolute whatever the working directory is later; none is empty."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("expected the path of a file")
    return str(Path(value).expanduser().absolute()) if value else ""


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
    from lapse.requests.api.kinds import KeeperMode

    modes = [KeeperMode.FOLLOW_OBJECT, KeeperMode.FOLLOW_OBJECT_WITH_TTL]
    if value not in modes:
        raise ValueError(f"expected {' or '.join(modes)}")
    return KeeperMode(str(value))


def _budget(value: object) -> Budget:
    from lapse.engine.safety.budget import Budget

    if isinstance(value, Budget):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a text such as 10000/1h, or off")  # noqa: TRY004 - as above
    return Budget.parse(value)


def _domain_names(value: object) -> tuple[str, ...]:
    """Read names of domains; all stands for every one."""
    from lapse.domains import REGISTRY
    from lapse.engine.safety.freeze import ALL

    names, known = value.replace(",", " ").split() if isinstance(value, str) else value, REGISTRY.freezable()
    if not isinstance(names, list | tuple) or not all(name in {*known, ALL} for name in names):
        raise ValueError(f"expected {', '.join(known)} or {ALL}, such as requests,keepers")
    return known if ALL in names else tuple(dict.fromkeys(names))


def _by_plan(value: object) -> tuple[str, ...]:
    """Read names of domains, and of policies after policy/; all stands for every domain."""
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("expected names of domains, and policies as policy/NAME")
    policies = tuple(name for name in names if name.startswith("policy/") and name != "policy/")
    return (*_domain_names([name for name in names if name not in policies]), *policies)


def _history_ttl(value: object) -> Duration:
    from lapse.history.policy.default_policy import HistorySettingError, read_ttl

    if value == 0 and not isinstance(value, bool):  # the one number that means the same in every unit
        return Duration(0)
    try:
        return read_ttl(value) if isinstance(value, str) else _duration(value)
    except HistorySettingError as error:
        # Without the flag: the value may come from elsewhere, and its origin is told anyway.
        raise ValueError(f"{error.details['problem']}; expected {error.details['expected']}") from error


def _policies(value: object) -> tuple[dict[str, Any], ...]:
    """Take documents as they are: whether each can be used is told with its status, and others go on beside it."""
    from lapse.history.policy.default_policy import POLICY_NAME

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
    if POLICY_NAME in names:
        raise ValueError(f"expected another name than {POLICY_NAME}: that policy is made of history_ttl")
    if len(set(names)) < len(names):
        raise ValueError("expected every policy to have a name of its own")
    return tuple(documents)


def _webhooks(value: object) -> tuple[Webhook, ...]:
    if value in ((), [], ""):
        return ()
    from lapse.engine.journal.webhook import Webhook, read_webhooks  # uses TLS: only when there is one to check

    expected = "expected a list of webhooks: in the file each is [[webhooks]], else JSON"
    try:
        documents = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise ValueError(expected) from None
    if not isinstance(documents, list | tuple) or not all(isinstance(one, dict | Webhook) for one in documents):
        raise ValueError(expected)
    return read_webhooks(documents)


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


def _database_url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE")  # noqa: TRY004 - as above
    if value:
        from lapse.db.postgres.url import PostgresURL  # uses a driver: only when there is a URL to check

        PostgresURL.parse(value)
    return value


def _workspaces_url(value: object) -> str:
    from lapse.workspaces.opening import check_workspaces_url

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
    from lapse.workspaces.model import LONGEST_TTL_SECONDS

    duration = _duration(value)
    if duration.is_never or duration.seconds % 1 or not 1 <= duration.seconds <= LONGEST_TTL_SECONDS:
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


def _one_of(*known: str) -> Callable[[object], Any]:
    """Return what reads one of a few words, whatever their case."""

    def read(value: object) -> str:
        text = value.lower() if isinstance(value, str) else value
        if text not in known:
            raise ValueError(f"expected {', '.join(known[:-1])} or {known[-1]}")
        return str(text)

    return read


def _ttl_mode(value: object) -> TTLMode:
    from lapse.requests.lifecycle.policy import TTLMode

    return TTLMode(_one_of(*TTLMode)(value))


def _restore_ownership(value: object) -> RestoreOwnership:
    from lapse.requests.lifecycle.policy import RestoreOwnership

    return RestoreOwnership(_one_of(*RestoreOwnership)(value))


def _restore_executor(value: object) -> RestoreExecutor:
    from lapse.requests.lifecycle.policy import RestoreExecutor

    chosen = (RestoreExecutor.BRIDGE, RestoreExecutor.EXTERNAL, RestoreExecutor.OFF)
    return RestoreExecutor(_one_of(*chosen)(value))


def default_state_dir() -> Path:
    """Return the folder for what must outlive the process, as the XDG specification places it."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser().absolute() / "lapse"


# --- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One key, as it is declared."""

    written: object
    """The default as a person would write it, or a function that returns it."""
    read: Callable[[object], Any]
    """Returns the value that was meant; raises ValueError, which says what was expected."""
    meaning: str
    """For people: the reference and the help of the flag."""

    @property
    def start(self) -> object:
        """The default before it is read."""
        return self.written() if callable(self.written) else self.written

    @property
    def default(self) -> Any:  # noqa: ANN401 - of the key's own type
        """The value where nobody says anything, unless it follows from another key."""
        return self.read(self.start)


def setting(written: object, read: Callable[[object], T], meaning: str) -> T:
    """Declare a key; types come from ``read``, which every value goes through, defaults included."""
    declared = Setting(written, read, meaning)
    return cast("T", field(default_factory=lambda: declared.start, metadata={_DECLARED: declared}))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The effective values. Built by `load_settings`; raises `ValuesError` for what cannot be used."""

    state_dir: Path = setting(default_state_dir, _path, "Folder for the embedded stores and the tokens")
    database_url: str = setting(
        "",
        _database_url,
        "PostgreSQL for journal, budgets, freezes and workspaces, such as postgresql://HOST/DATABASE; otherwise they"
        " are in state_dir",
    )
    keys_url: str = setting("", _keys_url, "Where keys are stored, such as memory:// or file:///path/keys.db")
    keys_sweep_interval: Duration = setting(
        "1s",
        _interval,
        "Pause between rounds that remove expired keys physically, such as 1s; never turns them off",
    )
    request_ttl: Duration = setting("10m", _interval, "How long a finished request stays, such as 10m; never keeps it")
    request_ttl_mode: TTLMode = setting(
        "scanner",
        _ttl_mode,
        "scanner: request_ttl decides when a finished request goes; annotation: the request's own annotation does",
    )
    request_deadline: Duration = setting(
        "24h", _interval, "When a request that does not finish fails, such as 24h; never lets it wait"
    )
    keeper_mode: KeeperMode = setting(
        "FollowObjectWithTTL",
        _keeper_mode,
        "FollowObject: snapshots go with their request; FollowObjectWithTTL: keeper_ttl later",
    )
    keeper_ttl: Duration = setting("24h", _lifetime, "How long snapshots outlive their request, such as 24h")
    trash_ttl: Duration = setting(
        "7d", _interval, "How long what was ended can be brought back by lapse undo; never keeps nothing"
    )
    artifact_ttl_max: Duration = setting(
        "30d",
        _interval,
        "The longest artifactTTL that a request may ask for, such as 30d; never allows any, and never itself",
    )
    extend_max: Duration = setting(
        "30d",
        _interval,
        "How far lapse extend may move a deadline beyond the one that a thing has by its rules; never sets no limit",
    )
    plan_ttl: Duration = setting("24h", _lifetime, "How long a plan can be carried out after it was made, such as 24h")
    restore_ownership: RestoreOwnership = setting(
        "user", _restore_ownership, "user: restored data is the user's; keeper: it goes with the keeper"
    )
    restore_executor: RestoreExecutor = setting(
        "bridge",
        _restore_executor,
        "On a cluster, bridge: Lapse makes the claim of a restore with the stock sidecars; external: a provisioner that"
        " watches restore requests does; off: restores are refused",
    )
    deletion_budget: Budget = setting(
        "100000/1h",
        _budget,
        "How much may be ended in any window, such as 10000/1h; past it a domain is frozen until lapse resume;"
        " off sets no limit",
    )
    journal_ttl: Duration = setting(
        "400d", _journal_ttl, "How long rows of the journal stay, such as 400d, at least 1d; never keeps them all"
    )
    dry_run_domains: tuple[str, ...] = setting(
        (),
        _domain_names,
        "Domains of which nothing is ended and only the journal tells what would be, such as requests,keepers, or all",
    )
    act_by_plan: tuple[str, ...] = setting(
        (),
        _by_plan,
        "What is ended by approved plans only, and never by a loop: domains, and policies as policy/NAME, such as"
        " requests,policy/nightly-jobs",
    )
    request_deletion_budget: Budget = setting("off", _budget, "The same for requests alone")
    keeper_deletion_budget: Budget = setting("off", _budget, "The same for keepers alone")
    schedule_deletion_budget: Budget = setting(
        "off", _budget, "The same for what newer runs of its schedule have superseded"
    )
    schedule_manifests: str = setting(
        "off",
        _one_of("off", "admitted"),
        "Whether schedules on a cluster may capture manifests; admitted: yes, as the webhook judges them; off: no",
    )
    history_namespace: str = setting("chaos-system", _object_name, "Where records of experiments are kept")
    history_ttl: Duration = setting(
        "720h", _history_ttl, "How old records become, such as 720h, at least 1h; 0 for any age"
    )
    history_retention_limit: int = setting(100, _count, "How many records of each experiment stay; 0 for all")
    history_keep_last_success: int = setting(
        0, _count, "How many successful records of each experiment stay, whatever their age and number"
    )
    retention_interval: Duration = setting(
        "1h",
        _interval,
        "Pause between passes over records, and over what policies select, such as 1h; never turns them off",
    )
    retention_policies: tuple[dict[str, Any], ...] = setting(
        (), _policies, "RetentionPolicy documents for the embedded store, as a JSON list; better in the file"
    )
    retention_account: str = setting(
        "lapse-retention",
        _object_name,
        "The service account that policies act as on a cluster, in the namespace of the operator",
    )
    history_deletion_budget: Budget = setting(
        "off",
        _budget,
        "How many records may be ended in any window, such as 1000/1h; past it history is frozen; off sets no limit",
    )
    retention_deletion_budget: Budget = setting("off", _budget, "The same for what retention policies select")
    workspaces_url: str = setting(
        "",
        _workspaces_url,
        "Deprecated, use database_url: where workspaces are stored",
    )
    workspaces_beyond_loopback: bool = setting(
        "false",
        _yes_or_no,
        "true: serve workspaces also where other machines can call; who may create one can run programs here",
    )
    workspaces_stop_on_exit: bool = setting(
        "true", _yes_or_no, "false: leave the programs of workspaces running when Lapse stops"
    )
    workspaces_deletion_budget: Budget = setting(
        "off",
        _budget,
        "How many workspaces may go to standby or to the archive in any window, such as 1000/1h; off sets no limit",
    )
    webhooks: tuple[Webhook, ...] = setting(
        (), _webhooks, "Whom to tell of what lapses, as a JSON list; better in the file, a table for each"
    )
    expiry_warning: Duration = setting(
        "1h", _interval, "How long before something lapses webhooks are told that it will, such as 1h; never tells them"
    )
    domains: dict[str, dict[str, Any]] = setting(
        {}, _sections, "Settings of domains of your own, as a JSON object by name; better in the file, a table for each"
    )
    activity_url: str = setting(
        "",
        _activity_url,
        "Where connections are counted, such as redis://HOST:6379; otherwise in the process itself",
    )
    default_standby_ttl: Duration = setting(
        "5m", _workspace_ttl, "How long a new workspace may be idle before it is stopped, such as 5m"
    )
    default_archive_ttl: Duration = setting(
        "24h", _workspace_ttl, "How long a new workspace stays in standby before it is archived, such as 24h"
    )
    ttl_manager_interval: Duration = setting(
        "1m", _lifetime, "Pause between looks for workspaces whose TTL is over, such as 1m"
    )
    idle_timer: Duration = setting(
        "5m", _lifetime, "How long a workspace counts as in use after its last connection, such as 5m"
    )
    busy_most: Duration = setting(
        "24h", _lifetime, "How long one lapse busy keeps a workspace from lapsing at most, such as 24h"
    )
    proxy_host: str = setting(
        "127.0.0.1", _host, "Address of the workspace proxy; other than loopback needs workspaces_beyond_loopback"
    )
    proxy_port: int = setting(8752, _port, "Port of the workspace proxy; 0 picks a free one")
    proxy_suffix: str = setting(
        "w.localhost", _suffix, "What follows the name of a workspace in its host name, such as w.example.com"
    )
    proxy_scheme: Literal["http", "https"] = setting(
        "http",
        _one_of("http", "https"),
        "http, or https when something in front of the proxy ends TLS on port 443",
    )
    proxy_lease: Duration = setting(
        "30s",
        _lifetime,
        "How long a connection counts after its proxy has died, such as 30s; the same for all that share activity_url",
    )
    proxy_max_connections: int = setting(
        4096, _count, "Connections to the workspace proxy, websockets included; 0 for no limit"
    )
    proxy_max_connections_per_peer: int = setting(
        1024, _count, "The same from one address; 0 where a reverse proxy stands in front"
    )
    kube_config: str = setting(
        "", _text, "The kubeconfig to read; otherwise KUBECONFIG, the pod's service account or ~/.kube/config"
    )
    kube_context: str = setting("", _text, "Which context of the kubeconfig to use; otherwise its current one")
    kube_qps: int = setting(0, _count, "Calls a second to the API server; 0 for no limit")
    kube_burst: int = setting(0, _count, "Calls at once after a rest; 0 is what kube_qps allows in a second")
    lease_namespace: str = setting(
        "lapse-system", _object_name, "Namespace of the Lease that the replicas of an operator share"
    )
    lease_name: str = setting(
        "lapse-operator", _object_name, "Name of the Lease that the replicas of an operator share"
    )
    hold_kinds: tuple[str, ...] = setting(
        (), _kinds, "Kinds beside our own whose holds keep their owners on a cluster, such as v1/ConfigMap"
    )
    http_host: str = setting("127.0.0.1", _host, "Address of the API and the pages; other than loopback needs a token")
    http_port: int = setting(8750, _port, "Port of the API and the pages; 0 picks a free one")
    http_allowed_hosts: tuple[str, ...] = setting(
        (),
        _hosts,
        "Further names under which clients may call, such as that of a reverse proxy, separated by commas",
    )
    http_max_connections: int = setting(512, _count, "Connections to the API and the pages; 0 for no limit")
    http_max_connections_per_peer: int = setting(
        256, _count, "The same from one address; 0 where a reverse proxy stands in front"
    )
    http_tls_certificate: str = setting(
        "",
        _file,
        "Certificate of the API and the pages, in PEM form, with which they speak TLS only; read again when it is"
        " replaced",
    )
    http_tls_key: str = setting("", _file, "Private key of that certificate, in PEM form and without a password")
    webhook_host: str = setting("127.0.0.1", _host, "Address of the admission webhook")
    webhook_port: int = setting(8443, _port, "Port of the admission webhook; 0 picks a free one")
    webhook_cert_file: str = setting(
        "", _text, "Certificate of the admission webhook, in PEM form; read again when it is replaced"
    )
    webhook_key_file: str = setting("", _text, "Private key of that certificate, in PEM form")
    probes_host: str = setting("127.0.0.1", _host, "Address of /healthz, /readyz and /metrics")
    probes_port: int = setting(8751, _port, "Port of /healthz, /readyz and /metrics; 0 picks a free one")
    log_format: Literal["auto", "console", "json"] = setting(
        "auto",
        _one_of("auto", "console", "json"),
        "auto, console or json; auto is console on a terminal and json otherwise",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", _one_of("debug", "info", "warning", "error"), "debug, info, warning or error"
    )

    def __post_init__(self) -> None:
        """Read every value by the rule of its key, then fill in the defaults that follow from other keys."""
        problems: dict[str, ValueError] = {}
        for key, declared in SETTINGS.items():
            try:
                # Frozen for everybody else.
                object.__setattr__(self, key, declared.read(getattr(self, key)))
            except ValueError as error:
                problems[key] = error
        if not problems and bool(self.http_tls_certificate) != bool(self.http_tls_key):
            given, missing = "http_tls_certificate", "http_tls_key"
            if self.http_tls_key:
                given, missing = missing, given
            problems[given] = ValueError(f"expected {missing} beside it: TLS needs both files, or none")
        if problems:
            raise ValuesError(problems)
        if not self.keys_url:
            object.__setattr__(self, "keys_url", (self.state_dir / "keys.db").as_uri())
        if not self.database_url and not self.workspaces_url.startswith("file:"):
            object.__setattr__(self, "database_url", self.workspaces_url)
        if self.database_url or not self.workspaces_url:
            url = self.database_url or (self.state_dir / "workspaces.db").as_uri()
            object.__setattr__(self, "workspaces_url", url)


SETTINGS: Final[Mapping[str, Setting]] = {one.name: one.metadata[_DECLARED] for one in fields(Settings)}
"""Every key that there is, in the order of the reference."""


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
    deprecations: tuple[str, ...] = ()
    """Those of the warnings that are about keys which go with the next version."""

    def shown(self) -> Iterator[tuple[str, str, str]]:
        """Give key, value and origin as text, secrets masked."""
        for key in SETTINGS:
            yield key, show_value(getattr(self.settings, key)), str(self.origins[key])


DECIDING: Final = (
    *("request_ttl", "request_ttl_mode", "request_deadline", "keeper_mode", "keeper_ttl", "artifact_ttl_max"),
    *("trash_ttl", "extend_max", "plan_ttl", "dry_run_domains", "act_by_plan", "retention_interval"),
    "deletion_budget",
    *(f"{name}_deletion_budget" for name in ("request", "keeper", "schedule", "history", "retention", "workspaces")),
)
"""What decides about things of a store: a command must not decide by other values than the process that runs there."""


def deciding_values(settings: Settings) -> dict[str, str]:
    """Return what decides, as texts that `with_deciding` reads."""
    return {key: _as_text(getattr(settings, key)) for key in DECIDING}


def with_deciding(loaded: LoadedSettings, values: Mapping[str, str]) -> LoadedSettings:
    """Return settings with what decides taken from ``values``, as far as they can be read here."""
    read: dict[str, Any] = {}
    for key in DECIDING:
        if key in values:
            with suppress(ValueError):
                read[key] = SETTINGS[key].read(values[key])
    return replace(loaded, settings=replace(loaded.settings, **read))


def _as_text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(getattr(value, "value", value))


def load_settings(flags: Mapping[str, str | None] | None = None, *, config: str | Path | None = None) -> LoadedSettings:
    """Read file, environment and ``flags``, which are by flat key; None means not given.

    Raises `SettingsError` with everything that is wrong.
    """
    path, is_named = _find_file(config)
    values: dict[str, Any] = {}
    origins = {key: Origin("default") for key in SETTINGS}
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
    if values.get("database_url") and values.get("workspaces_url", "") not in {"", values["database_url"]}:
        problem = "it names another place than database_url, which says where workspaces are; leave it out"
        problems.append(f"{origins['workspaces_url']}: workspaces_url: {problem}")
    if settings is None or problems:
        raise SettingsError(listing="".join(f"\n  {problem}" for problem in problems))
    deprecations = tuple(_deprecated(settings, origins))
    warnings = (*_odd_variables(), *_odd_values(settings, origins), *deprecations)
    # Each of the two may follow from the other, see `Settings`.
    for key, other in (("database_url", "workspaces_url"), ("workspaces_url", "database_url")):
        if not values.get(key) and getattr(settings, key) == values.get(other):
            origins[key] = origins[other]
    return LoadedSettings(settings, origins, path, warnings, deprecations)


def _read_environment() -> Iterator[tuple[str, Any, Origin]]:
    """Give what is set, our own names last, because they win."""
    for name in FOUNDING_NAMES:
        if name in os.environ:
            yield name.lower(), os.environ[name], Origin("environment", name)
    for name, key in FOUNDING_SECONDS.items():
        if name in os.environ:
            yield key, _in_seconds(os.environ[name]), Origin("environment", name)
    given = {name.upper(): value for name, value in os.environ.items()}
    for key in SETTINGS:
        if PREFIX + key.upper() in given:
            yield key, given[PREFIX + key.upper()], Origin("environment", PREFIX + key.upper())


def _in_seconds(text: str) -> str:
    """Give a bare number its unit."""
    return f"{text.strip()}s" if text.strip().isascii() and text.strip().isdigit() else text


def show_value(value: object) -> str:
    """Print a value for people: as it would be written, with a URL's credentials masked.

    Of a PostgreSQL URL host, port and database are shown.
    """
    from lapse.db.postgres.url import is_postgres, show_url

    if isinstance(value, str) and is_postgres(value):
        return show_url(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown_item, value))
    if isinstance(value, dict):  # sections of domains, whose values may be secrets
        return ", ".join(value)
    return masked(str(value).lower() if isinstance(value, bool) else str(value))


def _shown_item(one: object) -> str:
    """Print an item of a list; of what has a name, that alone: a URL of a webhook may be a secret."""
    if isinstance(one, dict):
        return _policy_name(one)
    name = getattr(one, "name", None)
    return name if isinstance(name, str) else str(one)


def _validate(values: dict[str, Any], origins: Mapping[str, Origin], problems: list[str]) -> Settings | None:
    try:
        return Settings(**values)
    except ValuesError as error:
        for key, problem in error.problems.items():
            # A duration is told with its error, and of a URL what may be shown; documents are long, and what they say
            # may be nobody's business.
            is_told = isinstance(problem, DurationError) or key in {"retention_policies", "domains", "webhooks"}
            is_url = key.endswith("_url") and isinstance(values.get(key), str)
            given = "" if is_told or is_url else f" = {show_value(values.get(key))!r}"
            problems.append(f"{origins[key]}: {key}{given}: {problem}")
        return None


def _odd_variables() -> Iterator[str]:
    for name in sorted(os.environ):
        key = name.removeprefix(PREFIX).lower()
        known = name in _NO_SETTINGS or name in FOUNDING_SECONDS or key in SETTINGS
        if name.startswith(PREFIX) and not known:
            yield f"the environment variable {name} is not a setting{_closest(key, lambda near: PREFIX + near.upper())}"


def _deprecated(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    if (origin := origins["workspaces_url"]).layer != "default":
        instead = "leave it out, and workspaces are in state_dir"
        if settings.database_url:
            instead = "set database_url, which means the same"
        yield f"{origin}: workspaces_url goes with the next version; {instead}"


def _odd_values(settings: Settings, origins: Mapping[str, Origin]) -> Iterator[str]:
    from lapse.history.policy.default_policy import ttl_warning

    if warning := ttl_warning(settings.history_ttl):
        yield f"{origins['history_ttl']}: {warning}"
    if settings.retention_interval.is_never and origins["history_ttl"].layer == "default":
        yield (
            f"{origins['retention_interval']}: retention_interval is never, so no pass over all records is made, and "
            "until one was, none is deleted: set history_ttl, or run lapse history prune"
        )


def _closest(key: str, spell: Any = str) -> str:  # noqa: ANN401 - any way to print a name
    near = get_close_matches(key, list(SETTINGS), n=1)
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
    local, own = Path(FILE_NAME), own_folder() / FILE_NAME
    if local.is_file():
        return local, False
    return (own if own.is_file() else None), True


def own_folder() -> Path:
    """Return where a user keeps what is theirs: the file with settings, and credentials of servers."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "lapse"


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
        if key not in SETTINGS:
            problems.append(f"{where}: {dotted}: no such key{_closest(key, _in_file)}")
        elif key in seen:
            problems.append(f"{where}: {dotted}: the key {key} is given twice")
        elif key in (*RUNNING_KEYS, *SENDING_KEYS) and not is_named:
            danger = "can run programs" if key in RUNNING_KEYS else "sends the journal elsewhere"
            told = f"not taken from the working directory, as it {danger}; name the file with --config {path}"
            problems.append(f"{where}: {dotted}: {told}, or set the key in {own_folder() / FILE_NAME}")
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
        if isinstance(value, dict) and f"{above}{name}".replace(".", "_") not in SETTINGS:
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
