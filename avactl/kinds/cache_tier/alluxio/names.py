"""Names, ports and directories of a tier's components."""

from __future__ import annotations

from avactl.contracts.names import CACHE_NAMESPACE
from avactl.program.program import Item
from avactl.spec.platform.cache_tier import CacheTierSpec, StorageTier

MASTER_PORT, MASTER_WEB_PORT, JOURNAL_PORT = 19998, 19999, 19200
JOB_MASTER_PORT, JOB_MASTER_WEB_PORT, JOB_JOURNAL_PORT = 20001, 20002, 20003
WORKER_PORT, WORKER_WEB_PORT = 29999, 30000
JOB_WORKER_PORT, JOB_WORKER_DATA_PORT, JOB_WORKER_WEB_PORT = 30001, 30002, 30003
"""Alluxio's default ports. Pods have their own addresses, so several tiers can share a machine."""

HOME = "/opt/alluxio"
"""Alluxio's directory in its image."""
JOURNAL_DIR = "/journal"
DURABLE_DIR = "/durable"
"""Directory of `writeBack.durable.claim` in master and worker containers."""
SOCKET_DIR = "/run/alluxio"
"""Directory with the machine's worker sockets, in worker and FUSE containers."""
VOLUMES_DIR = "/volumes"
"""Directory with the list of the tier's volumes, in FUSE pods."""


def config_name(item: Item[CacheTierSpec]) -> str:
    """Name of the tier's ConfigMap."""
    return f"{item.name}-alluxio"


def master_name(item: Item[CacheTierSpec]) -> str:
    """Name of the masters' StatefulSet and headless Service."""
    return f"{item.name}-master"


def worker_name(item: Item[CacheTierSpec]) -> str:
    """Name of the workers' DaemonSet or StatefulSet, and their Service."""
    return f"{item.name}-worker"


def fuse_name(item: Item[CacheTierSpec]) -> str:
    """Name of the FUSE DaemonSet."""
    return f"{item.name}-fuse"


def volumes_name(item: Item[CacheTierSpec]) -> str:
    """Name of the ConfigMap with the tier's volumes."""
    return f"{item.name}-volumes"


def master_host(item: Item[CacheTierSpec], pod: str) -> str:
    """Address of one master by its pod name."""
    return f"{pod}.{master_name(item)}.{CACHE_NAMESPACE}.svc"


def master_hosts(item: Item[CacheTierSpec]) -> list[str]:
    """Addresses of all masters."""
    return [master_host(item, f"{master_name(item)}-{index}") for index in range(item.spec.masters.replicas)]


def storage_dirs(level: StorageTier) -> list[str]:
    """Directories of a storage level in the worker container: one for each disk."""
    first = f"/cache/{level.medium.lower()}"
    return [first, *(f"{first}-{number}" for number in range(1, len(level.paths)))]
