"""`perMember` of a Quota: for whom pods run, by specs and on a real API server, where nobody takes another name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from avactl.contracts.document import load
from avactl.contracts.pod_annotations import USER
from avactl.contracts.scheduling import QUOTA_KEY, TeamLeaf
from avactl.program.manifest import templates_of
from tests.kinds.compiling import DIGEST, apply, body, codes, compiled, unchecked
from tests.kinds.tenancy_attempts import DEVICES, KINDS, MERGE, container, path, pod_spec, variable, workload
from tools.controlplane import ApiError, ControlPlane, KubeClient
from tools.waiting import wait_until

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}, kubectl: registry.example.com/kubectl{DIGEST}}}
  daemons: {{scheduler: true, delivery: true}}
  delivery: {{repository: "https://git.example.com/specs", forge: gitlab, secret: avactl-delivery}}
  oidc: {{usernamePrefix: "lab:"}}
---
kind: NodePool
metadata: {{name: v100}}
spec: {{cluster: main, machineType: v100-pcie-8, count: 7}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{users: [ann, bob@example.com]}}}}
---
kind: Team
metadata: {{name: web}}
spec: {{members: {{users: [ann]}}}}
---
kind: Quota
metadata: {{name: gpus, team: vision}}
spec: {{gpus: [{{gpu: V100, guaranteed: 48, borrow: 8, perMember: 16}}]}}
"""
JOB = """
---
kind: TrainingJob
metadata: {name: resnet, team: vision, member: bob@example.com}
spec:
  strategy: allReduce
  image: registry.example.com/m:1
  command: [./train]
  workers: {replicas: 2, gpus: 8, gpu: V100}
"""
OTHERS = """
---
kind: Workspace
metadata: {name: lab, team: vision}
spec: {user: ann, image: "registry.example.com/jupyter:1", gpus: 1}
---
kind: ServingDeployment
metadata: {name: detect, team: vision, member: ann}
spec:
  model: {name: m, version: "1"}
  runtime: {name: custom, image: "registry.example.com/m:1", port: 8080}
  probe: {path: /health}
---
kind: Pipeline
metadata: {name: nightly, team: vision, member: ann}
spec:
  trigger: {schedule: {cron: "0 3 * * *", timeZone: Europe/Berlin}}
  train:
    template:
      image: registry.example.com/m:1
      command: [./train]
      workers: {gpus: 1}
      checkpoint: {path: s3://vision/nightly}
  validation:
    image: registry.example.com/m:1
    command: [./validate]
    resources: {cpu: 1, memory: 1Gi}
    metrics: [{name: accuracy, min: 0.9}]
  publish: {to: s3://vision/models}
---
kind: KubernetesObjects
metadata: {name: tool, team: vision, member: ann}
spec:
  objects:
    - apiVersion: v1
      kind: Pod
      metadata: {name: tool}
      spec:
        securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
        containers:
          - name: main
            image: registry.example.com/m:1
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
            resources: {requests: {cpu: 1}}
"""


def test_pods_of_every_kind_name_their_member() -> None:
    made = [each for each in unchecked(PLATFORM + JOB + OTHERS).manifests if each.namespace == "vision"]
    pods = [(each, template) for each in made for _, template in templates_of(each.body)]
    pods += [(each, each.body) for each in made if each.kind == "Pod"]
    found = {
        (each.kind, each.name): template["metadata"].get("annotations", {}).get(USER.name) for each, template in pods
    }
    assert found.pop(("Job", "resnet-worker")) == "bob@example.com"
    assert {"lab", "detect", "nightly-train-worker", "nightly-validate", "tool"} <= {name for _, name in found}
    assert {*found.values()} == {"ann"}


def test_a_job_of_another_member_is_another_run() -> None:
    """Templates of Jobs are immutable."""

    def run(text: str) -> Any:
        return body(compiled(text), "Job", "resnet-worker", "vision")["metadata"]["annotations"]["avactl.dev/run"]

    assert run(PLATFORM + JOB) == run(PLATFORM + JOB)
    assert run(PLATFORM + JOB) != run(PLATFORM + JOB.replace("bob@example.com", "ann"))


def test_the_limit_reaches_the_scheduler_and_the_admission_policy() -> None:
    made = compiled(PLATFORM + JOB)
    leaf = load(TeamLeaf, body(made, "ConfigMap", "avactl-quota-vision", "avactl-system")["data"][QUOTA_KEY])
    assert [each.per_member for each in leaf.gpus] == [16]
    assert body(made, "Namespace", "vision")["metadata"]["annotations"]["avactl.dev/member-limits"] == "true"
    assert "avactl.dev/member-limits" not in body(made, "Namespace", "web")["metadata"]["annotations"]
    without = compiled((PLATFORM + JOB).replace(", perMember: 16", ""))
    leaf = load(TeamLeaf, body(without, "ConfigMap", "avactl-quota-vision", "avactl-system")["data"][QUOTA_KEY])
    assert [each.per_member for each in leaf.gpus] == [None]
    assert "perMember" not in str(body(without, "ConfigMap", "avactl-quota-vision", "avactl-system"))
    assert "avactl.dev/member-limits" not in body(without, "Namespace", "vision")["metadata"]["annotations"]


def test_what_a_spec_says_of_its_member() -> None:
    large = unchecked(PLATFORM + JOB.replace("replicas: 2", "replicas: 3"))
    (problem,) = large.diagnostics
    assert problem.code == "quota-exceeded"
    assert problem.message == ("bob@example.com of team vision requests 24 V100; its quota allows 16 to each member")
    assert problem.hint.startswith("at most 2 replicas fit; or raise `perMember` in ")
    assert codes(unchecked(PLATFORM + JOB.replace("bob@example.com", "eve"))) == ["user-not-in-team"]
    (problem,) = unchecked(PLATFORM + JOB.replace(", member: bob@example.com", "")).diagnostics
    assert (problem.code, problem.severity) == ("without-member", "warning")
    # What runs for the whole team has no such limit; the reviewer sees it.
    team = JOB.replace(", member: bob@example.com", "").replace("replicas: 2", "replicas: 6")
    assert codes(unchecked(PLATFORM + team)) == ["without-member"]
    other = OTHERS.partition("\n---\nkind: Serving")[0].replace(
        "team: vision}", "team: vision, member: bob@example.com}"
    )
    assert codes(unchecked(PLATFORM + other)) == ["conflicting-keys"]


def test_limits_that_nothing_enforces_or_reaches() -> None:
    assert codes(unchecked(PLATFORM.replace("perMember: 16", "perMember: 56"))) == ["without-effect"]
    assert "missing-daemon" in codes(unchecked(PLATFORM.replace("scheduler: true, ", "")))


# -- on an API server -----------------------------------------------------------------------------------------------

GPUS = {"resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}}
ONE = pod_spec(containers=[container("main", variable("NVIDIA_VISIBLE_DEVICES", DEVICES), **GPUS)])
CLAIM = pod_spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}])
HOSTILE: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "no name": (ONE, {}),
    "an empty name": (ONE, {USER.name: ""}),
    "a colleague": (ONE, {USER.name: "bob@example.com"}),
    "with the prefix": (ONE, {USER.name: "lab:ann"}),
    "the platform": (ONE, {USER.name: "system:kube-controller-manager"}),
    "a share without a name": (pod_spec(), {"avactl.dev/gpu-share": "0.5"}),
    "a claim without a name": (CLAIM, {}),
    "a colleague without GPUs": (pod_spec(), {USER.name: "bob@example.com"}),
    "GPUs of an init container": (
        pod_spec(initContainers=[container("first", variable("NVIDIA_VISIBLE_DEVICES", DEVICES), **GPUS)]),
        {},
    ),
    "GPUs of another vendor": (
        pod_spec(containers=[container(resources={"limits": {"habana.ai/gaudi": "1"}})]),
        {},
    ),
}


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    users: dict[str, list[str]] = {"lab:ann": [], "lab:bob@example.com": []}
    arguments = {"kube-controller-manager": ["--use-service-account-credentials=true"]}
    with ControlPlane(controller_manager=True, users=users, arguments=arguments) as running:
        yield running


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Iterator[KubeClient]:
    with plane.client() as client:
        apply(client, [each for each in compiled(PLATFORM).manifests if each.kind != "Node"])
        for namespace in ("vision", "web"):
            client.wait_for("v1", "ServiceAccount", "default", namespace, until=bool)
        probe = workload("Pod", ONE, annotations={USER.name: "nobody"}, namespace="vision")
        with plane.client(plane.token("lab:ann")) as ann:
            wait_until(lambda: " member: " in ann.refusal(probe))
        yield client


@pytest.fixture(scope="module")
def ann(plane: ControlPlane, admin: KubeClient) -> Iterator[KubeClient]:
    with plane.client(plane.token("lab:ann")) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attempt", HOSTILE)
def test_a_member_takes_no_other_name(plane: ControlPlane, ann: KubeClient, kind: str, attempt: str) -> None:
    spec, notes = HOSTILE[attempt]
    with pytest.raises(ApiError, match=" member: "):
        ann.create(workload(kind, spec, annotations=notes), dry_run=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_works_under_the_own_name(ann: KubeClient, kind: str) -> None:
    ann.create(workload(kind, ONE, annotations={USER.name: "ann"}), dry_run=True)
    ann.create(workload(kind, pod_spec(), annotations={}), dry_run=True)
    ann.create(workload(kind, ONE, annotations={}, namespace="web"), dry_run=True)
    with pytest.raises(ApiError, match=" member: "):
        ann.create(workload(kind, ONE, annotations={USER.name: "bob"}, namespace="web"), dry_run=True)


def test_a_template_gets_no_gpus_and_no_other_name_later(plane: ControlPlane, ann: KubeClient) -> None:
    ann.create(workload("Deployment", pod_spec(), "plain", annotations={}))
    ann.create(workload("Deployment", ONE, "own", annotations={USER.name: "ann"}))

    def change(name: str, body: dict[str, Any]) -> None:
        ann.request("PATCH", path(*KINDS["Deployment"], name), body=body, query={"dryRun": "All"}, content_type=MERGE)

    for name, template in (
        ("plain", {"spec": {"containers": ONE["containers"]}}),
        ("plain", {"metadata": {"annotations": {"avactl.dev/gpu-share": "0.5"}}}),
        ("own", {"metadata": {"annotations": {USER.name: "bob@example.com"}}}),
        ("own", {"metadata": {"annotations": {USER.name: None}}}),
    ):
        with pytest.raises(ApiError, match=" member: "):
            change(name, {"spec": {"template": template}})
    restarted = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    change("own", {"spec": {"template": {"metadata": {"annotations": restarted}}}})
    change("own", {"spec": {"replicas": 3}})


def test_pods_of_specs_run_for_whom_they_say(plane: ControlPlane, admin: KubeClient, ann: KubeClient) -> None:
    """The platform applies the specs of all, and Kubernetes' controllers create their pods."""
    admin.create(workload("Job", ONE, "spec", annotations={USER.name: "bob@example.com"}))
    admin.create(workload("Pod", ONE, "team", annotations={}))
    ann.create(workload("Job", ONE, "mine", annotations={USER.name: "ann"}))

    def users() -> list[str]:
        pods = [each for each in admin.list("v1", "Pod", "vision") if each["metadata"].get("generateName")]
        return sorted((each["metadata"].get("annotations") or {}).get(USER.name, "") for each in pods)

    # Pods of the tests before are among them.
    wait_until(lambda: {"ann", "bob@example.com"} <= {*users()})
    mine = wait_until(
        lambda: [each for each in admin.list("v1", "Pod", "vision") if each["metadata"]["name"].startswith("mine-")]
    )
    pod = mine[0]
    patch = {"metadata": {"annotations": {USER.name: "bob@example.com"}}}
    with pytest.raises(ApiError, match=r"scheduler-requests|member"):
        ann.request("PATCH", path(*KINDS["Pod"], pod["metadata"]["name"]), body=patch, content_type=MERGE)
