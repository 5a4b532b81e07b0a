"""Deterministic names: a second reconcile finds what the first one made, also after a crash in between."""

from __future__ import annotations

from hashlib import sha256


def keeper_name(short: str, request_uid: str) -> str:
    """Name the keeper of a request; ``short`` is vcr, vrr or mcr."""
    return f"ret-{short}-{request_uid}"


def snapshot_name(request_uid: str, target_uid: str) -> str:
    """Name the VolumeSnapshotContent that captures one claim for one request."""
    return f"snapshot-{request_uid}-{_hex(target_uid, 12)}"


def checkpoint_name(request_uid: str) -> str:
    """Name the checkpoint of a manifest capture."""
    return f"mcp-{_hex(request_uid, 16)}"


def chunk_name(checkpoint: str, index: int) -> str:
    """Name one chunk of a checkpoint."""
    return f"{checkpoint}-{index}"


def _hex(text: str, digits: int) -> str:
    return sha256(text.encode()).hexdigest()[:digits]
