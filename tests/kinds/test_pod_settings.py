"""Pod settings: each need of docs/expressing.md, what is refused, what counts, and the API server's own opinion."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from avactl.base.quantity import parse_quantity
from avactl.compiler import Compilation
from avactl.program import registry
from avactl.program.capacity.capacity import running_roles
from avactl.scheduler.objects.pod_requirements import requests
from avactl.spec.schema.pod_requests import with_other_containers
from avactl.spec.schema.pod_settings import PodSettings, merge_settings
from tests.conftest import ROOT
from tests.kinds.compiling import DIGEST, apply, codes, unchecked
from tools.controlplane import ControlPlane
from tools.waiting import wait_until

TEXT = (ROOT / "docs/expressing.md").read_text()
NEEDS = {
    need: (yaml.safe_load(write), sets)
    for need, write, sets in re.findall(r"^\| ([^|]+) \| `(.+)` \| `([^`]+)` \|$", TEXT, re.MULTILINE)
}
TEAM = next(text for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if text.startswith("kind: Team"))
IMAGES = ", ".join(f"{name}: registry.example.com/{name}{DIGEST}" for name in ("avactl", "kubectl", "fetch"))
PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec: {{images: {{{IMAGES}}}, daemons: {{scheduler: true}}}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: v100-pcie-8, count: 4}}
---
kind: NodePool
metadata: {{name: spot}}
spec:
  {{cluster: main, machineType: v100-pcie-8, count: 4, labels: {{disk: nvme}}, taints: [{{key: example.com/spot}}]}}
---
{TEAM}"""
SPECS: dict[str, dict[str, Any]] = {
    "TrainingJob": {"image": "registry.example.com/train:1", "workers": {"gpus": 1}},
    "Workspace": {"image": "registry.example.com/jupyter:1", "user": "ann@example.com"},
    "ServingDeployment": {
        "model": {"name": "m", "version": "1"},
        "runtime": {"name": "custom", "image": "registry.example.com/m:1", "port": 8080},
        "probe": {"path": "/health"},
    },
}
WORKLOADS = {"TrainingJob": "Job", "Workspace": "StatefulSet", "ServingDeployment": "Deployment"}


def compiled(kind: str, more: dict[str, Any], platform: str = PLATFORM) -> Compilation:
    spec = {"kind": kind, "metadata": {"name": "one", "team": "vision"}, "spec": {**SPECS[kind], **more}}
    return unchecked(f"{platform}\n---\n{yaml.safe_dump(spec)}")


def template(result: Compilation, kind: str) -> dict[str, Any]:
    assert not [p.message for p in result.diagnostics if p.severity == "error"]
    found: dict[str, Any] = next(
        m.body["spec"]["template"] for m in result.manifests if m.kind == WORKLOADS[kind] and m.item.kind == kind
    )
    return found


def steps(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its path, without indexes of lists."""
    yield path, repr(value)
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from steps(inner, f"{path}.{key}" if path else str(key))
    for inner in value if isinstance(value, list) else ():
        yield from steps(inner, path)


def kinds(need: str) -> list[str]:
    return [kind for kind in SPECS if not (kind == "ServingDeployment" and "not for services" in need)]


def test_the_page_has_the_needs() -> None:
    assert len(NEEDS) >= 36


@pytest.mark.parametrize("need", NEEDS)
def test_each_need_of_the_page_sets_what_it_says(need: str) -> None:
    more, sets = NEEDS[need]
    for kind in kinds(need):
        plain = set(steps(template(compiled(kind, {}), kind)))
        new = set(steps(template(compiled(kind, more), kind))) - plain
        assert any(sets in f"{path} {value}" for path, value in new), (kind, sorted(path for path, _ in new))


def test_roles_add_to_the_settings_of_the_job() -> None:
    base = PodSettings.model_validate({"labels": {"a": "1"}, "sidecars": [{"name": "x", "image": "a:1"}]})
    own = PodSettings.model_validate({"labels": {"b": "2"}, "sidecars": [{"name": "x", "image": "a:2"}]})
    both = merge_settings(base, own)
    assert both is not None
    assert (both.labels, [each.image for each in both.sidecars]) == ({"a": "1", "b": "2"}, ["a:2"])
    more = {
        "framework": "tensorflow",
        "strategy": "parameterServer",
        "pod": {"labels": {"all": "yes"}},
        "workers": {"replicas": 2},
        "servers": {"replicas": 1, "pod": {"labels": {"only": "servers"}}},
    }
    result = compiled("TrainingJob", more)
    found = {m.name: m.body["spec"]["template"]["metadata"]["labels"] for m in result.manifests if m.kind == "Job"}
    assert {name: (each.get("all"), each.get("only")) for name, each in found.items()} == {
        "one-chief": ("yes", None),
        "one-worker": ("yes", None),
        "one-server": ("yes", "servers"),
    }


def volume(**source: Any) -> dict[str, Any]:
    return {"pod": {"volumes": [{"name": "v", "mountPath": "/v", **source}]}}


def ports(*found: dict[str, Any]) -> dict[str, Any]:
    return {"pod": {"sidecars": [{"name": "s", "image": "s:1", "ports": list(found)}]}}


TWO = [{"key": "a", "path": "x"}, {"key": "b", "path": "./x"}]
DOWNWARD = {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a field that does not exist": ("invalid-value", {"env": {"X": {"field": "spec.hostname"}}}),
    "all labels in a variable": ("invalid-value", {"env": {"X": {"field": "metadata.labels"}}}),
    "an address in a file": ("invalid-value", volume(projected={"sources": [{"downwardAPI": DOWNWARD}]})),
    "no address": ("invalid-value", {"pod": {"hostAliases": [{"ip": "999.1.1.1", "hostnames": ["a"]}]}}),
    "no host": ("invalid-value", {"pod": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a..b"]}]}}),
    "no name server": ("invalid-value", {"pod": {"dnsConfig": {"nameservers": ["10.0.0"]}}}),
    "long searches": ("invalid-value", {"pod": {"dnsConfig": {"searches": [".".join(["a" * 60] * 4)] * 9}}}),
    "a port of digits": ("invalid-value", ports({"name": "80", "containerPort": 80})),
    "a port with two dashes": ("invalid-value", ports({"name": "a--b", "containerPort": 80})),
    "two ports of a name": ("duplicate-entry", ports(*({"name": "a", "containerPort": each} for each in (1, 2)))),
    "one port twice": ("duplicate-entry", ports({"containerPort": 80}, {"containerPort": 80, "name": "a"})),
    "a job's own label": ("invalid-value", {"pod": {"labels": {"job-name": "other"}}}),
    "two files of a Secret": ("duplicate-entry", volume(secret={"secretName": "s", "items": TWO})),
    "two files of sources": (
        "duplicate-entry",
        volume(
            projected={
                "sources": [
                    {"secret": {"name": "s", "items": TWO[:1]}},
                    {"serviceAccountToken": {"path": "x", "audience": "vault"}},
                ]
            }
        ),
    ),
    "a file without a name": ("invalid-value", volume(secret={"secretName": "s", "items": [{"key": "a", "path": ""}]})),
    "a key of dots": ("invalid-value", volume(secret={"secretName": "s", "items": [{"key": "..", "path": "x"}]})),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_api_server_refuses_does_not_compile(what: str) -> None:
    code, more = REFUSED[what]
    assert codes(compiled("TrainingJob", more)) == [code]


def test_keys_of_labels_may_have_digits() -> None:
    more = {"env": {"X": {"field": "metadata.labels['example.com/v2']"}}}
    env = template(compiled("TrainingJob", more), "TrainingJob")["spec"]["containers"][0]["env"]
    assert {"fieldRef": {"fieldPath": "metadata.labels['example.com/v2']"}} in [each.get("valueFrom") for each in env]


@pytest.mark.parametrize(
    ("written", "mode", "hint"),
    [
        ("0o400", 0o400, ""),
        ("256", 0o400, ""),
        ("0400", None, "write `0o400`"),
        ("440", None, "write `0o440`"),
        ("0644", None, "write `0o644`"),
        ("999", None, "write an octal number: `0o400`"),
    ],
)
def test_modes_are_octal_only_with_their_prefix(written: str, mode: int | None, hint: str) -> None:
    spec = f"""
kind: TrainingJob
metadata: {{name: one, team: vision}}
spec:
  image: a:1
  pod: {{volumes: [{{name: v, mountPath: /v, secret: {{secretName: s, defaultMode: {written}}}}}]}}
"""
    result = unchecked(f"{PLATFORM}\n---\n{spec}")
    if mode is None:
        assert [problem.hint for problem in result.diagnostics] == [hint]
    else:
        volumes = template(result, "TrainingJob")["spec"]["volumes"]
        assert [each["secret"]["defaultMode"] for each in volumes if each["name"] == "v"] == [mode]


@pytest.mark.parametrize("name", ["CAP_CHOWN", "CAP_NET_BIND_SERVICE"])
def test_capabilities_have_no_prefix(name: str) -> None:
    (problem,) = compiled("TrainingJob", {"pod": {"securityContext": {"capabilities": {"add": [name]}}}}).diagnostics
    assert problem.hint == f"write `{name.removeprefix('CAP_')}`"


@pytest.mark.parametrize(
    "key",
    [
        "io.kubernetes.cri-o.Devices",
        "devices.crio.io",
        "seccomp-profile.crio.io/worker",
        "devices.nri.io/pod",
        "devices.noderesource.dev/container.worker",
    ],
)
def test_container_runtimes_take_no_orders_from_annotations(key: str) -> None:
    assert codes(compiled("TrainingJob", {"pod": {"annotations": {key: "/dev/mem"}}})) == ["invalid-value"]


BUSY = {
    "pod": {
        "sidecars": [{"name": "a", "image": "a:1", "cpu": "2", "memory": "1Gi"}],
        "initContainers": [{"name": "b", "image": "b:1", "cpu": "16", "memory": "1Gi"}],
    }
}


@pytest.mark.parametrize("kind", SPECS)
def test_further_containers_count_as_the_scheduler_counts_them(kind: str) -> None:
    result = compiled(kind, BUSY)
    item = result.program.of(kind)[0]
    (role,) = running_roles(item)
    hooks = registry.get_kind(kind).workload
    cpu = role.compute.cpu
    if cpu is None:
        assert hooks is not None
        assert hooks.default_requests is not None
        cpu = hooks.default_requests(item, result.program).cpu
    assert parse_quantity(cpu) == 18
    assert requests(template(result, kind)["spec"])["cpu"] == 18_000


def test_sidecars_run_beside_the_init_containers_and_the_program() -> None:
    settings = PodSettings.model_validate(BUSY["pod"])
    assert with_other_containers(settings, "cpu", "4") == 18
    assert with_other_containers(settings, "cpu", "20") == 22


def test_sidecars_count_in_the_quota_and_on_machines() -> None:
    quota = "---\nkind: Quota\nmetadata: {name: q, team: vision}\nspec: {gpus: [{gpu: V100, guaranteed: 8}], cpu: 10}\n"
    assert "quota-exceeded" in codes(compiled("TrainingJob", BUSY, PLATFORM + quota))
    huge = {"pod": {"sidecars": [{"name": "a", "image": "a:1", "cpu": "500"}]}}
    assert codes(compiled("TrainingJob", huge)) == ["pod-never-fits"]


def test_a_toleration_opens_the_pools_that_it_names() -> None:
    spot = {"workers": {"gpus": 8, "replicas": 6}, "strategy": "allReduce"}
    assert "gang-never-fits" in codes(compiled("TrainingJob", spot))
    spot["pod"] = {"tolerations": [{"key": "example.com/spot", "operator": "Exists"}]}
    assert "gang-never-fits" not in codes(compiled("TrainingJob", spot))


@pytest.mark.parametrize("strategy", ["mpi", "parameterServer"])
def test_an_account_of_the_team_gets_the_rights_of_followers(strategy: str) -> None:
    more: dict[str, Any] = {"strategy": strategy, "workers": {"replicas": 2}, "pod": {"serviceAccountName": "trainer"}}
    if strategy == "parameterServer":
        more["servers"] = {"replicas": 1}
    result = compiled("TrainingJob", more)
    pods = [m.body["spec"]["template"]["spec"] for m in result.manifests if m.kind == "Job"]
    assert {pod["serviceAccountName"] for pod in pods} == {"trainer"}
    bound = [
        [s["name"] for s in m.body["subjects"]]
        for m in result.manifests
        if m.kind == "RoleBinding" and m.item.kind == "TrainingJob"
    ]
    assert bound
    assert all("trainer" in names for names in bound)
    more["pod"] = {"serviceAccountName": "trainer", "automountServiceAccountToken": True}
    assert codes(compiled("TrainingJob", more)) == ["invalid-value"]


@pytest.mark.parametrize(
    ("resource", "rdma", "count"),
    [("rdma/hca", True, "1"), ("nvidia.com/sriov", True, "4"), ("nvidia.com/sriov", 2, "2"), ("rdma/hca", 1, "1")],
)
def test_the_machine_type_knows_how_many_nics_a_pod_gets(resource: str, rdma: bool | int, count: str) -> None:
    pool = f"""---
kind: NodePool
metadata: {{name: h100}}
spec: {{cluster: main, machineType: h100-sxm-8, count: 2, rdmaResource: {resource}}}
"""
    more = {"workers": {"gpus": 4, "gpu": "H100", "rdma": rdma}}
    result = compiled("TrainingJob", more, PLATFORM + pool)
    limits = template(result, "TrainingJob")["spec"]["containers"][0]["resources"]["limits"]
    assert limits[resource] == count
    more["workers"]["rdma"] = 16
    assert "rdma-unavailable" in codes(compiled("TrainingJob", more, PLATFORM + pool))


@pytest.mark.parametrize("kind", ["Workspace", "ServingDeployment"])
def test_sidecars_listen_on_ports_of_their_own(kind: str) -> None:
    pod = template(compiled(kind, {}), kind)["spec"]
    used = pod["containers"][0]["ports"][0]["containerPort"]
    assert codes(compiled(kind, ports({"containerPort": used}))) == ["duplicate-entry"]
    assert codes(compiled(kind, ports({"containerPort": used, "protocol": "UDP"}))) == []
    two = [{"name": name, "image": "a:1", "ports": [{"containerPort": 9999}]} for name in ("a", "b")]
    assert codes(compiled(kind, {"pod": {"sidecars": two}})) == ["duplicate-entry"]


@pytest.mark.parametrize(
    ("replicas", "pod", "found"),
    [
        (2, {"dnsPolicy": "Default"}, ["invalid-value"]),
        (2, {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.10"]}}, ["invalid-value"]),
        (2, {"dnsPolicy": "ClusterFirst", "dnsConfig": {"nameservers": ["10.0.0.10"]}}, []),
        (1, {"dnsPolicy": "Default"}, []),
    ],
)
def test_pods_of_a_job_find_each_other_by_name(replicas: int, pod: dict[str, Any], found: list[str]) -> None:
    strategy = "single" if replicas == 1 else "allReduce"
    result = compiled("TrainingJob", {"strategy": strategy, "workers": {"replicas": replicas}, "pod": pod})
    assert [problem.code for problem in result.diagnostics] == found
    assert result.ok


@pytest.mark.parametrize("name", ["health-check", "worker-library"])
def test_names_of_the_health_check_are_taken(name: str) -> None:
    more = {"strategy": "allReduce", "workers": {"replicas": 2, "gpus": 1}, "healthCheck": {}}
    sidecar = {"pod": {"sidecars": [{"name": name, "image": "a:1"}]}}
    assert codes(compiled("TrainingJob", {**more, **sidecar})) == ["duplicate-entry"]


def test_root_reaches_every_container() -> None:
    more = {"runAsUser": 0, "strategy": "mpi", "workers": {"replicas": 2}, **BUSY}
    result = compiled("TrainingJob", more)
    for manifest in result.manifests:
        if manifest.kind == "Job":
            pod = manifest.body["spec"]["template"]["spec"]
            containers = [*pod["containers"], *pod["initContainers"]]
            assert not any(each["securityContext"]["runAsNonRoot"] for each in (pod, *containers))


def all_needs(kind: str) -> dict[str, Any]:
    """A spec with all needs of the page."""
    found: dict[str, Any] = {"pod": {}}
    for number, (need, (more, _)) in enumerate(NEEDS.items()):
        if kind not in kinds(need):
            continue
        for key, value in copy.deepcopy(more).get("pod", {}).items():
            if key in ("volumes", "sidecars", "initContainers"):
                for entry in value:
                    if key == "volumes":
                        entry["mountPath"] = f"/v{number}{entry['mountPath']}"
                    entry["name"] = f"n{number}-{entry['name']}"
                    for mount in entry.get("volumeMounts", ()):
                        mount["name"] = f"n{number}-{mount['name']}"
                found["pod"].setdefault(key, []).extend(value)
            elif isinstance(value, list):
                found["pod"].setdefault(key, []).extend(value)
            elif isinstance(value, dict):
                found["pod"][key] = {**found["pod"].get(key, {}), **value}
            else:
                found["pod"][key] = value
        if "pod" not in more:
            found = {
                **found,
                **{
                    key: {**found.get(key, {}), **value} if isinstance(value, dict) else value
                    for key, value in more.items()
                },
            }
    return found


def test_the_api_server_takes_pods_with_all_needs(new_plane: Callable[..., ControlPlane]) -> None:
    plane = new_plane()
    with plane.client() as kube:
        account = {"name": "job-controller", "namespace": "kube-system"}
        for kind in SPECS:
            result = compiled(kind, all_needs(kind))
            pod_template = template(result, kind)
            apply(kube, result.manifests)
            kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
            spec = {**pod_template["spec"], "restartPolicy": "Always"}
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "spec": spec,
                "metadata": {**pod_template["metadata"], "name": "check", "namespace": "vision"},
            }
            with plane.client(plane.service_account_token("kube-system", "job-controller")) as controller:
                _in_force(controller, {**pod, "spec": {**spec, "nodeName": "x"}})
                controller.create(pod, dry_run=True)
    plane.close()


def _in_force(client: Any, refused: dict[str, Any]) -> None:
    """Wait until the admission policies are in force."""
    wait_until(lambda: " node-name: " in client.refusal(refused))
