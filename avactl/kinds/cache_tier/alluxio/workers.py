"""Workers: they hold the data."""

from __future__ import annotations

import posixpath

from avactl.base.quantity import format_quantity, parse_quantity
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import (
    LOGGING_MOUNT,
    MIB,
    SITE_MOUNT,
    config_volume,
    durable_volumes,
    engine_image,
    field_variable,
    java_options,
    process_container,
    socket_volume,
    split_memory,
)
from avactl.kinds.cache_tier.machines import level_directories, tier_pools
from avactl.kinds.cache_tier.pods import apart_affinity, build_pod, on_pools, pool_tolerations
from avactl.program.cache_engines import EngineNeeds
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import USER_ID, build_resources
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

JOB_WORKER_CPU = "500m"
"""CPU requested by the job worker next to each cache worker."""


def worker_memory(item: Item[CacheTierSpec]) -> int:
    """Memory of a worker's pod, in bytes: its processes plus the MEM tier, whose files count as pod memory."""
    workers = item.spec.workers
    in_memory = sum(
        (parse_quantity(tier.quota) for tier in workers.tiers if tier.medium == "MEM"), start=parse_quantity("0")
    )
    return int(parse_quantity(workers.memory) + in_memory)


def worker_needs(item: Item[CacheTierSpec]) -> EngineNeeds:
    """Return the requests of a worker's pod."""
    return EngineNeeds(str(parse_quantity(item.spec.workers.cpu) + parse_quantity(JOB_WORKER_CPU)), worker_memory(item))


def worker_pod(item: Item[CacheTierSpec], program: Program) -> Body:
    """Build the pod of worker and job worker.

    Without SSD, HDD and FUSE it satisfies pod security `restricted`. Otherwise it needs host directories, which only
    `privileged` allows, and an init container that gives those directories to Alluxio's user.
    """
    workers = item.spec.workers
    main, job = split_memory(workers.memory)
    volumes: list[Body] = [config_volume(item)]
    storage: list[Body] = []
    on_machine: list[Body] = []
    for index, tier in enumerate(workers.tiers):
        directories = names.storage_dirs(tier)
        mounts: list[Body] = [{"name": posixpath.basename(at), "mountPath": at} for at in directories]
        storage += mounts
        if tier.medium == "MEM":
            volumes.append({"name": mounts[0]["name"], "emptyDir": {"medium": "Memory", "sizeLimit": tier.quota}})
            continue
        on_machine += mounts
        for mount, directory in zip(mounts, level_directories(item, index), strict=True):
            volumes.append({"name": mount["name"], "hostPath": {"path": directory.path, "type": "DirectoryOrCreate"}})
    sockets: list[Body] = []
    if item.spec.fuse.enabled:
        volumes.append(socket_volume(item))
        sockets.append({"name": "sockets", "mountPath": names.SOCKET_DIR})
        on_machine += sockets
    files, files_mount = durable_volumes(item)
    volumes += files
    top = ",".join(names.storage_dirs(workers.tiers[0]))
    addresses = [field_variable("HOST_IP", "status.hostIP"), field_variable("POD_IP", "status.podIP")]
    # The host address determines locality; the pod address is where the worker is reached.
    host = "-Dalluxio.worker.hostname=$(HOST_IP) -Dalluxio.worker.container.hostname=$(POD_IP)"
    env = [
        *addresses,
        {"name": "ALLUXIO_WORKER_JAVA_OPTS", "value": f"{java_options(main, direct=True)} {host}"},
        # Without these the entry point would put the top tier into /dev/shm.
        {"name": "ALLUXIO_WORKER_TIEREDSTORE_LEVEL0_DIRS_PATH", "value": top},
    ]
    if workers.tiers[0].medium == "MEM":
        env.append({"name": "ALLUXIO_RAM_FOLDER", "value": top})
    containers = [
        process_container(
            item,
            program,
            "worker",
            "rpc",
            {"rpc": names.WORKER_PORT, "web": names.WORKER_WEB_PORT},
            args=["worker-only", "--no-format"],
            env=env,
            resources=build_resources(workers.cpu, _worker_limit(item, job)),
            volumeMounts=[SITE_MOUNT, LOGGING_MOUNT, *storage, *sockets, *files_mount],
        ),
        process_container(
            item,
            program,
            "job-worker",
            "job-rpc",
            {
                "job-rpc": names.JOB_WORKER_PORT,
                "job-data": names.JOB_WORKER_DATA_PORT,
                "job-web": names.JOB_WORKER_WEB_PORT,
            },
            args=["job-worker"],
            env=[
                *addresses,
                {"name": "ALLUXIO_JOB_WORKER_JAVA_OPTS", "value": f"{java_options(job, direct=True)} {host}"},
            ],
            resources=build_resources(JOB_WORKER_CPU, f"{job}Mi"),
            volumeMounts=[SITE_MOUNT, LOGGING_MOUNT, *sockets, *files_mount],
        ),
    ]
    affinity = k8s.drop_none(
        nodeAffinity=on_pools(item, program),
        # Two workers on one machine would share its directories.
        podAntiAffinity=apart_affinity(item, "worker") if workers.replicas is not None else None,
    )
    return build_pod(
        item,
        program,
        affinity=affinity or None,
        tolerations=pool_tolerations(tier_pools(item, program)),
        initContainers=[_build_chown_container(item, program, on_machine)] if on_machine else None,
        containers=containers,
        terminationGracePeriodSeconds=60,
        volumes=volumes,
    )


def _worker_limit(item: Item[CacheTierSpec], job: int) -> str:
    """Memory of the worker container: the pod's memory minus the job worker's."""
    return format_quantity(worker_memory(item) - job * MIB)


def _build_chown_container(item: Item[CacheTierSpec], program: Program, mounts: list[Body]) -> Body:
    """Build the init container that changes the owner of host directories, which the kubelet creates as root."""
    return {
        "name": "directories",
        "image": engine_image(item, program),
        "command": ["chown", f"{USER_ID}:{USER_ID}", *(mount["mountPath"] for mount in mounts)],
        "resources": build_resources("50m", "64Mi"),
        "securityContext": {
            "runAsUser": 0,
            "runAsNonRoot": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": mounts,
    }
