"""The cache daemon: its objects, what tiers and datasets tell it, and that its role is enough and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.kinds.cache_tier.impact import impact
from avactl.scheduler.constraints.data_locality import read_locality
from tests.kinds.compiling import DIGEST, apply, body, cached_path, compiled, names, unchecked
from tests.kinds.test_cluster import refused
from tools.controlplane import ControlPlane

CLUSTER = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, alluxio: registry.example.com/alluxio{DIGEST}}}
  daemons: {{cache: true}}
"""
READ = """
---
kind: CacheTier
metadata: {name: read}
spec:
  cluster: main
  role: read
  workers: {tiers: [{medium: MEM, quota: 64Gi}, {medium: SSD, quota: 1Ti}]}
  underStores: [{mount: /imagenet, url: "s3://imagenet", secret: imagenet-s3}]
"""
ASYNC = """
---
kind: CacheTier
metadata: {name: write}
spec:
  cluster: main
  role: write
  workers: {replicas: 2, tiers: [{medium: MEM, quota: 8Gi}, {medium: SSD, quota: 64Gi}]}
  underStores: [{mount: /results, url: "s3://results", secret: results-s3}]
  writeBack: {mode: async}
"""
CLIPS = """
---
kind: Team
metadata: {name: video}
spec: {members: {users: [kim]}}
---
kind: Dataset
metadata: {name: clips, team: video}
spec:
  tier: read
  size: 10Gi
  keep: 14d
  versions: [{name: v1, url: "s3://imagenet/clips/v1"}, {name: v2, url: "s3://imagenet/clips/v2"}]
  prewarm: {bandwidth: 100M}
"""


def told(result: Compilation, name: str) -> dict[str, Any]:
    """The document of a ConfigMap for the daemon."""
    found = body(result, "ConfigMap", name, "avactl-cache")
    kind = found["metadata"]["labels"]["avactl.dev/config"]
    document: dict[str, Any] = json.loads(found["data"][f"{kind.removeprefix('cache-')}.json"])
    return document


def test_the_daemon_runs_only_where_it_is_enabled() -> None:
    without = compiled(CLUSTER.replace("cache: true", "cache: false") + READ + CLIPS)
    assert names(without, "Deployment") == []
    assert not [name for name in names(without, "ConfigMap") if "tier." in name or "dataset." in name]
    assert names(compiled(CLUSTER + READ), "Deployment") == ["avactl-cache/avactl-cache"]


def test_what_a_writer_left_to_be_persisted_is_persisted_by_the_daemon() -> None:
    wait = "alluxio.user.file.persistence.initial.wait.time="

    def properties(text: str) -> str:
        found: str = body(compiled(text), "ConfigMap", "write-alluxio", "avactl-cache")["data"][
            "alluxio-site.properties"
        ]
        return found

    assert f"{wait}-1\n" in properties(CLUSTER + ASYNC)
    assert f"{wait}-1\n" not in properties(CLUSTER.replace("cache: true", "cache: false") + ASYNC)


def test_it_holds_no_credentials() -> None:
    pod = body(compiled(CLUSTER + READ + ASYNC), "Deployment", "avactl-cache", "avactl-cache")["spec"]["template"][
        "spec"
    ]
    assert not [volume for volume in pod["volumes"] if "secret" in volume]


def test_a_tier_tells_its_addresses_and_stores() -> None:
    result = compiled(CLUSTER + READ + ASYNC)
    read = told(result, "tier.read")
    assert read["masters"] == [f"read-master-{i}.read-master.avactl-cache.svc:19998" for i in range(3)]
    assert read["fuseDirectory"] == "/mnt/avactl/read"
    (store,) = read["stores"]
    assert store == {"mount": "/imagenet", "url": "s3://imagenet", "readOnly": True}
    assert read["writeBack"] is None
    assert told(result, "tier.write")["writeBack"]["push"] == {"delaySeconds": 0}


def test_a_dataset_tells_its_versions_and_nothing_else_loads_them() -> None:
    result = compiled(CLUSTER + READ + CLIPS)
    clips = told(result, "dataset.video.clips")
    assert (clips["namespace"], clips["name"], clips["tier"]) == ("video", "clips", "read")
    old, new = clips["versions"]
    assert (old["path"], old["bytes"], old["claims"]) == ("/imagenet/clips/v1", None, ["video"])
    assert (new["path"], new["bytes"]) == ("/imagenet/clips/v2", 10 * 2**30)
    assert clips["prewarm"]["versions"] == ["v2"]
    assert clips["prewarm"]["throttle"] == 100_000_000
    assert (clips["prewarm"]["when"], clips["prewarm"]["pin"]) == ("once", False)
    assert ["free-" in name for name in names(result, "CronJob")] == [True]
    nightly = compiled(CLUSTER + READ + CLIPS.replace("{bandwidth: 100M}", '{when: "*/30 1-5 * * 0,6", pin: true}'))
    prewarm = told(nightly, "dataset.video.clips")["prewarm"]
    assert (prewarm["when"], prewarm["pin"]) == ("*/30 1-5 * * 0,6", True)
    assert [name for name in names(result, "Job") if "prewarm" in name] == []


PUSH = """
---
kind: CacheTier
metadata: {name: write}
spec:
  cluster: main
  role: write
  workers: {replicas: 2, tiers: [{medium: MEM, quota: 16Gi}]}
  underStores:
    - {mount: /results, url: "s3://results", endpoint: "https://s3.example.com", secret: results-s3}
    - {mount: /models, url: "s3://models", readOnly: true}
  writeBack:
    mode: push
    durable: {url: "s3://first", endpoint: "https://ceph.example.com", secret: first-ceph, capacity: 10Ti}
    push: {high: 80%, low: 50%, delay: 10m}
    settle: 20m
---
kind: Team
metadata: {name: ads}
spec:
  members: {users: [ann]}
  buckets: [{name: out, url: "s3://results/ads", tier: write}]
---
kind: Workspace
metadata: {name: ann, team: ads}
spec: {user: ann, image: "registry.example.com/edit:1"}
"""


def mount_script(result: Compilation) -> str:
    return str(body(result, "ConfigMap", "write-alluxio", "avactl-cache")["data"]["mount.sh"])


def test_a_tier_that_pushes_writes_to_the_durable_store_first() -> None:
    result = compiled(CLUSTER + PUSH)
    write = told(result, "tier.write")
    stores = {store["mount"]: (store["url"], store["readOnly"]) for store in write["stores"]}
    assert stores == {
        "/results": ("s3://first", False),
        "/results.pushed": ("s3://results", False),
        "/models": ("s3://models", True),
    }
    assert write["writeBack"] == {
        "capacity": 10 * 2**40,
        "evict": False,
        "settleSeconds": 1200,
        "push": {"high": 0.8, "low": 0.5, "delaySeconds": 600},
        "targets": {"/results": "/results.pushed"},
    }
    script = mount_script(result)
    assert "ensure /results s3://first \\\n  --option alluxio.underfs.s3.endpoint=https://ceph.example.com" in script
    assert "ensure /results.pushed s3://results \\\n" in script
    properties = body(result, "ConfigMap", "write-alluxio", "avactl-cache")["data"]["alluxio-site.properties"]
    assert "alluxio.user.file.writetype.default=CACHE_THROUGH\n" in properties


def test_pushed_files_are_beside_the_bucket_and_read_only() -> None:
    result = compiled(CLUSTER + PUSH)
    volume = body(result, "PersistentVolume", "ads-pushed-bucket-out")["spec"]
    assert cached_path(result, "ads-pushed-bucket-out") == "write:/results.pushed/ads"
    assert volume["accessModes"] == ["ReadOnlyMany"]
    pod = next(m.body for m in result.manifests if m.kind == "StatefulSet" and m.namespace == "ads")["spec"]["template"]
    mounts = {m["mountPath"]: m.get("readOnly", False) for c in pod["spec"]["containers"] for m in c["volumeMounts"]}
    assert (mounts["/buckets/out"], mounts["/buckets/out.pushed"]) == (False, True)
    prefixes = next(m.body for m in result.manifests if m.kind == "Job" and m.name.startswith("buckets-ads"))
    command = prefixes["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2:] == ["/results.pushed/ads", "/results/ads"]


def test_only_a_tier_without_buckets_evicts() -> None:
    evicting = PUSH.replace("settle: 20m", "evict: true")
    assert [each.code for each in unchecked(CLUSTER + evicting).diagnostics] == ["evicted-bucket"]
    alone = compiled(CLUSTER + evicting.partition("---\nkind: Team")[0])
    back = told(alone, "tier.write")["writeBack"]
    # Daemons evict only if they are told so: older compilers wrote `evict` for tiers with buckets.
    assert (back["evict"], back["mountedByPods"]) == (True, False)


MODE = PUSH[PUSH.index("  writeBack:") : PUSH.index("---\nkind: Team")]
"""The settings of mode `push`."""
FLUSH = "run `avactl cache flush write:/results` first"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (MODE, MODE.replace("10m", "20m").replace("10Ti", "20Ti"), None),
        (MODE, "  writeBack: {mode: through}\n", f"files below /results leave their paths: {FLUSH}"),
        (
            MODE,
            MODE.replace("s3://first", "s3://second"),
            f"files below /results leave their paths: {FLUSH}, copy them back from /results.pushed later",
        ),
        (
            "  writeBack: {mode: through}\n",
            MODE,
            "files below /results leave their paths: copy them back from /results.pushed later",
        ),
    ],
)
def test_the_diff_says_if_files_leave_their_paths(before: str, after: str, told: str | None) -> None:
    old, new = (compiled(CLUSTER + PUSH.replace(MODE, mode)).program.tier("write") for mode in (before, after))
    assert impact(old, new, []) == told


def test_a_durable_file_system_is_a_claim_of_masters_and_workers() -> None:
    url = 'url: "s3://first", endpoint: "https://ceph.example.com", secret: first-ceph'
    result = compiled(CLUSTER + PUSH.replace(url, "claim: cephfs"))
    assert "ensure /results /durable\n" in mount_script(result)
    for name in ("write-master", "write-worker"):
        pod = body(result, "StatefulSet", name, "avactl-cache")["spec"]["template"]["spec"]
        assert {"name": "durable", "persistentVolumeClaim": {"claimName": "cephfs"}} in pod["volumes"]
        assert any(m["mountPath"] == "/durable" for m in pod["containers"][0]["volumeMounts"])


def test_masters_grow_with_the_declared_files() -> None:
    def memory(text: str) -> list[str]:
        pod = body(compiled(text), "StatefulSet", "read-master", "avactl-cache")["spec"]["template"]["spec"]
        return [container["resources"]["limits"]["memory"] for container in pod["containers"]]

    assert memory(CLUSTER + READ + CLIPS) == ["12288Mi", "4096Mi"]
    # Two versions of 20 million files: about 40 GiB, and a quarter more than that is the job master's.
    many = CLIPS.replace("size: 10Gi", "size: 10Gi\n  files: 20000000\n  format: webdataset")
    assert memory(CLUSTER + READ + many) == ["43008Mi", "14336Mi"]
    assert told(compiled(CLUSTER + READ + many), "dataset.video.clips")["versions"][1]["files"] == 20_000_000


def test_workers_with_unpersisted_data_are_evicted_only_with_the_daemons_label() -> None:
    def budget(text: str) -> dict[str, Any]:
        found = [
            m.body["spec"]
            for m in compiled(text).manifests
            if (m.kind, m.name) == ("PodDisruptionBudget", "write-worker")
        ]
        return found[0] if found else {}

    guarded = budget(CLUSTER + ASYNC)
    assert guarded["minAvailable"] >= 1_000_000
    label = {"key": "avactl.dev/safe-to-drain", "operator": "DoesNotExist"}
    assert guarded["selector"]["matchExpressions"] == [label]
    assert budget(CLUSTER + ASYNC.replace("mode: async", "mode: through")).get("maxUnavailable", 1) == 1
    assert budget(CLUSTER.replace("cache: true", "cache: false") + ASYNC).get("maxUnavailable", 1) == 1


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


def test_role_is_enough_and_no_more(plane: ControlPlane) -> None:
    space, team = "avactl-cache", "tenant"
    with plane.client() as admin:
        apply(admin, compiled(CLUSTER + READ + ASYNC + CLIPS).manifests)
        admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
        admin.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "imagenet-s3", "namespace": space}})
        admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": space}})
        main = {"name": "main", "image": "registry.example.com/x:1"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker", "namespace": space}}
        admin.create({**pod, "spec": {"containers": [main]}})
    with plane.client(plane.service_account_token(space, "avactl-cache")) as daemon:
        for kind in ("Pod", "Node"):
            daemon.list("v1", kind)
        assert daemon.list("v1", "ConfigMap", space)
        status = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "avactl-cache-status", "namespace": space},
        }
        daemon.create({**status, "data": {"status.json": "{}"}})
        daemon.patch({**status, "data": {"status.json": '{"datasets": {}}'}})
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        daemon.create({**lease, "metadata": {"name": "avactl-cache", "namespace": space}})
        held = daemon.get("coordination.k8s.io/v1", "Lease", "avactl-cache", space)
        daemon.replace({**held, "spec": {"holderIdentity": "avactl-cache-0"}})
        label = {"labels": {"avactl.dev/safe-to-drain": "true"}}
        daemon.patch({"apiVersion": "v1", "kind": "Pod", "metadata": {**label, "name": "worker", "namespace": space}})
        event: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "clips.1", "namespace": team},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "avactl",
            "reportingInstance": "avactl-cache-0",
            "action": "Load",
            "reason": "Loading",
            "type": "Normal",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "train", "namespace": team},
        }
        daemon.create(event)
        daemon.patch({**event, "series": {"count": 2, "lastObservedTime": event["eventTime"]}})

        assert refused(daemon.get, "v1", "Secret", "imagenet-s3", space)
        assert refused(daemon.list, "v1", "ConfigMap", team)
        tier = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tier.read", "namespace": space}}
        assert refused(daemon.patch, {**tier, "data": {"tier.json": "{}"}})
        budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"maxUnavailable": 1}}
        assert refused(daemon.patch, {**budget, "metadata": {"name": "write-worker", "namespace": space}})
        assert refused(daemon.delete, "v1", "ConfigMap", "tier.read", space)
        assert refused(daemon.delete, "apps/v1", "StatefulSet", "read-master", space)


def test_a_job_that_starts_warm_names_its_datasets() -> None:
    job = """
---
kind: TrainingJob
metadata: {name: train, team: video}
spec:
  strategy: single
  image: registry.example.com/train:1
  command: [python, train.py]
  workers: {cpu: 2, memory: 4Gi}
  datasets: [{name: clips}]
  startWhen: {warm: 90%}
  locality: prefer
"""
    result = compiled(CLUSTER.replace("cache: true", "scheduler: true, cache: true") + READ + CLIPS + job)
    template = next(m.body for m in result.manifests if m.kind == "Job" and m.namespace == "video")["spec"]["template"]
    assert template["metadata"]["annotations"]["avactl.dev/start-when-warm"] == '{"video/clips/v2":90}'
    local = template["metadata"]["annotations"]["avactl.dev/data-locality"]
    assert read_locality(local) == (False, ("video/clips/v2",))
    assert told(result, "dataset.video.clips")["versions"][1]["claims"] == ["video"]
