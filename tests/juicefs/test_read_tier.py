"""A read tier on a real volume: imported, loaded and read with the compiled commands and mount options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.compiling import DIGEST, complete
from tools.controlplane import StartError
from tools.fuse import require_fuse
from tools.juicefs.machine import Machine
from tools.objectstore import Faults, ObjectStore
from tools.waiting import wait_until

pytestmark = pytest.mark.xdist_group("juicefs")

MIB = 1024 * 1024
FILES = {f"v1/{part}/{index}.bin": 3 * MIB + index for part in ("train", "val") for index in range(4)}
OTHERS = ("v10/train/0.bin", "v1.bin", "v1-old/0.bin")
"""Objects beside the version, whose names begin like it."""
SPECS = """
kind: Cluster
metadata: {name: main}
spec:
  images: {juicefs: "juicedata/mount%s"}
---
kind: Team
metadata: {name: vision}
spec: {clusters: [main]}
---
kind: CacheTier
metadata: {name: images}
spec:
  cluster: main
  engine: juicefs
  role: read
  volume: {secret: ava-volume}
  workers: {tiers: [{medium: SSD, quota: 1Ti}]}
  underStores: [{mount: /imagenet, url: "s3://juicefs-imagenet", endpoint: "%s", secret: imagenet-s3}]
---
kind: Dataset
metadata: {name: imagenet, team: vision}
spec: {tier: images, size: 150Gi, versions: [{name: v1, url: "s3://juicefs-imagenet/v1"}], prewarm: {}}
---
kind: Dataset
metadata: {name: picked, team: vision}
spec: {tier: images, size: 1Gi, versions: [{name: v1, manifest: picked.jsonl}]}
"""
PICKED = ["v1/train/0.bin", "v1/val/1.bin", "v1/val/3.bin"]
LISTED = "".join(f'{{"url": "s3://juicefs-imagenet/{name}"}}\n' for name in PICKED)
SMALL = {"cache-size": "256", "buffer-size": "64", "free-space-ratio": "0.001"}
"""Sizes for a test machine, in MiB; its disk may be nearly full, and the cache would make room."""


class Tier:
    """The compiled objects, and the machine that they are on."""

    def __init__(self, machine: Machine, endpoint: str) -> None:
        self.machine = machine
        specs = complete(SPECS % (DIGEST, endpoint))
        result = compile_tree(MemoryTree({"platform.yaml": specs.encode(), "picked.jsonl": LISTED.encode()}))
        assert not result.diagnostics
        self.objects = {(each.kind, each.name): each.body for each in result.manifests}
        self.scripts = self.objects["ConfigMap", "images-juicefs"]["data"]

    def volume(self, name: str) -> Any:
        return self.objects["PersistentVolume", name]

    def container(self, kind: str, prefix: str, containers: str = "containers") -> Any:
        (body,) = (body for (found, name), body in self.objects.items() if found == kind and name.startswith(prefix))
        return body["spec"]["template"]["spec"][containers][0]


@pytest.fixture(scope="module")
def tier(juicefs: None, object_store: ObjectStore) -> Iterator[Tier]:
    require_fuse("bash")
    buckets = object_store.client()
    for name in ("juicefs-imagenet", "juicefs-blocks"):
        buckets.create_bucket(Bucket=name)
    for name, size in FILES.items():
        buckets.put_object(Bucket="juicefs-imagenet", Key=name, Body=name[-5:].encode() * (size // 5))
    for name in OTHERS:
        buckets.put_object(Bucket="juicefs-imagenet", Key=name, Body=b"other")
    with Machine(object_store, "juicefs-blocks") as machine:
        yield Tier(machine, object_store.url)


def test_a_version_is_imported_loaded_and_read_without_the_store(tier: Tier, object_store: ObjectStore) -> None:
    machine = tier.machine
    with pytest.raises(StartError, match="read-only file system"):
        # Before the import a pod of a job waits: there is no empty directory to see.
        machine.mount(tier.volume("vision-dataset-imagenet-v1"), SMALL)

    volume = machine.mount(tier.volume("avactl-cache-images-import"), SMALL)
    object_store.faults = Faults(errors=1.0, methods=frozenset({"GET"}))
    with pytest.raises(StartError, match="InternalError"):
        machine.run(tier.container("Job", "import-vision-imagenet"), tier.scripts, "avactl-cache-images-import")
    assert not (volume / "imagenet").exists()
    object_store.faults = Faults()
    machine.run(tier.container("Job", "import-vision-imagenet"), tier.scripts, "avactl-cache-images-import")
    assert sorted(path.name for path in volume.iterdir() if path.name != ".trash") == [
        ".accesslog",
        ".avactl",
        ".config",
        ".stats",
        "imagenet",
    ]
    object_store.reset()
    machine.run(tier.container("Job", "import-vision-imagenet"), tier.scripts, "avactl-cache-images-import")
    assert not object_store.traffic.requests

    machine.mount(tier.volume("avactl-cache-images-read"), SMALL)
    warm = tier.container("DaemonSet", "prewarm-", "initContainers")
    printed = machine.run(warm, tier.scripts, "avactl-cache-images-read")
    assert "warmup cache: 8 files" in printed
    assert "100.0%" in printed
    # It is "cached" once it is in memory; a client that starts finds what is on the disk.
    wait_until(lambda: len(_blocks_on_disk(machine)) == len(FILES), details=lambda: _blocks_on_disk(machine))

    object_store.reset()
    data = machine.mount(tier.volume("vision-dataset-imagenet-v1"), SMALL)
    found = {f"v1/{path.relative_to(data)}": path.read_bytes() for path in data.rglob("*.bin")}
    assert found == {name: name[-5:].encode() * (size // 5) for name, size in FILES.items()}
    assert object_store.traffic.sent == 0

    with pytest.raises(OSError, match="Read-only file system"):
        (data / "new").write_bytes(b"")


def test_a_version_with_a_list_has_exactly_its_objects(tier: Tier, object_store: ObjectStore) -> None:
    machine = tier.machine
    claim = "avactl-cache-images-import"
    if not (machine.folder / "mnt" / claim).is_mount():
        machine.mount(tier.volume(claim), SMALL)
    job = tier.container("Job", "import-vision-picked-")
    scripts = {**tier.scripts, **tier.objects["ConfigMap", "import-vision-picked-v1"]["data"]}
    store = object_store.client()
    store.delete_object(Bucket="juicefs-imagenet", Key=PICKED[0])
    with pytest.raises(StartError, match=r"v1/train/0\.bin: there is no such object"):
        machine.run(job, scripts, claim)
    store.put_object(Bucket="juicefs-imagenet", Key=PICKED[0], Body=PICKED[0][-5:].encode() * (FILES[PICKED[0]] // 5))
    machine.run(job, scripts, claim)
    data = machine.mount(tier.volume("vision-dataset-picked-v1"), SMALL)
    found = {f"v1/{path.relative_to(data)}": path.read_bytes() for path in data.rglob("*.bin")}
    assert found == {name: name[-5:].encode() * (FILES[name] // 5) for name in PICKED}


def _blocks_on_disk(machine: Machine) -> list[str]:
    return [path.name for path in machine.folder.glob("mnt/**/raw/chunks/*/*/*") if path.suffix != ".tmp"]


def test_no_log_has_a_word_against_an_option(tier: Tier) -> None:
    words = re.compile(r".*(?:unknown|not defined|unsupported|deprecated|invalid|Incorrect Usage).*", re.IGNORECASE)
    logs = {path.name: words.findall(path.read_text()) for path in tier.machine.folder.glob("*.log")}
    assert len(logs) >= 5
    assert {name: lines for name, lines in logs.items() if lines} == {}
