"""The pages about the webhook, to the letter: their console blocks run in order on a control plane of their own.

There are no nodes and so no pods: before a page shows the webhook at work, one is started beside the API server, which
is told to ask that one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.test_docs import FENCE, shown_as
from tests.integration.kube.test_cluster_page import commands
from tests.integration.webhook.conftest import COMPONENT, Webhook, ca_bundle, place_certificate
from tests.servers import kube_server
from tests.servers.certificate import make_authority
from tests.servers.kube.server import KubectlError
from tests.servers.lapse_server import until
from tests.servers.progress import tell_stderr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import KubeServer
    from tests.servers.certificate import Authority

pytestmark = pytest.mark.server("kube", private=True)
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "limit-manifest-captures.md"
ROLES_PAGE = ROOT / "docs" / "how-to" / "who-may-capture-and-restore.md"
CAPTURE = """
apiVersion: state-snapshotter.deckhouse.io/v1alpha1
kind: ManifestCaptureRequest
metadata: {name: is-it-there, namespace: default}
spec: {targets: [{apiVersion: v1, kind: Gadget, name: a}]}
"""


def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    before, after = PAGE.read_text().split("## See it work\n")
    authority = make_authority(tmp_path / "authority", tell_stderr)
    with kube_server() as server:
        env = environment(server, tmp_path, authority)
        run(before, tmp_path, env)
        with asked(server, tmp_path, authority):
            run(after, tmp_path, env)


def test_every_command_of_the_page_about_roles_prints_what_it_shows(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "authority", tell_stderr)
    with kube_server() as server:
        env = environment(server, tmp_path, authority)
        server.kubectl("apply", "--server-side", "-f", str(COMPONENT / "webhook-configuration.yaml"))
        with asked(server, tmp_path, authority):
            run(ROLES_PAGE.read_text(), tmp_path, env)


def environment(server: KubeServer, folder: Path, authority: Authority) -> dict[str, str]:
    """What the commands run in, in a folder that has the checkout, and what a page applies from within it."""
    (folder / "lapse").symlink_to(ROOT)
    (folder / "deploy").symlink_to(ROOT / "deploy")
    programs = f"{Path(sys.executable).parent}:{server.programs}:{authority.openssl.parent}"
    env = os.environ | {"KUBECONFIG": str(server.kubeconfig), "HOME": str(folder), "NO_COLOR": "1"}
    return env | {"PATH": f"{programs}:{os.environ['PATH']}"}


def run(text: str, folder: Path, env: dict[str, str]) -> None:
    blocks = [match["body"] for match in FENCE.finditer(text) if match["language"] == "console"]
    for command, expected in commands(blocks):

        def done(command: str = command, expected: str = expected) -> bool:
            printed = output(command, folder, env)
            fits = shown_as(expected).fullmatch(printed) is not None
            # What a user was just allowed to do may take the API server a moment to notice.
            assert fits or "--as=" in command, f"$ {command}\n{printed}"
            return fits

        until(done)


def output(command: str, folder: Path, env: dict[str, str]) -> str:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    ).stdout


@contextmanager
def asked(server: KubeServer, folder: Path, authority: Authority) -> Iterator[None]:
    """Run a webhook that the API server asks instead of the Service."""
    bundle = ca_bundle(authority)
    place_certificate(authority, "loopback", folder)
    webhook = Webhook.launch(folder, f"--kube-config={server.kubeconfig}")
    try:
        listening = webhook.event("listening") or {}
        patch = json.dumps(
            [
                {"op": "replace", "path": f"/webhooks/{number}/{field}", "value": value}
                for number, url in enumerate((listening["webhook"], listening["policies"]))
                for field, value in (("clientConfig", {"url": url, "caBundle": bundle}), ("timeoutSeconds", 30))
            ]
        )
        server.kubectl("patch", "validatingwebhookconfiguration", "lapse-webhook", "--type=json", "-p", patch)
        until(lambda: "denied the request" in complaint(server))
        yield
    finally:
        webhook.stop()


def complaint(server: KubeServer) -> str:
    try:
        return server.kubectl("create", "--dry-run=server", "-f", "-", stdin=CAPTURE)
    except KubectlError as error:
        return str(error)
