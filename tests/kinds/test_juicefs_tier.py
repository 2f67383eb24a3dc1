"""Cache tiers on JuiceFS: what they compile to. What the options and scripts do is in tests/juicefs."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.compiler import Compilation, compile_tree
from avactl.kinds.cache_tier.impact import impact
from avactl.kinds.cache_tier.juicefs.known_options import known_options
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.compiling import DIGEST, codes, compiled, complete, unchecked
from tools.controlplane import KubeClient

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  hostDirectories: [/mnt, /fast]
  daemons: {{cache: true}}
  images: {{juicefs: "juicefs{DIGEST}", avactl: "avactl{DIGEST}"}}
---
kind: NodePool
metadata: {{name: gpu}}
spec: {{cluster: main, machineType: dgx1-v100, count: 4, taints: [{{key: gpu, value: "yes", effect: NoSchedule}}]}}
---
kind: Team
metadata: {{name: vision}}
spec: {{clusters: [main]}}
"""
TIER = """
kind: CacheTier
metadata: {name: images}
spec:
  cluster: main
  engine: juicefs
  role: read
  volume: {secret: ava-volume}
  workers: {pools: [gpu], tiers: [{medium: SSD, quota: 1Ti, path: /fast}]}
  underStores:
    - {mount: /cats, url: "s3://cats/all", endpoint: "http://s3.example.com:9000", secret: cats-s3}
    - {mount: /dogs, url: "s3://dogs"}
"""
DATASET = """
kind: Dataset
metadata: {name: cats, team: vision}
spec:
  tier: images
  size: 150Gi
  versions: [{name: v1, url: "s3://cats/all/v1"}, {name: v2, url: "s3://cats/all/v2"}]
  prewarm: {}
"""


def bodies(tier: str = TIER, dataset: str = DATASET) -> dict[tuple[str, str], Any]:
    result = compiled("---".join((PLATFORM, tier, dataset)))
    return {
        (each.kind, each.name): each.body for each in result.manifests if each.item.kind in ("CacheTier", "Dataset")
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("quota: 1Ti", "quota: 2Ti"), "mounts that run keep their options until no pod on their machine uses them"),
        (("  role: read", "  refresh: 5m\n  role: read"), "mounts that run keep"),
        (("  role: read", "  properties: {prefetch: '3'}\n  role: read"), "mounts that run keep"),
        (("dogs, url", "dogs, endpoint: 'http://s3.example.com:9000', url"), None),
    ],
)
def test_the_diff_says_what_mounts_keep(change: tuple[str, str], told: str | None) -> None:
    old, new = (
        compiled("---".join((PLATFORM, tier, DATASET))).program.tier("images") for tier in (TIER, TIER.replace(*change))
    )
    found = impact(old, new, [])
    assert found is None if told is None else (found or "").startswith(told)


def mount_options(found: dict[tuple[str, str], Any], name: str) -> dict[str, str]:
    lines = found["PersistentVolume", name]["spec"]["mountOptions"]
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def one(found: dict[tuple[str, str], Any], kind: str, prefix: str) -> Any:
    (body,) = (body for (each, name), body in found.items() if each == kind and name.startswith(prefix))
    return body


def test_a_version_is_a_volume_of_its_directory_alone() -> None:
    found = bodies()
    assert mount_options(found, "vision-dataset-cats-v1") == {
        "read-only": "",
        "no-bgjob": "",
        "no-usage-report": "",
        "cache-dir": "/fast/images",
        "cache-size": str(1024 * 1024),
        "free-space-ratio": "0.1",
        "cache-scan-interval": "10m",
        "buffer-size": "1024",
        "attr-cache": "3600s",
        "entry-cache": "3600s",
        "dir-entry-cache": "3600s",
        "open-cache": "3600s",
        "subdir": "/cats/v1",
    }
    spec = found["PersistentVolume", "vision-dataset-cats-v1"]["spec"]
    assert spec["csi"]["nodePublishSecretRef"] == {"name": "ava-volume", "namespace": "avactl-cache"}
    assert spec["csi"]["volumeHandle"] == "vision-dataset-cats-v1"
    assert spec["csi"]["volumeAttributes"]["juicefs/mount-image"] == f"juicefs{DIGEST}"


def test_every_option_is_one_that_the_engine_knows() -> None:
    found = bodies(TIER + "  properties: {prefetch: '3', sort-dir: ''}\n  refresh: 5m\n")
    volumes = [name for kind, name in found if kind == "PersistentVolume"]
    assert len(volumes) == 4
    for name in volumes:
        for key, value in mount_options(found, name).items():
            assert known_options()[key].flag == (not value), key
    given = mount_options(found, "avactl-cache-images-read")
    assert (given["prefetch"], given["sort-dir"], given["open-cache"]) == ("3", "", "300s")
    assert "read-only" not in mount_options(found, "avactl-cache-images-import")


def test_memory_is_one_that_the_clients_of_a_machine_share() -> None:
    found = bodies(
        TIER.replace("{medium: SSD, quota: 1Ti, path: /fast}", "{medium: MEM, quota: 64Gi}"),
        DATASET.replace("150Gi", "50Gi"),
    )
    assert mount_options(found, "vision-dataset-cats-v1")["cache-dir"] == "/dev/shm/avactl/images"
    attributes = found["PersistentVolume", "vision-dataset-cats-v1"]["spec"]["csi"]["volumeAttributes"]
    assert (attributes["juicefs/mount-memory-request"], attributes["juicefs/mount-memory-limit"]) == ("4Gi", "68Gi")


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("s3://cats/all/v1", ["s3://cats.s3.example.com:9000/all/v1", "/cats/v1", "--no-https"]),
        ("s3://dogs/v1", ["s3://dogs/v1", "/dogs/v1"]),
    ],
)
def test_a_version_is_imported_from_its_store(url: str, arguments: list[str]) -> None:
    (container,) = one(bodies(dataset=DATASET.replace("s3://cats/all/v1", url)), "Job", "import-vision-cats-v1")[
        "spec"
    ]["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/bash", "/config/import.sh", *arguments]
    secrets = [each["valueFrom"]["secretKeyRef"]["name"] for each in container["env"]]
    assert secrets == (["cats-s3", "cats-s3"] if "cats" in url else [])


def test_the_newest_version_is_loaded_on_each_machine_of_the_pools() -> None:
    body = one(bodies(), "DaemonSet", "prewarm-")
    spec = body["spec"]["template"]["spec"]
    assert spec["initContainers"][0]["command"] == ["/bin/bash", "/config/warm.sh", "/cats/v2"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "avactl.dev/pool", "operator": "In", "values": ["gpu"]}]}]
    assert [each["key"] for each in spec["tolerations"]] == ["gpu"]
    assert body["spec"]["selector"]["matchLabels"].items() <= body["spec"]["template"]["metadata"]["labels"].items()


def test_the_cache_daemon_is_not_told_of_an_engine_that_it_does_not_know() -> None:
    assert [name for kind, name in bodies() if kind == "ConfigMap"] == ["images-juicefs", "dataset-cats"]


def test_each_machine_has_its_own_copy() -> None:
    larger = DATASET.replace("150Gi", "1200Gi")
    assert codes(unchecked("---".join((PLATFORM, TIER, larger)))) == ["cache-too-small"]


def test_the_api_server_takes_every_form(kube: KubeClient, namespace: str) -> None:
    for (kind, name), body in bodies().items():
        placed = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
        if kind == "PersistentVolume":
            placed["metadata"] = {**body["metadata"], "name": f"{namespace}-{name}"}
        assert kube.apply(placed).warnings == []


LISTED = DATASET.replace('{name: v2, url: "s3://cats/all/v2"}', "{name: v2, manifest: v2.jsonl}")
LISTS_STORE = '    - {mount: /.avactl-lists, url: "s3://lists"}\n'


def test_a_version_with_a_list_is_where_no_url_leads() -> None:
    """Its copy holds what the team may read; a directory of another dataset must not be the same."""
    lines = '{"url": "s3://cats/all/v2/1.jpg"}\n{"url": "s3://cats/all/v2/a/2.jpg"}\n'
    other = LISTED.replace("name: cats", "name: others")

    def compile_all(*specs: str) -> Compilation:
        text = complete("---".join((PLATFORM, TIER + LISTS_STORE, *specs)))
        return compile_tree(MemoryTree({"platform.yaml": text.encode(), "v2.jsonl": lines.encode()}))

    result = compile_all(LISTED, other)
    assert not result.diagnostics
    found = {each.name: each.body for each in result.manifests if each.kind == "PersistentVolume"}
    paths = {
        name: mount_options({("PersistentVolume", name): body}, name)["subdir"]
        for name, body in found.items()
        if name.endswith("-v2")
    }
    assert len(set(paths.values())) == 2
    assert all(path.startswith("/.avactl-lists/vision/") for path in paths.values())
    stolen = paths["vision-dataset-cats-v2"].removeprefix("/.avactl-lists/")
    thief = DATASET.replace("name: cats", "name: thief").replace("s3://cats/all/v2", f"s3://lists/{stolen}")
    assert "unsafe-path" in [each.code for each in compile_all(LISTED, thief).diagnostics]
