"""Configuration of the connection to an API server: found once at start, from a kubeconfig or from inside a pod.

The order is that of other controllers: a file that was named, the files of ``KUBECONFIG``, the service account of the
pod we run in, ``~/.kube/config``. Secrets that stand in files stay there; a `Path` is read again while we run (tokens
and certificates are replaced under way), bytes are not. No secret is part of a ``repr`` or of a message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lapse.kube.errors import KubeConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds what its service account is known by."""
DEFAULT_FILE: Final = Path(".kube") / "config"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

Material = bytes | Path
"""Given in place, or the file to read it from, again and again."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The server, and why we believe that it is the one."""

    server: str
    """Its address without a slash at the end."""
    ca: Material | None = field(default=None, repr=False)
    """Who may vouch for it, as PEM; None: those whom this machine trusts."""
    insecure: bool = False
    """Believe any certificate: only ever by somebody's explicit wish."""
    server_name: str | None = None
    """The name that its certificate must have, if not that of the address."""
    proxy: str | None = field(default=None, repr=False)
    compress: bool = True
    """Whether it may compress long lists."""
    exec_extension: Any = field(default=None, repr=False)
    """What the cluster says to credential plugins."""

    @property
    def place(self) -> str:
        """The address for messages: without anything that may be a password."""
        parts = urlsplit(self.server)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@dataclass(frozen=True, kw_only=True)
class ExecConfig:
    """A command that prints credentials. ``command`` is a name on PATH or an absolute path."""

    api_version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    install_hint: str = ""
    wants_cluster: bool = False
    """Whether it is told which cluster it is for."""


@dataclass(frozen=True, kw_only=True)
class User:
    """What we show to the server. Of token, password and plugin the first that is there counts."""

    token: Material | None = field(default=None, repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    certificate: Material | None = field(default=None, repr=False)
    key: Material | None = field(default=None, repr=False)
    exec_config: ExecConfig | None = None
    impersonation: Mapping[str, str] = field(default_factory=dict)
    """Headers that ask to be treated as somebody else."""
    groups: tuple[str, ...] = ()
    """Groups of that somebody; one header each."""

    @property
    def shows_something(self) -> bool:
        """Whether there is anything that a listener could steal."""
        return bool(self.token or self.username or self.certificate or self.exec_config)


@dataclass(frozen=True, kw_only=True)
class KubeConfig:
    """All that a client needs."""

    cluster: Cluster
    user: User = User()
    namespace: str = "default"
    """Where we are, unless somebody says otherwise."""
    origin: str = "settings"
    """Where this was found, for messages."""

    def __post_init__(self) -> None:
        """Refuse what cannot work or would give secrets away."""
        cluster, parts = self.cluster, urlsplit(self.cluster.server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise _problem(self.origin, "the server's address does not begin with https://HOST")
        if parts.username is not None or parts.password is not None:
            raise _problem(self.origin, "the server's address holds a password; give username and password of the user")
        if cluster.insecure and cluster.ca is not None:
            raise _problem(
                self.origin, "it gives a certificate authority and insecure-skip-tls-verify; use only one of them"
            )
        if parts.scheme == "http" and self.user.shows_something and parts.hostname not in _LOOPBACK:
            raise _problem(self.origin, f"credentials would go to {cluster.place} unencrypted; use https")
        if (self.user.certificate is None) != (self.user.key is None):
            raise _problem(self.origin, "a client certificate needs its key, and a key its certificate")
        if not all(text.isprintable() for text in (*self.user.impersonation.values(), *self.user.groups)):
            raise _problem(self.origin, "a user or group to act as has characters that no header may have")
        if cluster.proxy is not None and urlsplit(cluster.proxy).scheme not in {"http", "https"}:
            raise _problem(self.origin, "only proxies by http:// and https:// are supported")


def load_config(
    *,
    file: Path | None = None,
    context: str | None = None,
    environ: Mapping[str, str],
    service_account: Path = SERVICE_ACCOUNT,
) -> KubeConfig:
    """Find the configuration; see the module for the order. Raises `KubeConfigError`."""
    from lapse.kube.auth.kubeconfig import read_kubeconfig  # only who has a file needs the reader of YAML

    if file is not None:
        return read_kubeconfig([file], context=context, must_exist=True)
    if listed := [Path(name) for name in environ.get("KUBECONFIG", "").split(":") if name]:
        return read_kubeconfig(listed, context=context)
    if context is None and environ.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return in_cluster(environ, folder=service_account)
    home = Path(environ.get("HOME") or Path.home())
    if not (home / DEFAULT_FILE).exists():
        raise KubeConfigError(
            problem="there is none: no file was named, KUBECONFIG is not set, this is not a pod with a service account,"
            f" and there is no ~/{DEFAULT_FILE}"
        )
    return read_kubeconfig([home / DEFAULT_FILE], context=context)


def acting_as(config: KubeConfig, user: str) -> KubeConfig:
    """Return a configuration whose calls have the rights of another user, and none of our own.

    The server adds the groups of a service account by itself, so one right is enough: to impersonate that account.
    """
    return replace(config, user=replace(config.user, impersonation={"Impersonate-User": user}, groups=()))


def in_cluster(environ: Mapping[str, str], *, folder: Path = SERVICE_ACCOUNT) -> KubeConfig:
    """Return what a pod's service account is given. Raises `KubeConfigError`."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise KubeConfigError(problem="KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: is this a pod?")
    missing = [name for name in ("token", "ca.crt") if not (folder / name).is_file()]
    if missing:
        raise KubeConfigError(
            problem=f"{folder} has no {' and no '.join(missing)}; is automountServiceAccountToken off?"
        )
    address = f"[{host}]" if ":" in host else host
    space = folder / "namespace"
    return KubeConfig(
        cluster=Cluster(server=f"https://{address}:{port}", ca=folder / "ca.crt"),
        user=User(token=folder / "token"),
        namespace=(space.read_text(encoding="utf-8").strip() if space.is_file() else "") or "default",
        origin="the pod's service account",
    )


def _problem(origin: str, what: str) -> KubeConfigError:
    return KubeConfigError(problem=f"{origin}: {what}")
