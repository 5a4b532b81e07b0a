"""Folders of the local executor, and the annotations by which its objects name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from lapse.kube.resources import ObjectKey
    from lapse.requests.api.upstream import VolumeSnapshotContent

DRIVER: Final = "local.lapse.dev"
CLASS: Final = "local"
"""The name of the StorageClass and of the VolumeSnapshotClass."""
DIRECTORY: Final = "local.lapse.dev/directory"
"""On a claim, or on the template of a restore: the directory that is the volume."""
_DIGEST: Final = "@sha256:"


@dataclass(frozen=True, slots=True)
class ExecutorFolders:
    """The folders of one executor."""

    root: Path

    @property
    def snapshots(self) -> Path:
        """Archives that go with their snapshot content."""
        return self.root / "snapshots"

    @property
    def retained(self) -> Path:
        """Archives that stay."""
        return self.root / "retained"

    @property
    def volumes(self) -> Path:
        """Restored directories whose request named no other place."""
        return self.root / "volumes"

    def archive(self, content: VolumeSnapshotContent) -> Path:
        """Return where the archive of a snapshot content belongs: what is to be retained, where nothing is removed."""
        kept = content.spec.deletion_policy != "Delete"
        return (self.retained if kept else self.snapshots) / f"{content.metadata.name}.tar.gz"

    def misplaced(self, content: VolumeSnapshotContent) -> Path:
        """Return where the archive is if the deletion policy was changed after the capture."""
        kept = content.spec.deletion_policy != "Delete"
        return (self.snapshots if kept else self.retained) / f"{content.metadata.name}.tar.gz"

    def found(self, content: VolumeSnapshotContent) -> Path:
        """Return where the archive of a captured content is now."""
        return next((path for path in (self.archive(content), self.misplaced(content)) if path.exists()),
                    self.archive(content))  # fmt: skip

    def may_hold_leftovers(self) -> list[Path]:
        """Return the folders in which an interrupted write may have left something."""
        namespaces = self.volumes.iterdir() if self.volumes.is_dir() else ()
        return [self.snapshots, self.retained, *(folder for folder in namespaces if folder.is_dir())]

    def removable(self, content_name: str) -> Path:
        """Return the archive that goes when the content of that name is gone."""
        return self.snapshots / f"{content_name}.tar.gz"

    def volume(self, claim: ObjectKey) -> Path:
        """Return where a restore goes that names no directory."""
        return self.volumes / (claim.namespace or "") / claim.name

    def contents(self) -> list[str]:
        """Return the names of the snapshot contents whose removable archives are here."""
        return [path.name.removesuffix(".tar.gz") for path in self.snapshots.glob("*.tar.gz")]

    def arrival(self, request_uid: str) -> Path:
        """Return where is noted which directory a restore has made."""
        return self.root / "arrivals" / request_uid


def snapshot_handle(archive: Path, sha256: str) -> str:
    """Name an archive together with what it must contain."""
    return f"{archive.name}{_DIGEST}{sha256}"


def digest_of(handle: str) -> str | None:
    """Return the checksum in a snapshot handle; None when it is not one of ours."""
    _, found, digest = handle.partition(_DIGEST)
    return digest if found else None
