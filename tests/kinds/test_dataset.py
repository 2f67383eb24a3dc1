"""Datasets: where their volumes are, what their manifests say, and the jobs that load and free them."""

from __future__ import annotations

import json
from typing import Any

from avactl.compiler import Compilation, compile_tree
from avactl.program.dataset_listing import MAX_LIST, MAX_PROBLEMS, parse
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.compiling import cached_path
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

PEOPLE = """
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: video}
spec: {members: {users: [kim]}, namespaces: [{name: video}, {name: video-dev}]}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: audio}
spec: {members: {users: [lou]}}
"""
CLIPS = """
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {name: clips, team: video}
spec:
  tier: read
  size: 10Gi
  sharedWith: [audio]
  versions: [{name: v1, url: "s3://imagenet/clips/v1"}, {name: v2, url: "s3://imagenet/clips/v2"}]
"""


def workspace(name: str, team: str, datasets: str, namespace: str = "") -> str:
    where = f", namespace: {namespace}" if namespace else ""
    return f"""
apiVersion: avactl.dev/v1
kind: Workspace
metadata: {{name: {name}, team: {team}{where}}}
spec: {{user: {"kim" if team == "video" else "lou"}, image: "registry.example.com/edit:1", datasets: [{datasets}]}}
"""


def compiled(*documents: str, **files: str) -> Compilation:
    """Compile documents beside the base platform; keywords are further files, `__` for the dot."""
    more = {name.replace("__", "."): text for name, text in files.items()}
    result = compile_tree(MemoryTree({**BASE, "specs.yaml": "\n---\n".join([PEOPLE, *documents]), **more}))
    assert not result.diagnostics, result.diagnostics
    return result


def named(result: Compilation, kind: str, text: str = "dataset-") -> dict[str, dict[str, Any]]:
    """The objects of a kind whose name has `text` in it, by namespace and name."""
    return {f"{m.namespace}/{m.name}": m.body for m in result.manifests if m.kind == kind and text in m.name}


# -- volumes -------------------------------------------------------------------------------------------------------


def test_the_owner_has_all_versions_and_others_what_they_mount() -> None:
    other = workspace("lou", "audio", "{name: video/clips, version: v1}")
    claims = named(compiled(CLIPS, other), "PersistentVolumeClaim")
    assert sorted(claims) == ["audio/dataset-video-clips-v1", "video/dataset-clips-v1", "video/dataset-clips-v2"]


def test_a_dataset_of_the_platform_is_only_where_it_is_mounted() -> None:
    assert named(compiled(), "PersistentVolumeClaim") == {}
    readers = [
        workspace("lou", "audio", "{name: imagenet}"),
        workspace("kim", "video", "{name: imagenet}", "video-dev"),
    ]
    claims = named(compiled(*readers), "PersistentVolumeClaim")
    assert sorted(claims) == ["audio/dataset-imagenet-v1", "video-dev/dataset-imagenet-v1"]


def test_a_volume_is_one_directory_for_one_claim_read_only() -> None:
    result = compiled(CLIPS)
    volume = named(result, "PersistentVolume")["/video-dataset-clips-v2"]["spec"]
    assert cached_path(result, "video-dataset-clips-v2") == "read:/imagenet/clips/v2"
    assert volume["claimRef"]["namespace"] == "video"
    assert volume["accessModes"] == ["ReadOnlyMany"]
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"


def test_nothing_of_a_dataset_holds_data() -> None:
    result = compiled(CLIPS, workspace("kim", "video", "{name: clips}"))
    holds_data = {m.kind: m.holds_data for m in result.manifests if m.item.kind == "Dataset"}
    assert holds_data == {"ConfigMap": False, "PersistentVolume": False, "PersistentVolumeClaim": False}


def test_claims_of_pods_exist() -> None:
    result = compiled(
        CLIPS,
        workspace("kim", "video", "{name: clips}, {name: imagenet, mount: /i}"),
        workspace("lou", "audio", "{name: video/clips, version: v1}"),
    )
    claims = {(m.namespace, m.name) for m in result.manifests if m.kind == "PersistentVolumeClaim"}
    wanted = {
        (m.namespace, volume["persistentVolumeClaim"]["claimName"])
        for m in result.manifests
        if m.kind == "StatefulSet" and m.item.kind == "Workspace"
        for volume in m.body["spec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert wanted >= {
        ("video", "dataset-clips-v2"),
        ("video", "dataset-imagenet-v1"),
        ("audio", "dataset-video-clips-v1"),
    }
    assert wanted <= claims


# -- manifests -----------------------------------------------------------------------------------------------------

PICKED = CLIPS.replace('{name: v2, url: "s3://imagenet/clips/v2"}', "{name: v2, manifest: v2.jsonl}")
LINES = "".join(
    json.dumps({"url": f"s3://imagenet/clips/{part}/{i}.mp4", "labels": {"class": part, "id": i}}) + "\n"
    for part in ("a", "b")
    for i in range(30)
)


def test_a_manifest_version_is_the_directory_of_all_its_objects() -> None:
    assert cached_path(compiled(PICKED, v2__jsonl=LINES), "video-dataset-clips-v2") == "read:/imagenet/clips"


def test_pods_get_the_list_beside_the_data() -> None:
    result = compiled(PICKED, workspace("kim", "video", "{name: clips, mount: /data}"), v2__jsonl=LINES)
    lists = named(result, "ConfigMap")
    assert lists["video/dataset-clips-v2"]["data"]["manifest.jsonl"] == LINES
    pods = [m.body["spec"]["template"]["spec"] for m in result.manifests if m.kind == "StatefulSet" and m.name == "kim"]
    volumes = {v["name"]: v for v in pods[0]["volumes"]}
    mounts = {m["mountPath"]: volumes[m["name"]] for m in pods[0]["containers"][0]["volumeMounts"]}
    assert mounts["/data.manifest"]["configMap"]["name"] == "dataset-clips-v2"


def test_metadata_summarises_a_manifest() -> None:
    data = named(compiled(PICKED, v2__jsonl=LINES), "ConfigMap")["video/dataset-clips"]["data"]["dataset.json"]
    version = json.loads(data)["versions"][1]
    assert (version["objects"], version["path"]) == (60, "/imagenet/clips")
    assert version["labels"] == {"class": {"values": {"a": 30, "b": 30}}, "id": {"objects": 60}}


def test_a_list_that_is_too_long_stays_in_the_store() -> None:
    line = '{{"url": "s3://imagenet/clips/{:0>100}.mp4"}}\n'
    lines = "".join(line.format(i) for i in range(MAX_LIST // 120))
    assert len(lines) > MAX_LIST
    files: dict[str, bytes | str] = {**BASE, "specs.yaml": PEOPLE + "---" + PICKED, "v2.jsonl": lines}
    assert [d.code for d in compile_tree(MemoryTree(files)).diagnostics] == ["manifest-too-large"]
    placed = PICKED.replace("v2.jsonl", 'v2.jsonl, manifestUrl: "s3://imagenet/lists/v2.jsonl"')
    result = compiled(placed, workspace("kim", "video", "{name: clips}"), v2__jsonl=lines)
    assert sorted(named(result, "ConfigMap")) == [
        "/".join(x) for x in (("avactl-system", "dataset-imagenet"), ("video", "dataset-clips"))
    ]


def test_a_manifest_with_many_problems_is_cut_short() -> None:
    found = parse("x.jsonl", b'{"url": 1}\n' * 5000)
    assert len(found.problems) == MAX_PROBLEMS + 1
    assert found.problems[-1].message == f"{5000 - MAX_PROBLEMS} more lines of the manifest have problems"


def test_a_manifest_is_read_line_by_line() -> None:
    found = parse("x.jsonl", b'{"url": "s3://b/x/1"}\r\n\r\n{"url": "s3://b/x/y/2"}')
    assert (found.objects, found.prefix, found.problems) == (2, "s3://b/x", ())
    assert parse("x.jsonl", b'{"url": "s3://b/1"}\n\xff\xfe\n').problems[0].span.line == 2
    # A directory, not just letters in common.
    assert parse("x.jsonl", b'{"url": "s3://b/cats/1"}\n{"url": "s3://b/cars/1"}').prefix == "s3://b"


# -- loading and freeing -------------------------------------------------------------------------------------------


def job(text: str) -> tuple[str, list[str]]:
    [(name, body)] = named(compiled(text), "Job", "prewarm-").items()
    return name, body["spec"]["template"]["spec"]["containers"][0]["command"]


def test_the_newest_version_is_loaded() -> None:
    name, command = job(CLIPS + "  prewarm: {replicas: 2, bandwidth: 100M}\n")
    assert name.startswith("avactl-cache/prewarm-video-clips-")
    assert command == ["/bin/bash", "/config/load.sh", "2", "100000000", "/imagenet/clips/v2"]


def test_a_new_version_is_loaded_by_a_new_job_and_nothing_else_is() -> None:
    text = CLIPS + "  prewarm: {}\n"
    name, _ = job(text)
    assert job(text.replace("size: 10Gi", "size: 11Gi\n  description: better"))[0] == name
    newer = text.replace("versions: [", 'versions: [{name: v0, url: "s3://imagenet/clips/v0"}, ')
    assert job(newer)[0] == name
    assert job(text.replace("clips/v2", "clips/v3"))[0] != name


def test_long_names_of_jobs_are_cut_and_stay_apart() -> None:
    long = "a-data-set-whose-name-is-so-long-that-it-hardly-fits-in-a-label"
    names = [job(CLIPS.replace("name: clips", f"name: {long[:62]}{i}") + "  prewarm: {}\n")[0] for i in "12"]
    assert len(set(names)) == 2
    assert all(len(name.partition("/")[2]) <= 63 for name in names)


def test_what_nobody_reads_is_freed_by_night() -> None:
    [(name, body)] = named(compiled(CLIPS + "  keep: 14d\n"), "CronJob", "free-").items()
    assert name == "avactl-cache/free-video-clips"
    command = body["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2:] == ["1209600", "/imagenet/clips/v1", "/imagenet/clips/v2"]


# -- without a tier ------------------------------------------------------------------------------------------------


def test_without_a_tier_pods_copy_the_data() -> None:
    direct = """
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {name: digits}
spec: {size: 60Mi, secret: digits-s3, versions: [{name: v1, url: "s3://public/digits"}]}
"""
    result = compiled(direct, workspace("kim", "video", "{name: digits}"))
    assert named(result, "PersistentVolume") == {}
    [pod] = [
        m.body["spec"]["template"]["spec"] for m in result.manifests if m.kind == "StatefulSet" and m.name == "kim"
    ]
    [fetch] = [c for c in pod["initContainers"] if c["name"] == "fetch-0"]
    assert {"name": "SOURCE", "value": "s3://public/digits"} in fetch["env"]
    assert {"name": "dataset-0", "emptyDir": {"sizeLimit": "60Mi"}} in pod["volumes"]


def test_without_a_tier_pods_copy_the_objects_of_a_manifest() -> None:
    direct = """
apiVersion: avactl.dev/v1
kind: Dataset
metadata: {name: clips, team: video}
spec: {size: 60Mi, secret: clips-s3, versions: [{name: v1, url: "s3://imagenet/clips"}, {name: v2, manifest: v2.jsonl}]}
"""
    sha256 = "0" * 64
    lines = LINES + json.dumps({"url": "s3://imagenet/clips/c.mp4", "sha256": sha256}) + "\n"
    result = compiled(direct, workspace("kim", "video", "{name: clips, mount: /data}"), v2__jsonl=lines)
    data = named(result, "ConfigMap")["video/dataset-clips-v2"]["data"]
    assert data["manifest.jsonl"] == lines
    assert data["objects.txt"].splitlines() == [f"{p}/{i}.mp4" for p in "ab" for i in range(30)] + ["c.mp4"]
    assert data["objects.sha256"] == f"{sha256}  c.mp4\n"
    pods = [m.body["spec"]["template"]["spec"] for m in result.manifests if m.kind == "StatefulSet" and m.name == "kim"]
    [fetch] = [c for c in pods[0]["initContainers"] if c["name"] == "fetch-0"]
    env = {each["name"]: each.get("value") for each in fetch["env"]}
    assert (env["SOURCE"], env["TARGET"], env["LIST"]) == ("s3://imagenet/clips", "/data", "/data.manifest")
    assert {each["mountPath"] for each in fetch["volumeMounts"]} >= {"/data", "/data.manifest"}
    assert {each["mountPath"] for each in pods[0]["containers"][0]["volumeMounts"]} >= {"/data", "/data.manifest"}
    # Nobody reads it: nobody needs the list.
    assert "video/dataset-clips-v2" not in named(compiled(direct, v2__jsonl=lines), "ConfigMap")


def test_a_dataset_with_a_tier_is_on_its_cluster_only() -> None:
    second = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: serve}\n"
    quota = {
        "base/platform.yaml": BASE["base/platform.yaml"].replace(b"spec:\n  gpus:", b"spec:\n  cluster: main\n  gpus:")
    }
    result = compile_tree(MemoryTree({**quota, "serve.yaml": second}))
    assert not result.diagnostics
    assert {m.cluster for m in result.manifests if m.item.kind == "Dataset"} == {"main"}


# -- the real API server -------------------------------------------------------------------------------------------


def test_the_api_server_takes_every_form(kube: KubeClient, namespace: str) -> None:
    result = compiled(PICKED + "  prewarm: {}\n  keep: 14d\n", v2__jsonl=LINES)
    taken = set()
    for manifest in result.manifests:
        if manifest.item.kind == "Dataset" and manifest.kind != "PersistentVolume":
            metadata = {**manifest.body["metadata"], "namespace": namespace}
            assert kube.apply({**manifest.body, "metadata": metadata}).warnings == []
            taken.add(manifest.kind)
    assert taken == {"ConfigMap", "CronJob", "Job", "PersistentVolumeClaim"}
