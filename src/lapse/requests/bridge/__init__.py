"""The bridge: carries out restores on a cluster, with the stock provisioner and snapshotter of any CSI driver.

`executor` decides what is to be done for one restore; `snapshots` restores from a VolumeSnapshotContent, `adoption`
from a PersistentVolume; `template` describes the claim that either of them makes; `removal` takes away what was made on
the way; `wakes` says which changes bring the executor back.
"""
