"""A real Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager, built from Go modules.

`build` makes the programs, `control_plane` runs them, `server` is what a test gets. `csi` adds a storage driver with
its sidecars, and `storage` shows what that driver keeps on the disk. `crds` holds two kinds for tests of objects in
general; `modules` the lists of what the programs are built from. There is no kubelet and no scheduler: no pod ever
runs. Import `kube_server` and `KubeServer` from `tests.servers`.
"""
