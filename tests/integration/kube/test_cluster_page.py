"""The page about clusters, to the letter: its console blocks run in order on a control plane of their own.

There are no nodes, so once the page has applied the base, an operator with the rights of its ServiceAccount is started.
The page reads and writes volumes in the folder of the driver. The provisioner is stopped from the first restore until
the page has shown how far that is: otherwise it would be over too soon to be seen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.test_docs import FENCE, shown_as, steps
from tests.integration.operator.deployed import BASE, start_operator
from tests.servers import kube_server

pytestmark = pytest.mark.server("kube", private=True)
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "on-your-cluster.md"
RESTORE, SHOWN = "kind: VolumeRestoreRequest", "kubectl get vrr"


@pytest.mark.timeout(400)
def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    text = PAGE.read_text()
    blocks = [match["body"] for match in FENCE.finditer(text) if match["language"] == "console"]
    with kube_server(crds=(), csi=True) as server, ExitStack() as stack:
        path = f"{Path(sys.executable).parent}:{server.programs}:{os.environ['PATH']}"
        env = os.environ | {"KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path), "PATH": path, "NO_COLOR": "1"}
        env["VOLUMES"] = str(server.storage.folder)
        running = False
        page = commands(blocks)
        slow, first = stack.enter_context(ExitStack()), next(one for one, _ in page if RESTORE in one)
        for command, expected in page:
            if command == first:
                slow.enter_context(server.component("csi-provisioner").paused())
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=130,
            )
            assert shown_as(expected).fullmatch(done.stdout), f"$ {command}\n{done.stdout}"
            if command == SHOWN:
                slow.close()
            if command.endswith(f"-k {BASE.relative_to(ROOT)}") and not running:
                (setting,) = set(re.findall(r"LAPSE_REQUEST_TTL=\w+", text))
                stack.callback(start_operator(server, tmp_path, f"--request-ttl={setting.partition('=')[2]}").stop)
                running = True


def commands(blocks: list[str]) -> list[tuple[str, str]]:
    """Take the blocks apart; a document for kubectl goes on until its end is marked."""
    found = []
    for command, printed in (step for block in blocks for step in steps(block)):
        if command.endswith(("<<EOF", "<<'EOF'")):
            document, _, rest = printed.partition("\nEOF\n")
            found.append((f"{command}\n{document}\nEOF\n", rest))
        else:
            found.append((command, printed))
    return found
