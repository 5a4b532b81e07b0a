"""The page about clusters, to the letter: its console blocks run in order on a control plane of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.test_docs import FENCE, shown_as, steps
from tests.servers import kube_server

pytestmark = pytest.mark.server("kube", private=True)
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "on-your-cluster.md"


def test_every_command_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    blocks = [match["body"] for match in FENCE.finditer(PAGE.read_text()) if match["language"] == "console"]
    with kube_server(crds=()) as server:
        path = f"{Path(sys.executable).parent}:{server.programs}:{os.environ['PATH']}"
        env = os.environ | {"KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path), "PATH": path, "NO_COLOR": "1"}
        for command, expected in commands(blocks):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=60,
            )
            assert shown_as(expected).fullmatch(done.stdout), f"$ {command}\n{done.stdout}"


def commands(blocks: list[str]) -> list[tuple[str, str]]:
    """Take the blocks apart; a document for kubectl goes on until its quote ends."""
    found = []
    for command, printed in (step for block in blocks for step in steps(block)):
        if command.endswith("<<< '"):
            document, _, rest = printed.partition("\n'\n")
            found.append((f"{command}\n{document}\n'", rest))
        else:
            found.append((command, printed))
    return found
