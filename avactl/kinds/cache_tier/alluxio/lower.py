"""Alluxio → ConfigMap, masters, workers, FUSE, the Job that mounts the under-stores, Services, network policy."""

from __future__ import annotations

from typing import Any

from avactl.contracts.names import CACHE_NAMESPACE, SAFE_TO_DRAIN
from avactl.kinds.cache_tier.alluxio import names
from avactl.kinds.cache_tier.alluxio.fuse import fuse_pod, fuse_script, health_script
from avactl.kinds.cache_tier.alluxio.masters import master_pod
from avactl.kinds.cache_tier.alluxio.properties import LOGGING, render, site_properties
from avactl.kinds.cache_tier.alluxio.shell import FREE_SCRIPT, LOAD_SCRIPT, PREFIXES_SCRIPT, shell_pod
from avactl.kinds.cache_tier.alluxio.stores import credential_environment, mount_script
from avactl.kinds.cache_tier.alluxio.volumes import KEY, volume_list, volumes_script
from avactl.kinds.cache_tier.alluxio.workers import worker_pod
from avactl.kinds.cache_tier.pods import build_job, build_template
from avactl.program.dataset_access import may_hold_unpersisted
from avactl.program.lowering import k8s
from avactl.program.lowering.storage import class_name
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec

_MAX_FILES = 1_000_000
"""More pods than a tier has: `minAvailable` of a budget that allows no eviction. Of a DaemonSet's pods the disruption
controller cannot count `maxUnavailable`."""


def lower(item: Item[CacheTierSpec], program: Program) -> list[Manifest]:
    """Return the objects of one tier."""
    daemon = program.cluster_spec(item.spec.cluster).daemons.cache
    properties = render(site_properties(item, daemon))
    configuration = k8s.short_digest([properties, LOGGING])
    scripts = {
        "mount.sh": mount_script(item),
        "load.sh": LOAD_SCRIPT,
        "free.sh": FREE_SCRIPT,
        "prefixes.sh": PREFIXES_SCRIPT,
    }
    if item.spec.fuse.enabled:
        scripts["fuse.sh"] = fuse_script(item, program)
        scripts["health.sh"] = health_script(item)
        scripts["volumes.sh"] = volumes_script(item)
    data = {"alluxio-site.properties": properties, "log4j.properties": LOGGING, **scripts}
    result = [
        k8s.config_map(item, item.spec.cluster, names.config_name(item), CACHE_NAMESPACE, data),
        *_build_masters(item, program, configuration),
        *_build_workers(item, program, configuration),
        _build_network(item, program),
        _build_mounts(item, program, k8s.short_digest(scripts["mount.sh"])),
    ]
    if item.spec.fuse.enabled:
        data = {KEY: volume_list(item, program)}
        result.append(k8s.config_map(item, item.spec.cluster, names.volumes_name(item), CACHE_NAMESPACE, data))
        result.append(_build_fuse(item, program, configuration))
    return result


def _build_object(
    item: Item[CacheTierSpec], api_version: str, kind: str, name: str, component: str, **fields: Any
) -> Manifest:
    return k8s.build_manifest(
        item, item.spec.cluster, api_version, kind, name, namespace=CACHE_NAMESPACE, component=component, **fields
    )


def _build_masters(item: Item[CacheTierSpec], program: Program, configuration: str) -> list[Manifest]:
    masters = item.spec.masters
    name, select = names.master_name(item), k8s.component_selector(item, "master")
    delete = item.spec.deletion_policy == "delete"
    claim = k8s.drop_none(
        accessModes=["ReadWriteOnce"],
        resources={"requests": {"storage": masters.journal}},
        storageClassName=class_name(program, item.spec.cluster, "cache"),
    )
    spec: Body = {
        "replicas": masters.replicas,
        "serviceName": name,
        "selector": {"matchLabels": select},
        # A quorum needs several masters before the first one is ready.
        "podManagementPolicy": "Parallel",
        # Give a restarted master time to catch up before the next one restarts.
        "minReadySeconds": 30,
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": "Delete" if delete else "Retain",
            "whenScaled": "Retain",
        },
        "template": build_template(item, "master", configuration, master_pod(item, program)),
        "volumeClaimTemplates": [{"metadata": {"name": "journal"}, "spec": claim}],
    }
    ports = {
        "rpc": names.MASTER_PORT,
        "web": names.MASTER_WEB_PORT,
        "journal": names.JOURNAL_PORT,
        "job-rpc": names.JOB_MASTER_PORT,
        "job-web": names.JOB_MASTER_WEB_PORT,
        "job-journal": names.JOB_JOURNAL_PORT,
    }
    return [
        _build_object(item, "apps/v1", "StatefulSet", name, "master", holds_data=not delete, spec=spec),
        # Masters find each other before any of them is ready; clients ask each master for the primary.
        k8s.build_service(
            item,
            item.spec.cluster,
            name,
            CACHE_NAMESPACE,
            select,
            ports,
            headless=True,
            publish_not_ready=True,
            component="master",
        ),
        k8s.disruption_budget(
            item, item.spec.cluster, name, CACHE_NAMESPACE, select, component="master", maxUnavailable=1
        ),
    ]


def _build_workers(item: Item[CacheTierSpec], program: Program, configuration: str) -> list[Manifest]:
    workers = item.spec.workers
    name, select = names.worker_name(item), k8s.component_selector(item, "worker")
    ports = {"rpc": names.WORKER_PORT, "web": names.WORKER_WEB_PORT}
    body: Body = {
        "selector": {"matchLabels": select},
        "template": build_template(item, "worker", configuration, worker_pod(item, program)),
    }
    service = k8s.build_service(
        item, item.spec.cluster, name, CACHE_NAMESPACE, select, ports, headless=True, component="worker"
    )
    # In mode `async` a worker holds data that is not yet persisted.
    holds = {"holds_data": may_hold_unpersisted(item) and item.spec.deletion_policy != "delete"}
    guarded = may_hold_unpersisted(item) and program.cluster_spec(item.spec.cluster).daemons.cache
    # The cache daemon labels the workers that may go; without it, never more of them go than there are replicas.
    limit: Body = {"minAvailable": _MAX_FILES, "without": SAFE_TO_DRAIN} if guarded else {"maxUnavailable": 1}
    budget = k8s.disruption_budget(
        item, item.spec.cluster, names.worker_name(item), CACHE_NAMESPACE, select, component="worker", **limit
    )
    if workers.replicas is None:
        # Never evict more workers than there are replicas of unpersisted data.
        body["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
        daemon_set = _build_object(item, "apps/v1", "DaemonSet", name, "worker", spec=body, **holds)
        return [daemon_set, service, *([budget] if guarded else [])]
    spec = {"replicas": workers.replicas, "serviceName": name, "podManagementPolicy": "Parallel", **body}
    return [_build_object(item, "apps/v1", "StatefulSet", name, "worker", spec=spec, **holds), service, budget]


def _build_fuse(item: Item[CacheTierSpec], program: Program, configuration: str) -> Manifest:
    spec: Body = {
        "selector": {"matchLabels": k8s.component_selector(item, "fuse")},
        # After a restart of FUSE, files that pods on its machine have open report errors, so it is restarted only on
        # purpose, pod by pod, when the machine is idle.
        "updateStrategy": {"type": "OnDelete"},
        "template": build_template(item, "fuse", configuration, fuse_pod(item, program)),
    }
    return _build_object(item, "apps/v1", "DaemonSet", names.fuse_name(item), "fuse", spec=spec)


def _build_mounts(item: Item[CacheTierSpec], program: Program, script: str) -> Manifest:
    pod = shell_pod(item, program, "mount.sh", (), credential_environment(item))
    return build_job(item, item.spec.cluster, f"{item.name}-mount", "mount", build_template(item, "mount", script, pod))


def _build_network(item: Item[CacheTierSpec], program: Program) -> Manifest:
    """Restrict access to a tier to cache pods and avactl's daemons: Alluxio trusts any user name that a client sends,
    so a tenant with network access could read and delete all data. Team pods read through FUSE."""
    system = program.cluster_spec(item.spec.cluster).system_namespace
    spec: Body = {
        "podSelector": {
            "matchLabels": {"app.kubernetes.io/name": item.kind.lower(), "app.kubernetes.io/instance": item.name}
        },
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [
                    {"podSelector": {}},
                    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": system}}},
                ]
            }
        ],
    }
    return _build_object(item, "networking.k8s.io/v1", "NetworkPolicy", item.name, "network", spec=spec)
