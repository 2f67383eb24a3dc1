"""Storage classes of volume claims, and the access modes that their provisioners offer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.diagnostics import Diagnostic, Note, Severity
from avactl.program.program import Item, Program

_ONE_NODE = (
    "rbd.csi.ceph.com",
    "ebs.csi.aws.com",
    "kubernetes.io/aws-ebs",
    "pd.csi.storage.gke.io",
    "kubernetes.io/gce-pd",
    "disk.csi.azure.com",
    "kubernetes.io/azure-disk",
    "cinder.csi.openstack.org",
    "csi.hetzner.cloud",
    "dobs.csi.digitalocean.com",
    "kubernetes.io/no-provisioner",
    "rancher.io/local-path",
    "openebs.io/local",
    "topolvm.io",
)
_MANY_NODES = (
    "cephfs.csi.ceph.com",
    "nfs.csi.k8s.io",
    "smb.csi.k8s.io",
    "efs.csi.aws.com",
    "fsx.csi.aws.com",
    "file.csi.azure.com",
    "kubernetes.io/azure-file",
    "filestore.csi.storage.gke.io",
    "driver.longhorn.io",
    "csi.juicefs.com",
    "csi.weka.io",
    "beegfs.csi.netapp.com",
)
"""Provisioners of block devices, which one node mounts, and of file systems, which all nodes mount.

Source: https://kubernetes-csi.github.io/docs/drivers.html, column `Supported Access Modes`. Rook prefixes Ceph's names
with its namespace.
"""


def class_name(program: Program, cluster: str, use: str) -> str | None:
    """Storage class for a use (`workspace`, `cache`, `checkpoint`); None is the cluster's default."""
    classes = program.cluster_spec(cluster).storage_classes
    name: str | None = getattr(classes, use) or classes.default
    return name


def sharing_problems(item: Item, program: Program, use: str, path: tuple[str, ...], what: str) -> Iterator[Diagnostic]:
    """Yield a problem if the storage class of a volume that several pods share cannot be mounted by several nodes.

    `what` is the subject of the message: `4 pods share the checkpoint volume`.
    """
    name = class_name(program, item.cluster, use)
    cluster = program.find_cluster(item.cluster)
    if cluster is None:
        return
    declared = next((each for each in cluster.spec.storage_classes.classes if each.name == name), None)
    known = offers_many(declared.provisioner, declared.access_modes) if declared is not None else None
    if known:
        return
    set_at = ("spec", "storageClasses") if "storage_classes" in cluster.spec.model_fields_set else ("spec",)
    note = Note(cluster.span(*set_at, key=True), f"storage classes of cluster {cluster.name}")
    shown = f"storage class {name}" if name else f"the default storage class of cluster {cluster.name}"
    other = f"set `storageClasses.{use}` of Cluster {cluster.name} to a class of a shared file system (CephFS, NFS, …)"
    if known is None:
        described = f"describe it: `classes: [{{name: {name}, provisioner: …}}]`; or " if name else ""
        offer, hint = f"it is unknown if {shown} offers it", described + other
    else:
        by = f" ({declared.provisioner})" if declared is not None and declared.provisioner else ""
        offer, hint = f"{shown}{by} offers only ReadWriteOnce", f"{other}, or use an object store"
    message = f"{what}, which needs ReadWriteMany; {offer}"
    severity: Severity = "warning" if known is None else "error"
    yield Diagnostic("access-mode", message, item.span(*path), severity=severity, hint=hint, notes=(note,))


def offers_many(provisioner: str | None, modes: Sequence[str]) -> bool | None:
    """Return True if several nodes can mount a volume for writing; None if that is unknown."""
    if modes:
        return "ReadWriteMany" in modes
    if provisioner is not None:
        for answer, known in ((False, _ONE_NODE), (True, _MANY_NODES)):
            if any(provisioner == each or provisioner.endswith(f".{each}") for each in known):
                return answer
    return None
