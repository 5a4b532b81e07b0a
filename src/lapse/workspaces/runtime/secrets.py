"""Secrets of single workspaces, derived from one secret of the installation: nothing is stored, and none tells another.

A purpose keeps what is derived for one use from being good for another.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

FIELD: Final = "X-Lapse-Workspace-Secret"
"""The header in which a program is told the secret of its port."""


def derive(secret: bytes, purpose: str, workspace_id: str) -> str:
    """Return the secret of a workspace for a purpose: 64 hexadecimal characters."""
    return hmac.new(secret, f"{purpose}\0{workspace_id}".encode(), sha256).hexdigest()
