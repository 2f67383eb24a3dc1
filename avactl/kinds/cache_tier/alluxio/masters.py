"""Masters: they hold the namespace in a journal replicated by a quorum."""

from __future__ import annotations

from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.pods import (
    LOGGING_MOUNT,
    SITE_MOUNT,
    config_volume,
    durable_volumes,
    field_variable,
    java_options,
    master_memory,
    process_container,
    split_memory,
)
from avactl.kinds.cache_tier.pods import apart_affinity, build_pod, spare_tolerations
from avactl.program.lowering.pods import build_resources
from avactl.program.manifest import Body
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

_START_TIMEOUT_S = 30 * 60
"""Seconds in which a master reads its journal: of many million files, that takes long."""


def master_pod(item: Item[CacheTierSpec], program: Program) -> Body:
    """Build the pod of master and job master. It satisfies pod security `restricted`."""
    masters = item.spec.masters
    main, job = split_memory(master_memory(item, program))
    host = f"-Dalluxio.master.hostname={names.master_host(item, '$(POD_NAME)')}"
    pod_name = field_variable("POD_NAME", "metadata.name")
    files, files_mount = durable_volumes(item)
    containers = [
        process_container(
            item,
            program,
            "master",
            "rpc",
            {"rpc": names.MASTER_PORT, "web": names.MASTER_WEB_PORT, "journal": names.JOURNAL_PORT},
            # Of several masters only the primary has a client port, but all have a journal port. A single one that
            # comes back after a kill may stay a standby for ever (seen with 2.9.4, about once in 40 kills): then the
            # client port never opens, and the kubelet restarts it.
            alive="rpc" if masters.replicas == 1 else "journal",
            starts=_START_TIMEOUT_S if masters.replicas > 1 else min(_START_TIMEOUT_S, 5 * 60 + main // 1024 * 60),
            # The journal is on its volume; a starting master must never format it.
            args=["master-only", "--no-format"],
            env=[pod_name, {"name": "ALLUXIO_MASTER_JAVA_OPTS", "value": f"{java_options(main, direct=False)} {host}"}],
            resources=build_resources(masters.cpu, f"{main}Mi"),
            volumeMounts=[SITE_MOUNT, LOGGING_MOUNT, {"name": "journal", "mountPath": names.JOURNAL_DIR}, *files_mount],
        ),
        process_container(
            item,
            program,
            "job-master",
            "job-rpc",
            {
                "job-rpc": names.JOB_MASTER_PORT,
                "job-web": names.JOB_MASTER_WEB_PORT,
                "job-journal": names.JOB_JOURNAL_PORT,
            },
            alive="job-journal",
            args=["job-master"],
            env=[
                pod_name,
                {"name": "ALLUXIO_JOB_MASTER_JAVA_OPTS", "value": f"{java_options(job, direct=False)} {host}"},
            ],
            resources=build_resources("500m", f"{job}Mi"),
            volumeMounts=[SITE_MOUNT, LOGGING_MOUNT, {"name": "job-journal", "mountPath": names.JOURNAL_DIR}],
        ),
    ]
    return build_pod(
        item,
        program,
        affinity={"podAntiAffinity": apart_affinity(item, "master")} if masters.replicas > 1 else None,
        tolerations=spare_tolerations(item, program),
        containers=containers,
        # Lost jobs are reassigned, so the job journal need not outlive the pod.
        volumes=[config_volume(item), {"name": "job-journal", "emptyDir": {}}, *files],
    )
