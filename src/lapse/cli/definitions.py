"""The definitions of all kinds of ours, whichever domain they belong to.

``python -m lapse.cli.definitions FOLDER`` writes them, one file each, with a Kustomization that lists them; a test
demands that those in the repository are what this writes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.kube.crd import write
from lapse.requests.api.crd import crd
from lapse.requests.api.kinds import OUR_KINDS

if TYPE_CHECKING:
    from lapse.kube.resources import Json


def all_definitions() -> list[Json]:
    """Return the definitions, domain by domain."""
    return [crd(kind) for kind in OUR_KINDS]


if __name__ == "__main__":
    write(Path(sys.argv[1]), all_definitions())
