"""The local executor: plays CSI driver, snapshotter and provisioner for those without a cluster.

A volume is a directory, a snapshot is a compressed archive, a restore is a new directory. Like every executor it writes
only its own objects (claims, volumes, snapshot contents) and never a request; the controllers cannot tell it from CSI.
"""
