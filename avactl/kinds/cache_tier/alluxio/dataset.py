"""Datasets in a tier, and the Jobs that prewarm, free and create directories with the Alluxio shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from avactl.base.quantity import parse_quantity
from avactl.contracts.names import CACHE_NAMESPACE
from avactl.diagnostics import Diagnostic
from avactl.kinds.cache_tier.alluxio.shell import shell_pod
from avactl.kinds.cache_tier.pods import build_job, build_template
from avactl.program.cache_engines import Loaded
from avactl.program.dataset_access import full_name, volume_path
from avactl.program.lowering import k8s
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.platform.cache_tier import CacheTierSpec
from avactl.spec.platform.dataset import DatasetSpec, Prewarm
from avactl.spec.platform.team import TeamSpec
from avactl.spec.schema.values import duration_seconds


def check(item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of one dataset in a tier."""
    spec = item.spec
    if spec.keep and duration_seconds(spec.keep) < 2 * 86400:
        yield Diagnostic(
            "invalid-value",
            f"spec.keep: `{spec.keep}` is too short: Alluxio records reads with a resolution of one day",
            item.span("spec", "keep"),
            hint="write `2d` or more",
        )


def volume(tier: Item[CacheTierSpec], program: Program, name: str, path: str, read_only: bool) -> Body:
    """Return the source of a volume on the tier's FUSE mount."""
    # `Directory`: a pod waits until FUSE is mounted, and never sees the empty directory underneath. With
    # `DirectoryOrCreate` the kubelet would create it on the machine's own disk while FUSE is not mounted.
    return {"hostPath": {"path": volume_path(tier, path), "type": "Directory"}}


def dataset(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], versions: Sequence[Loaded]
) -> list[Manifest]:
    """Return the Jobs that load and free the versions; the cache daemon, where it runs, loads them."""
    result = []
    prewarm, keep = item.spec.prewarm, item.spec.keep
    if prewarm is not None and not program.cluster_spec(tier.spec.cluster).daemons.cache:
        ahead = [version.path for version in versions if version.prewarm]
        result.append(_build_prewarm(item, program, tier, prewarm, ahead))
    if keep:
        result.append(_build_free_cron_job(item, program, tier, keep, [version.path for version in versions]))
    return result


def _build_prewarm(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], prewarm: Prewarm, paths: Sequence[str]
) -> Manifest:
    """Return the Job that prewarms the versions; a new version makes it run again."""
    bandwidth = str(int(parse_quantity(prewarm.bandwidth))) if prewarm.bandwidth else "0"
    pod = shell_pod(tier, program, "load.sh", [str(prewarm.replicas), bandwidth, *paths])
    labelled = build_template(item, "prewarm", k8s.short_digest(paths), pod)
    name = k8s.short_name(f"prewarm-{full_name(item)}", 52)
    return build_job(item, tier.spec.cluster, name, "prewarm", labelled)


def _build_free_cron_job(
    item: Item[DatasetSpec], program: Program, tier: Item[CacheTierSpec], keep: str, paths: Sequence[str]
) -> Manifest:
    """Return the CronJob that frees unused versions; its start time at night is derived from the name."""
    pod = shell_pod(tier, program, "free.sh", [str(int(duration_seconds(keep))), *paths])
    moment = int(k8s.short_digest(item.key, 8), 16)
    spec: Body = {
        "schedule": f"{moment % 60} {moment // 60 % 5} * * *",
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {
            "spec": {"backoffLimit": 2, "template": build_template(item, "free", k8s.short_digest(paths), pod)}
        },
    }
    name = k8s.short_name(f"free-{full_name(item)}", 52)
    return k8s.build_manifest(
        item, tier.spec.cluster, "batch/v1", "CronJob", name, namespace=CACHE_NAMESPACE, component="free", spec=spec
    )


def directories(
    item: Item[TeamSpec], program: Program, tier: Item[CacheTierSpec], name: str, paths: Sequence[str]
) -> Manifest:
    """Return a Job that creates directories in the stores."""
    pod = shell_pod(tier, program, "prefixes.sh", paths)
    return build_job(
        item, tier.spec.cluster, name, "buckets", build_template(item, "buckets", k8s.short_digest(paths), pod)
    )
