"""Shared parts of cache-tier pods: containers of Alluxio processes, and scheduling."""

from __future__ import annotations

from typing import Any

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.kinds.cache_tier.alluxio import names
from avactl.program.dataset_access import cached_files, durable_store
from avactl.program.lowering.pods import container_security
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

MIB = 1024 * 1024
JOB_SHARE = 4
"""Fraction of a master's or worker's memory for its job master or job worker."""


def parse_mebibytes(text: str) -> int:
    return int(parse_quantity(text)) // MIB


def split_memory(text: str) -> tuple[int, int]:
    """Memory of a process and of its job process, in MiB."""
    total = parse_mebibytes(text)
    return total - total // JOB_SHARE, total // JOB_SHARE


FILE_BYTES = 2**30 // 1_000_000
"""Memory of a master per file. Source: Alluxio's documentation on operating with many files, 1 GiB per million."""


def files_memory(item: Item[CacheTierSpec], program: Program) -> int:
    """Memory of a master and its job master for the files of the tier's datasets, in bytes, in steps of 4 GiB."""
    step = 4 * 2**30
    need = cached_files(item, program) * FILE_BYTES * JOB_SHARE // (JOB_SHARE - 1)
    return -(-need // step) * step


def master_memory(item: Item[CacheTierSpec], program: Program) -> str:
    """Memory of a master and its job master: as set, or enough for the declared files of the datasets."""
    masters = item.spec.masters
    need = files_memory(item, program)
    if "memory" in masters.model_fields_set or need <= parse_quantity(masters.memory):
        return str(masters.memory)
    return format_quantity(need)


def direct_memory(memory: int) -> int:
    """Memory of a process that moves data for buffers outside its heap, of its container's memory, both in MiB."""
    return memory * 2 // 5


def java_options(memory: int, direct: bool) -> str:
    """JVM memory options for a container's memory in MiB; the rest is for threads, code and RocksDB.

    Processes that move data (`direct`) buffer it outside the heap.
    """
    if direct:
        return f"-Xmx{memory * 2 // 5}m -XX:MaxDirectMemorySize={direct_memory(memory)}m"
    return f"-Xmx{memory * 7 // 10}m"


def field_variable(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _build_tcp_probe(port: str, *, period: int, failures: int) -> Body:
    return {"tcpSocket": {"port": port}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def process_container(
    item: Item[CacheTierSpec],
    program: Program,
    process: str,
    port: str,
    ports: dict[str, int],
    *,
    alive: str = "",
    starts: int = 30 * 60,
    **fields: Any,
) -> Body:
    """Build a container that runs one Alluxio process through the image's entry point.

    It is ready when `port` answers, and alive while `alive` answers (by default the same port), which may take `starts`
    seconds.
    """
    alive = alive or port
    return {
        "name": process,
        "image": engine_image(item, program),
        "command": ["/entrypoint.sh"],
        "ports": [{"name": name, "containerPort": number} for name, number in ports.items()],
        "readinessProbe": _build_tcp_probe(port, period=10, failures=3),
        "livenessProbe": _build_tcp_probe(alive, period=20, failures=6),
        "startupProbe": _build_tcp_probe(alive, period=10, failures=starts // 10),
        "securityContext": container_security(),
        **fields,
    }


def engine_image(item: Item[CacheTierSpec], program: Program) -> str | None:
    """Return the image of all processes; the checks ensure that it is set."""
    found: str | None = program.cluster_spec(item.spec.cluster).images.alluxio
    return found


SITE_MOUNT: Body = {
    "name": "config",
    # Mount a single file: Alluxio keeps others next to it and its entry point writes there.
    "mountPath": f"{names.HOME}/conf/alluxio-site.properties",
    "subPath": "alluxio-site.properties",
    "readOnly": True,
}


LOGGING_MOUNT: Body = {
    "name": "config",
    "mountPath": f"{names.HOME}/conf/log4j.properties",
    "subPath": "log4j.properties",
    "readOnly": True,
}


def config_volume(item: Item[CacheTierSpec]) -> Body:
    return {"name": "config", "configMap": {"name": names.config_name(item), "defaultMode": 0o444}}


def durable_volumes(item: Item[CacheTierSpec]) -> tuple[list[Body], list[Body]]:
    """Volumes and volume mounts of masters and workers for the durable store, if it is a file system."""
    store = durable_store(item)
    if store is None or store.claim is None:
        return [], []
    volume = {"name": "durable", "persistentVolumeClaim": {"claimName": store.claim}}
    return [volume], [{"name": "durable", "mountPath": names.DURABLE_DIR}]


def socket_volume(item: Item[CacheTierSpec]) -> Body:
    """Host directory with the worker sockets."""
    return {"name": "sockets", "hostPath": {"path": f"/run/avactl/{item.name}", "type": "DirectoryOrCreate"}}
