"""What a record carries in its metadata, so that metadata is enough to decide how long it stays.

Label values have at most 63 characters of a small alphabet; experiments are called what they are called. What does not
fit is shortened, and a hash of all of it tells it from others that begin alike. The exact names are in the record's
spec and, for those who read metadata only, in the annotation.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

EXPERIMENT_NAMESPACE: Final = "lapse.dev/experiment-namespace"
EXPERIMENT_NAME: Final = "lapse.dev/experiment-name"
EXPERIMENT_UID: Final = "lapse.dev/experiment-uid"
STATUS: Final = "lapse.dev/status"
"""Labels."""
EXPERIMENT: Final = "lapse.dev/experiment"
"""An annotation: NAMESPACE/NAME, in full."""
LONGEST_VALUE: Final = 63
_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DIGITS: Final = 10


def label_value(text: str) -> str:
    """Return a text as a label can have it; the same text always gives the same value."""
    if not text or (len(text) <= LONGEST_VALUE and _VALUE.fullmatch(text)):
        return text
    kept = re.sub("[^A-Za-z0-9_.-]", "-", text)[: LONGEST_VALUE - _DIGITS - 1].strip("-_.")
    digest = short_hash(text)
    return f"{kept}-{digest}" if kept else digest


def short_hash(*parts: str) -> str:
    """Return a few digits that differ for different parts, also for ``a, bc`` and ``ab, c``."""
    return sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]
