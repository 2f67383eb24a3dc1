"""Names, ports and directories of a tier's parts."""

from __future__ import annotations

from avactl.kinds.dataset_access import CACHE_NAMESPACE
from avactl.kinds.program import Item

MASTER_PORT, MASTER_WEB_PORT, JOURNAL_PORT = 19998, 19999, 19200
JOB_MASTER_PORT, JOB_MASTER_WEB_PORT, JOB_JOURNAL_PORT = 20001, 20002, 20003
WORKER_PORT, WORKER_WEB_PORT = 29999, 30000
JOB_WORKER_PORT, JOB_WORKER_DATA_PORT, JOB_WORKER_WEB_PORT = 30001, 30002, 30003
"""Alluxio's default ports. Pods have addresses of their own, so several tiers share a machine."""

HOME = "/opt/alluxio"
"""Where Alluxio is in its image."""
JOURNAL_DIR = "/journal"
SOCKET_DIR = "/run/alluxio"
"""Where worker and FUSE see the sockets of the machine's workers."""


def config(item: Item) -> str:
    """The ConfigMap of a tier."""
    return f"{item.name}-alluxio"


def master(item: Item) -> str:
    """The masters' StatefulSet and headless Service."""
    return f"{item.name}-master"


def worker(item: Item) -> str:
    """The workers' DaemonSet or StatefulSet, and their Service."""
    return f"{item.name}-worker"


def fuse(item: Item) -> str:
    """The FUSE DaemonSet."""
    return f"{item.name}-fuse"


def master_host(item: Item, pod: str) -> str:
    """The address of one master by the name of its pod."""
    return f"{pod}.{master(item)}.{CACHE_NAMESPACE}.svc"


def master_hosts(item: Item) -> list[str]:
    """The addresses of all masters."""
    return [master_host(item, f"{master(item)}-{index}") for index in range(item.spec.masters.replicas)]


def storage_dir(medium: str) -> str:
    """Where a worker sees its storage of a medium."""
    return f"/cache/{medium.lower()}"


def machine_dir(item: Item, medium: str, path: str | None) -> str:
    """The directory on the machine that holds a tier's storage of a medium. Several tiers may share a disk."""
    return f"{(path or f'/mnt/{medium.lower()}').rstrip('/')}/{item.name}"
