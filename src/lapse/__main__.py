"""``python -m lapse`` is the same program as ``lapse``."""

from __future__ import annotations

import sys

from lapse.cli import main

if __name__ == "__main__":
    sys.exit(main())
