"""The definitions of all kinds of ours, whichever domain they belong to.

``python -m lapse.app.definitions FOLDER`` writes them, one file each, with a Kustomization that lists them; a test
demands that those in the repository are what this writes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lapse.history.api import crd as of_history
from lapse.history.api import kinds as history
from lapse.kube.crd.definition import write
from lapse.requests.api import crd as of_requests
from lapse.requests.api import kinds as requests

if TYPE_CHECKING:
    from lapse.kube.resources import Json


def all_definitions() -> list[Json]:
    """Return the definitions, domain by domain."""
    return [
        *map(of_requests.crd, requests.OUR_KINDS),
        *map(of_history.crd, history.OUR_KINDS),
    ]


if __name__ == "__main__":
    write(Path(sys.argv[1]), all_definitions())
