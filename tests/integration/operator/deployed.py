"""`deploy/base` on a control plane of its own, and operators that show the token of its ServiceAccount.

There are no nodes, so no pod of the Deployment ever runs: its container is a process here, with the container's
environment and with no rights but those that were applied.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.integration.operator.conftest import Operator

if TYPE_CHECKING:
    from tests.servers import KubeServer

BASE = Path(__file__).parents[3] / "deploy" / "base"
NAMESPACE, ACCOUNT = "lapse-system", "lapse"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
POLICIES_ACCOUNT = "lapse-retention"
"""What policies act as."""
POLICIES_USER = f"system:serviceaccount:{NAMESPACE}:{POLICIES_ACCOUNT}"


def apply_base(kube: KubeServer) -> None:
    """Apply all of it, as the page about clusters says."""
    kube.kubectl("apply", "--server-side", "-k", str(BASE))


def start_operator(kube: KubeServer, folder: Path, *flags: str, url: str = "") -> Operator:
    """Run what a pod of the Deployment would run; ``url`` is another way to the API server."""
    kubeconfig = account_kubeconfig(kube, folder, url or kube.url)
    return Operator.launch(folder, kubeconfig, *flags, settings=environment(kube))


def account_kubeconfig(kube: KubeServer, folder: Path, url: str) -> Path:
    token = kube.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE).strip()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(kube.ca_file)}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path = folder / "service-account"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def environment(kube: KubeServer) -> dict[str, str]:
    """What the container gets, but for its ports and its home."""
    deployment = json.loads(kube.kubectl("get", "deployment", "lapse", "-n", NAMESPACE, "-o", "json"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    fields = {"metadata.namespace": deployment["metadata"]["namespace"]}
    return {
        one["name"]: one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
        if one["name"] != "HOME"
    }
