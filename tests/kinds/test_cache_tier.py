"""Cache tiers: what they compile to, and what their scripts do."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from avactl.compiler import Compilation
from avactl.kinds.cache_tier.alluxio.checks import tier
from avactl.kinds.cache_tier.alluxio.known_properties import is_known_property
from tests.kinds.on_base import Objects, compile_spec, objects, problems
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

READ = """
apiVersion: avactl.dev/v1
kind: CacheTier
metadata: {name: images}
spec:
  cluster: main
  role: read
  workers: {cpu: "4", memory: 8Gi, tiers: [{medium: MEM, quota: 64Gi}, {medium: SSD, quota: 1Ti}]}
  underStores:
    - {mount: /cats, url: "s3://cats", secret: cats-s3, endpoint: "https://s3.example.com"}
    - {mount: /dogs, url: "oss://dogs/all", secret: dogs-oss, endpoint: "https://oss.example.com"}
"""
WRITE = READ.replace("role: read", "role: write")
ASYNC = WRITE + "  writeBack: {mode: async, replicas: 3, delay: 1m}\n"


def properties(text: str) -> dict[str, str]:
    lines = objects(text)["ConfigMap", "images-alluxio"]["data"]["alluxio-site.properties"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def pod(found: Objects, kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = found[kind, name]["spec"]["template"]["spec"]
    return spec


def container(found: Objects, kind: str, name: str, index: int = 0) -> dict[str, Any]:
    wanted: dict[str, Any] = pod(found, kind, name)["containers"][index]
    return wanted


def mount_job(text: str) -> tuple[str, dict[str, Any]]:
    return next((name, body) for (kind, name), body in objects(text).items() if kind == "Job")


def test_volumes_that_no_list_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = ", ".join(f'{{name: v{number}, url: "s3://cats/v{number}"}}' for number in range(3))
    dataset = f"""
---
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {{name: cats, team: vision}}
spec: {{tier: images, versions: [{versions}]}}
"""
    assert [each.code for each in problems(READ + dataset) if each.code == "too-many-volumes"] == []
    monkeypatch.setattr(tier, "MAX_VOLUMES", 2)
    (found,) = [each for each in problems(READ + dataset) if each.code == "too-many-volumes"]
    assert "3 versions and buckets" in found.message


# -- properties ----------------------------------------------------------------------------------------------------


def test_masters_find_each_other_by_the_names_of_their_pods() -> None:
    hosts = [f"images-master-{i}.images-master.avactl-cache.svc" for i in range(3)]
    assert properties(READ)["alluxio.master.embedded.journal.addresses"] == ",".join(f"{h}:19200" for h in hosts)
    options = {e["name"]: e.get("value") for e in container(objects(READ), "StatefulSet", "images-master")["env"]}
    assert "alluxio.master.hostname=$(POD_NAME).images-master.avactl-cache.svc" in options["ALLUXIO_MASTER_JAVA_OPTS"]


def test_a_single_master_is_named() -> None:
    single = properties(READ + "  masters: {replicas: 1}\n")
    assert single["alluxio.master.hostname"] == "images-master-0.images-master.avactl-cache.svc"
    assert "alluxio.master.hostname" not in properties(READ)


@pytest.mark.parametrize(
    ("text", "write_type"), [(READ, "THROUGH"), (WRITE, "CACHE_THROUGH"), (ASYNC, "ASYNC_THROUGH")]
)
def test_writes_go_by_role(text: str, write_type: str) -> None:
    assert properties(text)["alluxio.user.file.writetype.default"] == write_type


def test_uploads_of_write_tiers_are_streamed() -> None:
    key = "alluxio.underfs.s3.streaming.upload.enabled"
    assert [properties(text).get(key) for text in (READ, WRITE, ASYNC)] == [None, "true", "true"]


def test_what_the_store_does_not_have_yet_is_kept_several_times() -> None:
    found = properties(ASYNC)
    assert found["alluxio.user.file.replication.durable"] == "3"
    assert found["alluxio.user.file.persistence.initial.wait.time"] == "60000ms"
    assert found["alluxio.master.replication.check.interval"] == "10s"
    assert "alluxio.user.file.replication.durable" not in properties(WRITE)


def test_expired_data_is_freed_and_never_deleted() -> None:
    found = properties(READ + "  ttl: 14d\n")
    assert found["alluxio.user.file.create.ttl"] == str(14 * 86_400_000) + "ms"
    assert found["alluxio.user.file.create.ttl.action"] == "FREE"
    assert properties(READ)["alluxio.user.file.create.ttl.action"] == "FREE"


def test_storage_is_fastest_first_in_bytes() -> None:
    found = properties(READ)
    level = "alluxio.worker.tieredstore.level"
    assert [found[f"{level}{i}.alias"] for i in (0, 1)] == ["MEM", "SSD"]
    assert [found[f"{level}{i}.dirs.quota"] for i in (0, 1)] == [f"{64 * 2**30}B", f"{2**40}B"]


DISKS = READ.replace("medium: SSD, quota: 1Ti", "medium: SSD, quota: 1Ti, paths: [/mnt/a, /mnt/b/]")


def test_a_level_on_several_disks() -> None:
    found = properties(DISKS)
    level = "alluxio.worker.tieredstore.level1.dirs"
    assert found[f"{level}.path"] == "/cache/ssd,/cache/ssd-1"
    assert found[f"{level}.quota"] == f"{2**39}B,{2**39}B"
    assert found[f"{level}.mediumtype"] == "SSD,SSD"
    worker = pod(objects(DISKS), "DaemonSet", "images-worker")
    paths = {each["name"]: each["hostPath"]["path"] for each in worker["volumes"] if "hostPath" in each}
    mounts = {each["mountPath"]: paths.get(each["name"]) for each in worker["containers"][0]["volumeMounts"]}
    assert (mounts["/cache/ssd"], mounts["/cache/ssd-1"]) == ("/mnt/a/images", "/mnt/b/images")
    chown = worker["initContainers"][0]["command"]
    assert {"/cache/ssd", "/cache/ssd-1"} <= {*chown}
    top = objects(DISKS.replace("{medium: MEM, quota: 64Gi}, ", ""))["DaemonSet", "images-worker"]
    env = {each["name"]: each.get("value") for each in top["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["ALLUXIO_WORKER_TIEREDSTORE_LEVEL0_DIRS_PATH"] == "/cache/ssd,/cache/ssd-1"


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ("path: '/mnt/a,/mnt/b'", "`/mnt/a,/mnt/b` has a comma"),
        ("paths: ['/mnt/a,/mnt/b']", "`/mnt/a,/mnt/b` has a comma"),
        ("path: /mnt/a, paths: [/mnt/b]", "`path` and `paths` are two forms of one setting"),
        ("paths: [/mnt/a, /mnt/a/]", "a directory is listed twice"),
        ("paths: [/mnt/a, /srv/b]", "does not offer `/srv/b` of its machines"),
        ("paths: [/mnt/a, /mnt/avactl]", "inside"),
    ],
)
def test_disks_that_are_refused(paths: str, told: str) -> None:
    spec = READ.replace("medium: SSD, quota: 1Ti", f"medium: SSD, quota: 1Ti, {paths}")
    assert any(told in problem.message for problem in problems(spec)), [each.message for each in problems(spec)]


def test_a_property_of_the_spec_wins_over_a_default() -> None:
    key = "alluxio.user.file.passive.cache.enabled"
    assert properties(READ)[key] == "false"
    assert properties(READ + f'  properties: {{{key}: "true"}}\n')[key] == "true"


# -- pods ----------------------------------------------------------------------------------------------------------


def test_the_memory_tier_counts_to_the_worker() -> None:
    found = objects(READ)
    worker, job_worker = pod(found, "DaemonSet", "images-worker")["containers"]
    assert worker["resources"]["limits"]["memory"] == "70Gi"  # 64 of the tier, 6 of the worker
    assert job_worker["resources"]["limits"]["memory"] == "2048Mi"
    volumes = {v["name"]: v for v in pod(found, "DaemonSet", "images-worker")["volumes"]}
    assert volumes["mem"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert volumes["ssd"]["hostPath"]["path"] == "/mnt/ssd/images"  # tiers that share a disk stay apart


def test_a_number_of_workers_makes_a_stateful_set_with_one_a_machine() -> None:
    found = objects(READ.replace("workers: {", "workers: {replicas: 3, "))
    assert found["StatefulSet", "images-worker"]["spec"]["replicas"] == 3
    assert ("DaemonSet", "images-worker") not in found
    assert ("PodDisruptionBudget", "images-worker") in found
    apart = pod(found, "StatefulSet", "images-worker")["affinity"]["podAntiAffinity"]
    assert apart["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"] == "kubernetes.io/hostname"


def test_workers_run_on_their_pools_and_tolerate_their_taints() -> None:
    pools = """---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: ssd}
spec: {cluster: main, machineType: v100-pcie-8, count: 2, taints: [{key: cache, value: only}]}
"""
    found = objects(READ.replace("workers: {", "workers: {pools: [ssd], ") + pools)
    spec = pod(found, "DaemonSet", "images-worker")
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "avactl.dev/pool", "operator": "In", "values": ["ssd"]}]}]
    toleration = {"key": "cache", "operator": "Equal", "value": "only", "effect": "NoSchedule"}
    assert spec["tolerations"] == [toleration]
    # A workspace may run on any machine, so FUSE does too.
    assert pod(found, "DaemonSet", "images-fuse")["tolerations"] == [toleration]
    assert "affinity" not in pod(found, "DaemonSet", "images-fuse")


def test_masters_stay_off_tainted_machines_where_there_are_others() -> None:
    pool = """---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: big}
spec: {cluster: main, machineType: v100-pcie-8, count: 2, taints: [{key: big}]}
"""
    assert "tolerations" not in pod(objects(READ + pool), "StatefulSet", "images-master")
    [image] = [line for line in BASE["base/platform.yaml"].decode().splitlines() if "alluxio:" in line]
    cluster = f"---\napiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {{name: main}}\nspec:\n  images:\n{image}\n"
    alone = objects(READ + pool + cluster, base=False)
    assert pod(alone, "StatefulSet", "images-master")["tolerations"] == [
        {"key": "big", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_fuse_starts_spread_out_and_is_never_replaced_under_running_jobs() -> None:
    found = objects(READ)
    assert found["DaemonSet", "images-fuse"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    script = found["ConfigMap", "images-alluxio"]["data"]["fuse.sh"]
    assert "sleep $((RANDOM % 10))" in script
    assert script.rstrip().endswith('"$MOUNT_POINT" /')
    many = objects(
        READ
        + "---\n"
        + READ.split("spec:")[0].replace("CacheTier", "NodePool").replace("images", "big")
        + "spec: {cluster: main, machineType: v100-pcie-8, count: 200}\n"
    )
    assert "sleep $((RANDOM % 204))" in many["ConfigMap", "images-alluxio"]["data"]["fuse.sh"]


def test_fuse_does_not_wait_when_it_restarts_after_a_crash(tmp_path: Path) -> None:
    """The script itself, with a machine's directories and programs below `tmp_path`."""
    script = objects(READ)["ConfigMap", "images-alluxio"]["data"]["fuse.sh"]
    for path in ("/run/alluxio", "/config/", "/mnt/avactl", "/entrypoint.sh"):
        script = script.replace(path, f"{tmp_path}{path}")
    for directory in ("run/alluxio", "config", "bin"):
        (tmp_path / directory).mkdir(parents=True)
    for name, text in {"bin/sleep": f"echo slept >>{tmp_path}/log", "bin/umount": "", "entrypoint.sh": ""}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def waits(site: str) -> int:
        (tmp_path / "config" / "alluxio-site.properties").write_text(site)
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        before = len((tmp_path / "log").read_text().splitlines()) if (tmp_path / "log").exists() else 0
        subprocess.run(["bash", "-c", script], env={"PATH": path}, check=True)
        return len((tmp_path / "log").read_text().splitlines()) - before

    assert [waits("a=1"), waits("a=1"), waits("a=2"), waits("a=2")] == [1, 0, 1, 0]


def test_every_property_written_is_one_that_the_engine_knows() -> None:
    written: set[str] = set()
    for text in (READ, WRITE, ASYNC, READ + "  masters: {replicas: 1}\n  ttl: 14d\n", READ + "  refresh: 1h\n"):
        written |= set(properties(text))
        everything = json.dumps(list(objects(text).values()))
        written |= set(re.findall(r"-D(alluxio[A-Za-z0-9_.]+)=", everything))
        written |= {name.rstrip(".") for name in re.findall(r"--option '?(alluxio[A-Za-z0-9_.]+)=", everything)}
    assert len(written) > 25
    assert [name for name in sorted(written) if not is_known_property(name)] == []
    assert not is_known_property("alluxio.no.such.property")
    assert is_known_property("alluxio.worker.tieredstore.level0.dirs.quota")  # by a pattern


def test_without_fuse_and_disks_a_worker_touches_nothing_of_the_machine() -> None:
    text = READ.replace(", {medium: SSD, quota: 1Ti}", "") + "  fuse: {enabled: false}\n"
    found = objects(text)
    assert ("DaemonSet", "images-fuse") not in found
    spec = pod(found, "DaemonSet", "images-worker")
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    assert "initContainers" not in spec


def test_nobody_but_the_cache_and_the_daemons_reaches_a_tier() -> None:
    policy = objects(READ)["NetworkPolicy", "images"]["spec"]
    selector = {"kubernetes.io/metadata.name": "avactl-system"}
    assert policy["ingress"] == [{"from": [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": selector}}]}]


# -- what holds data -----------------------------------------------------------------------------------------------


def held(result: Compilation) -> list[str]:
    return [
        m.name for m in result.manifests if m.holds_data and m.item.doc.file == "spec.yaml" and m.kind != "Namespace"
    ]


def test_journals_are_kept_and_so_are_workers_with_data_of_their_own() -> None:
    assert held(compile_spec(READ)) == ["images-master"]
    assert sorted(held(compile_spec(ASYNC))) == ["images-master", "images-worker"]
    assert held(compile_spec(ASYNC + "  deletionPolicy: delete\n")) == []


def test_the_policy_reaches_the_journals_claims() -> None:
    key = "persistentVolumeClaimRetentionPolicy"
    kept = objects(READ)["StatefulSet", "images-master"]["spec"][key]
    gone = objects(READ + "  deletionPolicy: delete\n")["StatefulSet", "images-master"]["spec"][key]
    assert (kept["whenDeleted"], gone["whenDeleted"]) == ("Retain", "Delete")


# -- the mount Job -------------------------------------------------------------------------------------------------


def test_credentials_come_from_secrets_and_stand_nowhere() -> None:
    _, job = mount_job(READ)
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    references = [e["valueFrom"]["secretKeyRef"] for e in env if "valueFrom" in e]
    assert references == [
        {"name": "cats-s3", "key": "accessKeyId"},
        {"name": "cats-s3", "key": "secretAccessKey"},
        {"name": "dogs-oss", "key": "accessKeyId"},
        {"name": "dogs-oss", "key": "secretAccessKey"},
    ]
    script = objects(READ)["ConfigMap", "images-alluxio"]["data"]["mount.sh"]
    assert '--option "fs.oss.accessKeySecret=$STORE_1_SECRET_ACCESS_KEY"' in script


def test_the_job_runs_again_when_the_stores_change_and_only_then() -> None:
    name, _ = mount_job(READ)
    assert mount_job(READ + "  ttl: 3d\n")[0] == name
    assert mount_job(READ.replace("s3://cats", "s3://lions"))[0] != name
    assert mount_job(READ.replace("cats-s3", "lions-s3"))[0] != name


# -- scripts, with a shell in the place of Alluxio's ---------------------------------------------------------------

FAKE = """#!/bin/bash
# Keeps a mount table in a file, and notes what is asked of it.
here=$(dirname "$0")
shift
while [[ "$1" == -D* ]]; do shift; done
command="$1"; shift
[ "$command" = mount ] && [ $# = 0 ] && { cat "$here/table"; exit 0; }
echo "$command $*" >> "$here/calls"
case "$command" in
  mount) [ -e "$here/broken" ] && { echo "mount of $* failed"; exit 1; } ;;
  load) [[ "$*" == *--progress* ]] && cat "$here/progress" ;;
  ls) cat "$here/$3" ;;
esac
exit 0
"""


class Shell:
    """Runs a script of a tier's ConfigMap."""

    def __init__(self, directory: Path, name: str, text: str) -> None:
        self.home = directory / "opt"
        (self.home / "bin").mkdir(parents=True)
        fake = self.home / "bin" / "alluxio"
        fake.write_text(FAKE)
        fake.chmod(0o755)
        self.write("table", "/opt/alluxio/underFSStorage  on  /  (local, not read-only)\n")
        script = objects(text)["ConfigMap", "images-alluxio"]["data"][name]
        self.script = script.replace("/opt/alluxio/bin", str(self.home / "bin")).replace("sleep 10", "sleep 0")

    def write(self, name: str, text: str) -> None:
        (self.home / "bin" / name).write_text(text)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        secrets = {"ACCESS_KEY_ID": "the-key-id", "SECRET_ACCESS_KEY": 'the/secret+key"&'}
        env = {f"STORE_{i}_{name}": value for i in (0, 1) for name, value in secrets.items()}
        return subprocess.run(
            ["bash", "-c", self.script, "script", *args],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        file = self.home / "bin" / "calls"
        return file.read_text().splitlines() if file.exists() else []


def test_stores_are_mounted_read_only_by_a_read_tier(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "mount.sh", READ)
    assert shell.run().returncode == 0
    first, second = shell.calls()
    assert first.startswith("mount --readonly --option alluxio.underfs.s3.endpoint=https://s3.example.com")
    assert 's3a.secretKey=the/secret+key"&' in first
    assert first.endswith(" /cats s3://cats")
    assert second.endswith(" /dogs oss://dogs/all")


def test_what_is_mounted_already_gets_its_options_anew(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "mount.sh", WRITE)
    shell.write("table", "s3://cats/  on  /cats  (s3)\noss://dogs/all  on  /dogs  (oss)\n")
    assert shell.run().returncode == 0
    assert [(call.split()[0], call.split()[-1]) for call in shell.calls()] == [
        ("updateMount", "/cats"),
        ("updateMount", "/dogs"),
    ]


def test_a_mount_goes_after_its_data_is_in_the_store(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "mount.sh", WRITE)
    shell.write("table", "s3://other  on  /cats  (s3)\ns3://old  on  /old  (s3)\nhdfs://x  on  /  (hdfs)\n")
    assert shell.run().returncode == 0
    short = [" ".join(call.split()[:1] + call.split()[-1:]) for call in shell.calls()]
    assert short == [
        "persist /old",
        "unmount /old",
        "persist /cats",
        "unmount /cats",
        "mount s3://cats",
        "mount oss://dogs/all",
    ]


def test_credentials_are_covered_when_a_mount_fails(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "mount.sh", READ)
    shell.write("broken", "")
    done = shell.run()
    assert done.returncode != 0
    assert "mount of --readonly" in done.stdout
    assert "the-key-id" not in done.stdout + done.stderr
    assert "the/secret" not in done.stdout + done.stderr


def test_loading_waits_for_its_end_and_tells_failure(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "load.sh", READ)
    shell.write("progress", "\tJob State: SUCCEEDED\n")
    assert shell.run("2", "1000", "/cats/v1").returncode == 0
    assert shell.calls() == [
        "loadMetadata -R /cats/v1",
        "load /cats/v1 --submit --verify --partial-listing --bandwidth 1000",
        "load /cats/v1 --progress",
        "setReplication --min 2 -R /cats/v1",
    ]
    shell.write("progress", "\tJob State: FAILED (no such path)\n")
    assert shell.run("1", "0", "/cats/v2").returncode == 1


def test_only_what_nobody_reads_is_freed(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "free.sh", READ)
    line = "-rwxr-xr-x  alluxio  100000  PERSISTED  {} 100% /cats/v1/a b.jpg\n"
    shell.write(
        "creationTime",
        "drwxr-xr-x  alluxio  3  PERSISTED  20990101000000  DIR /cats/v1\n" + line.format("20190501000000"),
    )
    shell.write("lastAccessTime", line.format("20190501000000") + line.format("20990101000000"))
    assert shell.run("86400", "/cats/v1").returncode == 0
    assert not [call for call in shell.calls() if call.startswith("free")]
    shell.write("lastAccessTime", line.format("20190501000000"))
    assert shell.run("86400", "/cats/v1").returncode == 0
    assert shell.calls()[-1] == "free -f /cats/v1"


# -- the real API server -------------------------------------------------------------------------------------------


def test_the_api_server_takes_every_form(kube: KubeClient, namespace: str) -> None:
    number = ASYNC.replace("workers: {", "workers: {replicas: 3, ")
    for text in (READ, number, READ + "  masters: {replicas: 1}\n  fuse: {enabled: false}\n"):
        found = objects(text)
        assert {kind for kind, _ in found} >= {"ConfigMap", "DaemonSet", "Job", "Service", "StatefulSet"}
        for body in found.values():
            # In a namespace of the test's own; claims of stateful sets need no controller here.
            placed = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
            assert kube.apply(placed).warnings == []
