"""The example of a domain beside Lapse, whether or not ``make run`` has installed it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.markdown import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def settings_with_example_domain(folder: Path) -> dict[str, str]:
    """Put it into a folder of its own; return the environment in which a process finds it."""
    packages = folder / "packages"
    metadata = packages / "lapse_scratch-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "domain" / "lapse_scratch.py", packages)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lapse-scratch\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[lapse.domains]\nscratch = lapse_scratch:SCRATCH\n")
    return {"PYTHONPATH": str(packages)}
