"""Shared parts of cache-tier pods: containers of Alluxio processes, and scheduling."""

from __future__ import annotations

from typing import Any

from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.dataset_access import cached_files, pushes
from avactl.kinds.lowering import k8s
from avactl.kinds.lowering.pods import container_security, pod_security
from avactl.kinds.manifest import Body
from avactl.kinds.program import Item, Program, pool_size
from avactl.names import POOL_LABEL, SYSTEM_PRIORITY
from avactl.quantity import format_quantity, quantity

MIB = 1024 * 1024
JOB_SHARE = 4
"""Fraction of a master's or worker's memory for its job master or job worker."""


def mebibytes(text: str) -> int:
    return int(quantity(text)) // MIB


def split_memory(text: str) -> tuple[int, int]:
    """Memory of a process and of its job process, in MiB."""
    total = mebibytes(text)
    return total - total // JOB_SHARE, total // JOB_SHARE


FILE_BYTES = 2**30 // 1_000_000
"""Memory of a master per file. Source: Alluxio's documentation on operating with many files, 1 GiB per million."""


def files_memory(item: Item, program: Program) -> int:
    """Memory of a master and its job master for the files of the tier's datasets, in bytes, in steps of 4 GiB."""
    step = 4 * 2**30
    need = cached_files(item, program) * FILE_BYTES * JOB_SHARE // (JOB_SHARE - 1)
    return -(-need // step) * step


def master_memory(item: Item, program: Program) -> str:
    """Memory of a master and its job master: as set, or enough for the declared files of the datasets."""
    masters = item.spec.masters
    need = files_memory(item, program)
    if "memory" in masters.model_fields_set or need <= quantity(masters.memory):
        return str(masters.memory)
    return format_quantity(need)


def java(memory: int, direct: bool) -> str:
    """JVM memory options for a container's memory in MiB; the rest is for threads, code and RocksDB.

    Processes that move data (`direct`) buffer it outside the heap.
    """
    if direct:
        return f"-Xmx{memory * 2 // 5}m -XX:MaxDirectMemorySize={memory * 2 // 5}m"
    return f"-Xmx{memory * 7 // 10}m"


def field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _tcp(port: str, *, period: int, failures: int) -> Body:
    return {"tcpSocket": {"port": port}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def process(
    item: Item, program: Program, process: str, port: str, ports: dict[str, int], *, alive: str = "", **fields: Any
) -> Body:
    """Build a container that runs one Alluxio process through the image's entry point.

    It is ready when `port` answers, and alive while `alive` answers (by default the same port).
    """
    alive = alive or port
    return {
        "name": process,
        "image": image(item, program),
        "command": ["/entrypoint.sh"],
        "ports": [{"name": name, "containerPort": number} for name, number in ports.items()],
        "readinessProbe": _tcp(port, period=10, failures=3),
        "livenessProbe": _tcp(alive, period=20, failures=6),
        # Reading the journal of many million files takes a long time.
        "startupProbe": _tcp(alive, period=10, failures=180),
        "securityContext": container_security(),
        **fields,
    }


def image(item: Item, program: Program) -> str | None:
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


def config_volume(item: Item) -> Body:
    return {"name": "config", "configMap": {"name": names.config(item), "defaultMode": 0o444}}


def pod(item: Item, program: Program, **fields: Any) -> Body:
    """Build a pod spec with the fields shared by a tier's pods. None of them talks to the Kubernetes API."""
    cluster = program.cluster_spec(item.spec.cluster)
    return k8s.compact(
        automountServiceAccountToken=False,
        enableServiceLinks=False,
        priorityClassName=SYSTEM_PRIORITY,
        securityContext=pod_security(),
        imagePullSecrets=[{"name": name} for name in cluster.pull_secrets] or None,
        **fields,
    )


def template(item: Item, component: str, configuration: str, spec: Body) -> Body:
    """Build a pod template; pods restart when the configuration changes."""
    return {
        "metadata": {
            "labels": k8s.labels(item, component),
            "annotations": {"avactl.dev/configuration": configuration},
        },
        "spec": spec,
    }


# -- where pods run ------------------------------------------------------------------------------------------------


def pools(item: Item, program: Program) -> list[Item]:
    """Return the pools that the workers run on: the named ones, else all of the cluster."""
    wanted = item.spec.workers.pools
    return [pool for pool in program.pools(item.spec.cluster) if not wanted or pool.name in wanted]


def worker_count(item: Item, program: Program) -> int:
    """Return the maximum number of workers; 0 if the specs do not say."""
    replicas: int | None = item.spec.workers.replicas
    return replicas if replicas is not None else sum(pool_size(pool) for pool in pools(item, program))


def tolerations(some: list[Item]) -> list[Body] | None:
    seen: dict[tuple[str, str, str], Body] = {}
    for taint in (taint for pool in some for taint in pool.spec.taints):
        seen[taint.key, taint.value, taint.effect] = k8s.compact(
            key=taint.key, operator="Equal" if taint.value else "Exists",
            value=taint.value or None, effect=taint.effect,
        )  # fmt: skip
    return list(seen.values()) or None


def spare_tolerations(item: Item, program: Program) -> list[Body] | None:
    """Tolerations of pods without a pool: they avoid tainted machines unless all machines are tainted."""
    all_pools = program.pools(item.spec.cluster)
    keeping_off = [any(taint.effect != "PreferNoSchedule" for taint in pool.spec.taints) for pool in all_pools]
    return tolerations(all_pools) if all(keeping_off) else None


def on_pools(item: Item, program: Program) -> Body | None:
    """Node affinity of workers to their pools."""
    wanted = item.spec.workers.pools
    if not wanted and not program.pools(item.spec.cluster):
        return None
    expression: Body = {"key": POOL_LABEL, "operator": "Exists"}
    if wanted:
        expression = {"key": POOL_LABEL, "operator": "In", "values": sorted(set(wanted))}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }


def apart(item: Item, component: str) -> Body:
    """Pod anti-affinity: one pod of a component per machine."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": k8s.selector(item, component)}}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def durable(item: Item) -> tuple[list[Body], list[Body]]:
    """Volumes and volume mounts of masters and workers for the durable store, if it is a file system."""
    claim = item.spec.write_back.durable.claim if pushes(item) else None
    if claim is None:
        return [], []
    volume = {"name": "durable", "persistentVolumeClaim": {"claimName": claim}}
    return [volume], [{"name": "durable", "mountPath": names.DURABLE_DIR}]


def socket_volume(item: Item) -> Body:
    """Host directory with the worker sockets."""
    return {"name": "sockets", "hostPath": {"path": f"/run/avactl/{item.name}", "type": "DirectoryOrCreate"}}
