"""Workspace: a pod that comes and goes, a home that stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from avactl.contracts.names import WORKSPACE_PRIORITY
from avactl.contracts.pod_annotations import PREEMPTIBLE
from avactl.program.manifest import Manifest
from avactl.program.registry import get_kind
from tests.kinds.compiling import apply
from tests.kinds.on_base import Objects, api_server_says, compile_spec, objects
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

HEAD = """
apiVersion: avactl.dev/v1
kind: Workspace
metadata: {name: lin, team: vision}
spec:
  user: lin@example.com
"""
PLAIN = HEAD + "  image: jupyter/scipy-notebook:2025-03-14\n"
PLATFORM = f"""
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: modern}}
spec:
  daemons: {{scheduler: true}}
  images: {{avactl: "registry.example.com/avactl@sha256:{"a" * 64}"}}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: modern, machineType: v100-pcie-8, count: 4, devicesChosenBy: scheduler}}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {{name: vision}}
spec:
  workspace: {{image: "registry.example.com/lab:1", cpu: 3, memory: 6Gi, storage: 30Gi}}
---
"""


def stateful_set(found: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = found["StatefulSet", "lin"]["spec"]
    return spec


def container(found: Objects) -> dict[str, Any]:
    main: dict[str, Any] = stateful_set(found)["template"]["spec"]["containers"][0]
    return main


def env(found: Objects) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container(found)["env"]}


def test_the_home_stays_when_the_pod_goes() -> None:
    found = objects(PLAIN + "  running: false\n")
    assert stateful_set(found)["replicas"] == 0
    assert ("PersistentVolumeClaim", "lin-home") in found
    assert "volumeClaimTemplates" not in stateful_set(found)
    assert stateful_set(objects(PLAIN))["replicas"] == 1


@pytest.mark.parametrize(("policy", "kept"), [("retain", True), ("delete", False)])
def test_only_deletion_policy_delete_lets_the_home_go(policy: str, kept: bool) -> None:
    result = compile_spec(PLAIN + f"  deletionPolicy: {policy}\n")
    held = {m.kind: m.holds_data for m in result.manifests if m.item.name == "lin"}
    assert held["PersistentVolumeClaim"] is kept
    assert held["StatefulSet"] is False


def test_the_team_gives_what_the_spec_leaves_out() -> None:
    found = objects(PLATFORM + HEAD, base=False)
    assert container(found)["image"] == "registry.example.com/lab:1"
    assert container(found)["resources"]["requests"] == {"cpu": "3", "memory": "6Gi"}
    assert found["PersistentVolumeClaim", "lin-home"]["spec"]["resources"]["requests"]["storage"] == "30Gi"


def test_a_whole_gpu_is_a_resource_and_a_shared_one_the_schedulers() -> None:
    whole = objects(PLATFORM + HEAD + "  gpus: 2\n", base=False)
    assert container(whole)["resources"]["limits"]["nvidia.com/gpu"] == "2"

    shared = objects(PLATFORM + HEAD + "  gpus: 0.25\n", base=False)
    template = stateful_set(shared)["template"]
    assert template["metadata"]["annotations"]["avactl.dev/gpu-share"] == "0.25"
    assert template["spec"]["schedulerName"] == "avactl"
    assert template["spec"]["nodeSelector"]["avactl.dev/gpu"] == "V100"
    assert "nvidia.com/gpu" not in container(shared)["resources"]["limits"]
    field = "metadata.annotations['avactl.dev/devices']"
    assert env(shared)["NVIDIA_VISIBLE_DEVICES"] == {"fieldRef": {"fieldPath": field}}


def test_a_whole_gpu_written_as_a_float_is_a_whole_gpu() -> None:
    found = objects(PLAIN + "  gpus: 1.0\n")
    assert container(found)["resources"]["limits"]["nvidia.com/gpu"] == "1"


def test_without_gpus_the_images_of_gpu_machines_see_none() -> None:
    assert env(objects(PLAIN))["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_idle_kernels_end_by_jupyters_own_means() -> None:
    found = objects(PLAIN + "  idleTimeout: 30m\n")
    config = json.loads(found["ConfigMap", "lin-editor"]["data"]["jupyter_server_config.json"])
    assert config["MappingKernelManager"]["cull_idle_timeout"] == 1800
    assert config["TerminalManager"]["cull_inactive_timeout"] == 1800
    mounts = {m["name"]: m["mountPath"] for m in container(found)["volumeMounts"]}
    assert env(found)["JUPYTER_CONFIG_PATH"] == mounts["editor"]
    assert env(found)["AVACTL_IDLE_TIMEOUT"] == "1800"

    never = objects(PLAIN + "  idleTimeout: 0s\n")
    assert ("ConfigMap", "lin-editor") not in never
    assert "JUPYTER_CONFIG_PATH" not in env(never)


def test_an_idle_workspace_stops_and_nobody_reverts_it() -> None:
    found = objects(PLATFORM + HEAD + "  idleTimeout: 30m\n  whenIdle: stop\n", base=False)
    config = json.loads(found["ConfigMap", "lin-editor"]["data"]["jupyter_server_config.json"])
    assert config["ServerApp"] == {"shutdown_no_activity_timeout": 1800}
    assert stateful_set(found)["template"]["metadata"]["annotations"]["avactl.dev/stop-when-done"] == "workspace"
    # The scheduler and users write it, and no engine applies another value.
    assert "replicas" not in stateful_set(found)
    (rule,) = found["Role", "lin-stop"]["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["statefulsets/scale"], ["lin"], ["patch"])
    (subject,) = found["RoleBinding", "lin-stop"]["subjects"]
    assert (subject["name"], subject["namespace"]) == ("avactl-scheduler", "avactl-system")

    stopped = objects(PLATFORM + HEAD + "  whenIdle: stop\n  running: false\n", base=False)
    assert stateful_set(stopped)["replicas"] == 0
    assert ("Role", "lin-stop") not in objects(PLATFORM + HEAD, base=False)


def test_home_and_datasets_are_mounted() -> None:
    found = objects(PLAIN + "  home: /home/lin\n  datasets: [{name: imagenet, mount: /home/lin/imagenet}]\n")
    mounts = {m["mountPath"]: m for m in container(found)["volumeMounts"]}
    assert mounts["/home/lin"]["name"] == "home"
    assert mounts["/home/lin/imagenet"]["readOnly"] is True
    assert env(found)["HOME"] == "/home/lin"
    assert container(found)["workingDir"] == "/home/lin"


def test_only_the_team_reaches_the_editor() -> None:
    rules = objects(PLAIN)["NetworkPolicy", "lin"]["spec"]["ingress"]
    assert len(rules) == 1
    assert rules[0]["ports"] == [{"protocol": "TCP", "port": 8888}]
    assert rules[0]["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"] == ["vision"]


def test_facts_are_what_a_person_wants_to_know() -> None:
    result = compile_spec(PLATFORM + HEAD + "  gpus: 0.5\n", base=False)
    item = result.program.get("Workspace", "lin", "vision")
    facts = get_kind("Workspace").facts(item, result.program)
    assert facts["user"] == "lin@example.com"
    assert facts["GPUs"] == "0.5 V100"
    assert facts["image"] == "registry.example.com/lab:1"


@pytest.mark.parametrize("more", ["", "  gpus: 1\n", "  gpus: 0.5\n"], ids=["none", "whole", "shared"])
def test_the_api_server_takes_every_object(more: str, kube: KubeClient, namespace: str) -> None:
    found = objects(PLATFORM + HEAD + more, base=False)
    mine = {key: body for key, body in found.items() if body["metadata"].get("namespace") == "vision"}
    mine = {
        key: body for key, body in mine.items() if body["metadata"]["labels"]["app.kubernetes.io/name"] == "workspace"
    }
    assert len(mine) == 5
    assert api_server_says(mine, kube, namespace) == []


def test_the_team_preempts_a_workspace_only_if_it_says_so() -> None:
    template = stateful_set(objects(PLAIN))["template"]
    assert template["spec"]["priorityClassName"] == WORKSPACE_PRIORITY
    assert PREEMPTIBLE.name not in template["metadata"]["annotations"]
    template = stateful_set(objects(PLAIN + "  preemptible: true\n"))["template"]
    assert template["metadata"]["annotations"][PREEMPTIBLE.name] == "true"


def test_the_scheduler_stops_this_workspace_and_no_other(new_plane: Callable[..., ControlPlane]) -> None:
    """With its compiled account: only to 0; a later apply of the spec leaves the workspace stopped or started."""
    other = HEAD.replace("name: lin", "name: ada")
    made = compile_spec(PLATFORM + HEAD + "  whenIdle: stop\n---\n" + other, base=False).manifests
    plane = new_plane()
    with plane.client() as admin:
        apply(admin, [each for each in made if each.kind != "Node"])
        token = plane.service_account_token("avactl-system", "avactl-scheduler")
        root = "/apis/apps/v1/namespaces/vision/statefulsets"

        def scale(client: KubeClient, name: str, replicas: int) -> None:
            body = {"spec": {"replicas": replicas}}
            client.request("PATCH", f"{root}/{name}/scale", body=body, content_type="application/merge-patch+json")

        def replicas() -> int:
            return int(admin.get("apps/v1", "StatefulSet", "lin", "vision")["spec"]["replicas"])

        assert replicas() == 1
        (stateful,) = [each for each in made if (each.kind, each.name) == ("StatefulSet", "lin")]
        # A workspace that ran before with `whenIdle: keep` goes on.
        spec = {**stateful.body["spec"], "replicas": 1}
        apply(admin, [Manifest(stateful.item, stateful.cluster, {**stateful.body, "spec": spec}), stateful])
        assert replicas() == 1
        with plane.client(token) as scheduler:
            with pytest.raises(ApiError, match="cannot patch"):
                scale(scheduler, "ada", 0)
            wait_until(lambda: "only stops workspaces" in _refusal(lambda: scale(scheduler, "lin", 2)))
            scale(scheduler, "lin", 0)
        for count in (0, 1):
            scale(admin, "lin", count)
            apply(admin, [stateful])
            assert replicas() == count


def _refusal(request: Callable[[], None]) -> str:
    try:
        request()
    except ApiError as error:
        return str(error)
    return ""
