"""Datasets in a tier: a Job for each version that imports it, and a DaemonSet that loads versions on each machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from avactl.contracts.names import CACHE_NAMESPACE, GROUP
from avactl.kinds.cache_tier.juicefs import names
from avactl.kinds.cache_tier.machines import tier_pools
from avactl.kinds.cache_tier.pods import (
    build_job,
    build_pod,
    build_template,
    on_pools,
    pool_tolerations,
    spare_tolerations,
)
from avactl.program.cache_engines import Loaded
from avactl.program.dataset_access import full_name, under_store
from avactl.program.dataset_listing import COPIED, copy_files
from avactl.program.lowering import k8s
from avactl.program.lowering.pods import build_resources, container_security
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec, UnderStore
from avactl.spec.platform.dataset import DatasetSpec


def dataset(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], versions: Sequence[Loaded]
) -> list[Manifest]:
    """Return the objects of one dataset."""
    result = []
    for version in versions:
        made = _build_list(item, program, tier, version)
        result += [made] if made is not None else []
        result.append(_build_import_job(item, program, tier, version, made))
    ahead = [version.path for version in versions if version.prewarm]
    if ahead:
        result.append(_build_warm_daemon_set(item, program, tier, ahead))
    return result


class JuiceFsSource(NamedTuple):
    """A directory of a store as `juicefs sync` takes it."""

    url: str
    options: tuple[str, ...]


def source_arguments(store: UnderStore, url: str) -> JuiceFsSource:
    """Return the arguments for an S3 URL in an under-store."""
    if store.endpoint is None:
        return JuiceFsSource(url.rstrip("/"), ())
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    endpoint = urlsplit(store.endpoint)
    found = f"s3://{bucket}.{endpoint.netloc}/{prefix}".rstrip("/")
    return JuiceFsSource(found, ("--no-https",) if endpoint.scheme == "http" else ())


def _build_list(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], version: Loaded
) -> Manifest | None:
    """Return the ConfigMap with the objects that are imported, if the version lists them."""
    if version.listing is None:
        return None
    data = {COPIED: copy_files(version.listing, program)[COPIED]}
    name = k8s.short_name(f"import-{full_name(item)}-{version.version}", 63)
    return k8s.config_map(item, tier.spec.cluster, name, CACHE_NAMESPACE, data, component="import")


def _build_import_job(
    item: Item[DatasetSpec],
    program: Program,
    tier: Item[CacheTierSpec],
    version: Loaded,
    listed: Manifest | None,
) -> Manifest:
    """Return the Job that imports a version. A version does not change, so it runs once."""
    store = under_store(tier, version.url)
    if store is None:
        raise LookupError(f"no under-store of {tier} holds {version.url}")
    origin = source_arguments(store, version.url)
    keys = (("AWS_ACCESS_KEY_ID", "accessKeyId"), ("AWS_SECRET_ACCESS_KEY", "secretAccessKey"))
    env: list[Body] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": store.secret, "key": key}}}
        for name, key in keys
        if store.secret
    ]
    command = ["/config/import.sh", origin.url, version.path, *origin.options]
    container = {**_build_container(program, tier, "import", command), "env": env}
    config, volume = _build_volumes(tier, names.importing_claim(tier))
    if listed is not None:
        sources = ({"configMap": {"name": name}} for name in (names.config_name(tier), listed.name))
        config = {"name": "config", "projected": {"sources": [*sources], "defaultMode": 0o444}}
    spec = build_pod(
        tier,
        program,
        restartPolicy="OnFailure",
        tolerations=spare_tolerations(tier, program),
        containers=[container],
        volumes=[config, volume],
    )
    name = k8s.short_name(f"import-{full_name(item)}-{version.version}", 52)
    return build_job(
        item, tier.spec.cluster, name, "import", build_template(item, "import", k8s.short_digest(command), spec)
    )


def _build_warm_daemon_set(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], paths: Sequence[str]
) -> Manifest:
    """Return the DaemonSet that loads versions on each machine of the tier's pools, new ones too.

    A Job cannot: nothing keeps its pods from running on one machine after another has finished there.
    """
    select = {**k8s.component_selector(item, "prewarm"), f"{GROUP}/dataset": k8s.short_name(full_name(item), 63)}
    command = ["/config/warm.sh", *paths]
    idle = {
        "name": "loaded",
        "image": program.cluster_spec(tier.spec.cluster).images.juicefs,
        "command": ["sleep", "infinity"],
        "resources": build_resources("10m", "16Mi"),
        "securityContext": container_security(),
    }
    body = build_template(
        item,
        "prewarm",
        k8s.short_digest(command),
        build_pod(
            tier,
            program,
            affinity=k8s.drop_none(nodeAffinity=on_pools(tier, program)) or None,
            tolerations=pool_tolerations(tier_pools(tier, program)),
            initContainers=[_build_container(program, tier, "warm", command)],
            containers=[idle],
            terminationGracePeriodSeconds=1,
            volumes=_build_volumes(tier, names.reading_claim(tier), read_only=True),
        ),
    )
    body["metadata"]["labels"].update(select)
    spec: Body = {
        "selector": {"matchLabels": select},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "template": body,
    }
    name = k8s.short_name(f"prewarm-{full_name(item)}", 52)
    return k8s.build_manifest(
        item,
        tier.spec.cluster,
        "apps/v1",
        "DaemonSet",
        name,
        namespace=CACHE_NAMESPACE,
        component="prewarm",
        spec=spec,
    )


def _build_container(program: Program, tier: Item[CacheTierSpec], name: str, command: list[str]) -> Body:
    return {
        "name": name,
        "image": program.cluster_spec(tier.spec.cluster).images.juicefs,
        "command": ["/bin/bash", *command],
        "resources": build_resources("200m", "1Gi"),
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "config", "mountPath": "/config", "readOnly": True},
            # A mount that the driver has repaired is visible here too.
            {"name": "volume", "mountPath": names.ROOT, "mountPropagation": "HostToContainer"},
        ],
    }


def _build_volumes(tier: Item[CacheTierSpec], claim: str, read_only: bool = False) -> list[Body]:
    source: Body = {"claimName": claim, **({"readOnly": True} if read_only else {})}
    return [
        {"name": "config", "configMap": {"name": names.config_name(tier), "defaultMode": 0o444}},
        {"name": "volume", "persistentVolumeClaim": source},
    ]
