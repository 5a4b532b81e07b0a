"""What the CSI driver of a control plane keeps on this machine's disk."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Storage:
    """Where the hostpath driver keeps what it made: how a test looks behind the API, and stands in for a pod."""

    folder: Path

    def volume(self, handle: str) -> Path:
        """The folder with a volume's files; `handle` is the `volumeHandle` of its PersistentVolume."""
        return self.folder / handle

    def volumes(self) -> set[str]:
        """The handles of all volumes that are really there."""
        return {path.name for path in self.folder.iterdir() if path.is_dir()}

    def snapshots(self, *, of: str | None = None) -> set[str]:
        """The handles of all snapshots that are really there: the `snapshotHandle` of a VolumeSnapshotContent.

        `of` is the handle of a volume: then only its snapshots, which those of other tests do not disturb. One that the
        driver is about to make counts only without it, and of several of one volume the driver notes only the last.
        """
        there = {path.stem for path in self.folder.glob("*.snap")}
        return there if of is None else {handle for handle in there if self._sources().get(handle) == of}

    def _sources(self) -> dict[str, str]:
        """The volume of each snapshot, as the driver has noted it."""
        while True:
            with contextlib.suppress(json.JSONDecodeError):  # it writes the file in place
                noted = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
                return {snapshot["Id"]: snapshot["VolID"] for snapshot in noted["Snapshots"] or ()}
