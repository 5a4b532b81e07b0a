"""Amounts as Kubernetes writes them, such as 1Gi, 500M, 1e3 or a plain number, read into whole units."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_TEXT: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?")
_DECIMAL: Final = dict(zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True))
_BINARY: Final = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_MOST_CHARACTERS: Final = 64


def units(quantity: float | str | None) -> int | None:
    """Return how many whole units an amount is, rounded up as Kubernetes does; None when it cannot be read."""
    text = str(quantity).strip() if quantity is not None else ""
    found = _TEXT.fullmatch(text) if len(text) <= _MOST_CHARACTERS else None
    if found is None:
        return None
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in _BINARY:
        number *= _BINARY[suffix]
    elif suffix in _DECIMAL:
        number = number.scaleb(_DECIMAL[suffix])
    elif suffix:
        number = number.scaleb(int(suffix[1:]))
    return int(number.to_integral_value(ROUND_CEILING))
