"""Kubeconfig files: several are merged as kubectl merges them, and one context is picked.

The first file that names a cluster, a user or a context wins, also for ``current-context``; files of a list that do not
exist are passed over. Relative paths count from the file that they stand in. A message names files, contexts and
fields, never a value.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lapse.files.ownership import distrust
from lapse.kube.auth.config import Cluster, ExecConfig, KubeConfig, Material, User
from lapse.kube.errors import KubeConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLUGIN_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"


class _Extension(msgspec.Struct, frozen=True):
    name: str = ""
    extension: Any = None


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool = False
    extensions: list[_Extension] | None = None


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: _Exec | None = None
    auth_provider: Any = None
    impersonate: str | None = msgspec.field(default=None, name="as")
    impersonate_uid: str | None = msgspec.field(default=None, name="as-uid")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    impersonate_extra: Any = msgspec.field(default=None, name="as-user-extra")


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context | None = None


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


_Read = list[tuple[Path, _File]]
"""Files with the folders that they stand in."""


def read_kubeconfig(files: Sequence[Path], *, context: str | None = None, must_exist: bool = False) -> KubeConfig:
    """Read and merge the files and return what ``context``, or the current one, names. Raises `KubeConfigError`."""
    listed = ":".join(str(file) for file in files)
    read: _Read = [(file.absolute().parent, _parse(file)) for file in files if must_exist or file.exists()]
    if not read:
        raise KubeConfigError(problem=f"there is no file {listed}")
    wanted = context or next((content.current_context for _, content in read if content.current_context), None)
    contexts = _merged(read, "context")
    known = ", ".join(sorted(contexts)) or "none"
    if wanted is None:
        raise _problem(listed, f"no context was named and none is the current one; there are: {known}")
    if wanted not in contexts:
        raise _problem(listed, f"there is no context {wanted}; there are: {known}")
    chosen, origin = contexts[wanted][1], f"context {wanted} of {listed}"
    clusters, users = _merged(read, "cluster"), _merged(read, "user")
    if chosen.cluster not in clusters:
        raise _problem(origin, f"there is no cluster {chosen.cluster or 'without a name'}")
    if chosen.user and chosen.user not in users:
        raise _problem(origin, f"there is no user {chosen.user}")
    user = _user(origin, *users[chosen.user]) if chosen.user else User()
    if user.exec_config is not None:
        _demand_own(origin, files)
    return KubeConfig(
        cluster=_cluster(origin, *clusters[chosen.cluster]),
        user=user,
        namespace=chosen.namespace or "default",
        origin=origin,
    )


def _parse(file: Path) -> _File:
    try:
        import yaml
    except ImportError:
        raise KubeConfigError(problem="PyYAML is missing: install lapse[kubernetes]") from None
    try:
        with file.open("rb") as source:
            content = yaml.load(source, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - the safe one, in C where there is one
        return msgspec.convert(content or {}, _File)
    except OSError as error:
        raise KubeConfigError(problem=f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        # Not its own words, and not as the cause either: they quote the line, and the line may be a token.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1})"
        raise KubeConfigError(problem=f"{file} is not YAML{where}") from None
    except msgspec.ValidationError as error:
        raise KubeConfigError(problem=f"{file}: {error}") from None


def _merged(read: _Read, what: str) -> dict[str, tuple[Path, Any]]:
    """Return all entries of a sort by their names; the first wins, and remembers where it comes from."""
    merged: dict[str, tuple[Path, Any]] = {}
    for folder, content in read:
        for entry in getattr(content, f"{what}s") or ():
            if (body := getattr(entry, what)) is not None:
                merged.setdefault(entry.name, (folder, body))
    return merged


def _cluster(origin: str, folder: Path, found: _Cluster) -> Cluster:
    extensions = {extension.name: extension.extension for extension in found.extensions or ()}
    return Cluster(
        server=found.server.rstrip("/"),
        ca=_material(origin, folder, found, "certificate_authority"),
        insecure=found.insecure_skip_tls_verify,
        server_name=found.tls_server_name or None,
        proxy=found.proxy_url or None,
        compress=not found.disable_compression,
        exec_extension=extensions.get(_EXEC_EXTENSION),
    )


def _user(origin: str, folder: Path, found: _User) -> User:
    if found.auth_provider is not None:
        raise _problem(origin, "auth-provider is no longer a way to log in; use an exec plugin")
    token: Material | None = found.token.encode() if found.token else None
    return User(
        token=folder / found.token_file if found.token_file else token,
        username=found.username or "",
        password=found.password or "",
        certificate=_material(origin, folder, found, "client_certificate"),
        key=_material(origin, folder, found, "client_key"),
        exec_config=None if found.exec is None else _exec_config(origin, found.exec, folder),
        impersonation=_impersonation(origin, found),
        groups=tuple(found.impersonate_groups or ()),
    )


def _demand_own(origin: str, files: Sequence[Path]) -> None:
    """Refuse to run a program because another user wrote so."""
    for file in files:
        problem = distrust(file.stat()) if file.exists() else None
        if problem is not None:
            raise _problem(origin, f"it names an exec plugin, and {file} {problem}; use a file that only you can write")


def _exec_config(origin: str, found: _Exec, folder: Path) -> ExecConfig:
    if found.api_version not in PLUGIN_VERSIONS:
        raise _problem(origin, f"the exec plugin speaks {found.api_version or 'no version'}; it must be v1 or v1beta1")
    if found.interactive_mode == "Always":
        raise _problem(
            origin, "the exec plugin wants to ask a person (interactiveMode Always), and Lapse runs without one"
        )
    # As kubectl: a bare name is looked for on PATH, a relative path counts from the file.
    command = str(folder / found.command) if "/" in found.command else found.command
    return ExecConfig(
        api_version=found.api_version,
        command=command,
        args=tuple(found.args or ()),
        env={variable.name: variable.value for variable in found.env or ()},
        install_hint=" ".join((found.install_hint or "").split()),
        wants_cluster=found.provide_cluster_info,
    )


def _impersonation(origin: str, found: _User) -> Mapping[str, str]:
    if found.impersonate_extra:  # to leave it out would be to act as somebody else than was asked for
        raise _problem(origin, "as-user-extra is not supported")
    if not found.impersonate:
        if found.impersonate_groups or found.impersonate_uid:
            raise _problem(origin, "as-groups and as-uid need as")
        return {}
    headers = {"Impersonate-User": found.impersonate}
    return headers | ({"Impersonate-Uid": found.impersonate_uid} if found.impersonate_uid else {})


def _material(origin: str, folder: Path, entry: _Cluster | _User, field: str) -> Material | None:
    """Return the data in place, which wins, or the file."""
    data, file = getattr(entry, f"{field}_data"), getattr(entry, field)
    if data:
        try:
            return b64decode(data, validate=False)
        except (binascii.Error, ValueError):
            raise _problem(origin, f"{field.replace('_', '-')}-data is not base64") from None
    return folder / file if file else None


def _problem(origin: str, what: str) -> KubeConfigError:
    return KubeConfigError(problem=f"{origin}: {what}")
