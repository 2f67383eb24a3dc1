"""Servers: the compiled objects have the program, the probes, the strategy and the Services of their source."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from math import ceil, floor
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.workbench.importer.cleaning import clean_object
from avactl.workbench.importer.model import ImportResult
from avactl.workbench.importer.session import Imported
from tests.importer.importing import IMAGES, imported

Body = dict[str, Any]
HERE = Path(__file__).parent.parent / "golden" / "import"
PLATFORM = f"""
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {{name: lab}}
spec:
  kubernetesVersion: "1.36"
  reconcile: {{mode: files}}
  daemons: {{serving: true}}
  images: {{avactl: "registry.example.com/avactl@sha256:{"ab" * 32}", fetch: "{IMAGES["fetch"]}"}}
"""


def _deployment(container: Body | None = None, name: str = "rank", **spec: Any) -> Body:
    """Return a Deployment of a server with one GPU."""
    template = spec.pop("pod", {})
    labels = spec.pop("labels", {"app": name})
    server = {
        "name": "main",
        "image": "registry.example.com/rank:4",
        "ports": [{"containerPort": 8080, "name": "web"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "web"}},
        "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi", "cpu": "4"}, "requests": {"memory": "8Gi"}},
        **(container or {}),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "ads"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": labels},
            **spec,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [server], **template}},
        },
    }


def _service(name: str = "rank", selector: Body | None = None, **spec: Any) -> Body:
    ports = [{"name": "api", "port": 80, "targetPort": "web"}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "ads"},
        "spec": {"selector": selector or {"app": "rank"}, "ports": ports, **spec},
    }


def _import(tmp_path: Path, *objects: Body) -> Imported:
    return imported(yaml.safe_dump_all(objects), tmp_path)


def _compiled(made: Imported, kind: str, name: str = "rank") -> Body:
    return next(each.body for each in made.compilation.manifests if (each.kind, each.name) == (kind, name))


def _server(made: Imported, name: str = "rank") -> Body:
    (container,) = _compiled(made, "Deployment", name)["spec"]["template"]["spec"]["containers"]
    return dict(container)


def _notes(made: Imported) -> str:
    return "\n".join(f"{each.source} {each.path}: {each.why} {each.remedy}" for each in made.losses)


def _reasons(made: Imported) -> dict[str, str]:
    return {str(each.given): each.note for each in made.outcomes if each.note}


_PROBES: tuple[Body | None, ...] = (
    None,
    {"httpGet": {"path": "/ready", "port": 8080}},
    {"httpGet": {"path": "/live", "port": 9000}, "periodSeconds": 60, "timeoutSeconds": 7, "failureThreshold": 90},
    {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTPS", "httpHeaders": [{"name": "X", "value": "1"}]}},
    {"httpGet": {"path": "/ready", "port": 8080}, "initialDelaySeconds": 300, "successThreshold": 1},
    {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 2, "timeoutSeconds": 9},
    {"httpGet": {"path": "/ready", "port": 8080}, "initialDelaySeconds": 9, "failureThreshold": 1},
    {"exec": {"command": ["check", "--all"]}, "failureThreshold": 1},
    {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    {"grpc": {"port": 8080, "service": "health"}},
)
_KINDS = ("startupProbe", "readinessProbe", "livenessProbe")


def _cases() -> Iterator[tuple[Body | None, Body | None, Body | None]]:
    """Yield every probe as each kind, beside others."""
    one = _PROBES[1]
    for probe in _PROBES:
        yield from ((probe, one, one), (one, probe, one), (one, one, probe), (probe, one, None), (None, one, probe))


@pytest.mark.parametrize("image", ["registry.example.com/rank:4", "registry.example.com/tritonserver:25.06-py3"])
def test_pods_have_the_probes_of_the_source_and_no_others(image: str, tmp_path: Path) -> None:
    given = []
    for index, case in enumerate(_cases()):
        name, probes = f"r{index}", dict(zip(_KINDS, case, strict=True))
        each = _deployment({"image": image, "args": ["serve"]}, name, replicas=1)
        container = each["spec"]["template"]["spec"]["containers"][0]
        container |= probes
        for key in [key for key in _KINDS if probes[key] is None]:
            del container[key]
        given.append(each)
    made = _import(tmp_path, *given)
    for each in given:
        cleaned = clean_object(each)["spec"]["template"]["spec"]["containers"][0]
        body = _compiled(made, "Deployment", each["metadata"]["name"])
        compiled = clean_object(body)["spec"]["template"]["spec"]["containers"][0]
        assert {key: compiled.get(key) for key in _KINDS} == {key: cleaned.get(key) for key in _KINDS}


def test_ports_of_probes_keep_their_numbers(tmp_path: Path) -> None:
    probe = {"httpGet": {"path": "/ready", "port": "web", "scheme": "HTTPS"}}
    made = _import(tmp_path, _deployment({"readinessProbe": probe, "livenessProbe": {"tcpSocket": {"port": "web"}}}))
    assert _server(made)["readinessProbe"] == {"httpGet": {**probe["httpGet"], "port": 8080}}
    assert _server(made)["livenessProbe"] == {"tcpSocket": {"port": 8080}}


def test_a_probe_of_another_host_asks_the_pod_as_often(tmp_path: Path) -> None:
    """Nothing else of it changes, and no probe of avactl takes its place."""
    probe = {"httpGet": {"path": "/ready", "port": 8080, "host": "127.0.0.1"}, "failureThreshold": 90}
    made = _import(tmp_path, _deployment({"startupProbe": probe}))
    found = _server(made)["startupProbe"]
    assert found["httpGet"] == {"path": "/ready", "port": 8080}
    assert found["failureThreshold"] == 90
    assert "not host 127.0.0.1" in _notes(made)


_COMMANDS: tuple[tuple[str, Body], ...] = (
    ("vllm/vllm-openai:v0.11.0", {"args": ["--model", "example/Small-7B", "--port", "8080"]}),
    ("vllm/vllm-openai:v0.11.0", {"args": ["--model", "/data/a", "--served-model-name", "a", "b"]}),
    ("vllm/vllm-openai:v0.11.0", {"command": ["sh", "-c", "sync && vllm serve /data/a --served-model-name a"]}),
    ("vllm/vllm-openai:v0.11.0", {"command": ["/opt/start"], "args": ["--model=/data/a", "--served-model-name=a"]}),
    ("lmsysorg/sglang:v0.5.3", {"args": ["--model-path=/a", "--served-model-name=a", "--host=127.0.0.1"]}),
    ("registry.example.com/tritonserver:25.06", {"args": ["tritonserver", "--model-repository=s3://a/b"]}),
    ("registry.example.com/tensorflow/serving:2.16", {"args": ["--model_base_path=gs://models/ctr"]}),
    ("ghcr.io/huggingface/text-generation-inference:2.4.0", {}),
)


@pytest.mark.parametrize(("image", "program"), _COMMANDS)
def test_a_program_that_avactl_would_not_write_the_same_way_runs_as_it_is(
    image: str, program: Body, tmp_path: Path
) -> None:
    made = _import(tmp_path, _deployment({"image": image, **program}))
    found = _server(made)
    assert {key: found[key] for key in ("command", "args") if key in found} == program
    if "text-generation" not in image:
        assert "runs as it is" in _notes(made)


_SAME: tuple[tuple[str, list[str]], ...] = (
    ("vllm/vllm-openai:v0.11.0", ["--model", "/data/a", "--served-model-name", "a", "--port=8080", "--dtype", "half"]),
    (
        "vllm/vllm-openai:v0.11.0",
        ["/data/a", "--served_model_name=a", "-tp", "1", "--port", "8080", "--max-num-seqs=9"],
    ),
    ("lmsysorg/sglang:v0.5.3", ["--model", "/data/a", "--served-model-name=a", "--host", "0.0.0.0", "--port=8080"]),
)


@pytest.mark.parametrize(("image", "args"), _SAME)
def test_a_known_command_line_becomes_a_runtime_with_all_its_options(
    image: str, args: list[str], tmp_path: Path
) -> None:
    program = {"command": ["python3", "-m", "sglang.launch_server"]} if "sglang" in image else {}
    if args[0].startswith("/"):
        program = {"command": ["vllm", "serve"]}
    made = _import(tmp_path, _deployment({"image": image, "args": args, **program}))
    (spec,) = [each for each in made.specs if each.kind == "ServingDeployment"]
    assert spec.spec["runtime"]["name"] in ("vllm", "sglang")
    found = _server(made)["args"]
    wanted = {"/data/a", "a", "8080", "1"} | {word for word in args if word in ("half", "9")}
    words = {part for word in found for part in word.split("=")}
    assert wanted <= words
    # avactl switches off what the source could ask of a hub: here it may.
    assert {"name": "HF_HUB_OFFLINE", "value": "0"} in _server(made)["env"]


def test_a_part_of_gpus_is_used_as_before(tmp_path: Path) -> None:
    """Without the option, vLLM runs on one GPU; avactl would split the model over both."""
    resources = {"limits": {"nvidia.com/gpu": 2, "memory": "8Gi", "cpu": "4"}}
    args = ["--model", "/data/a", "--served-model-name", "a"]
    made = _import(tmp_path, _deployment({"image": "vllm/vllm-openai:v0.11.0", "args": args, "resources": resources}))
    assert _server(made)["args"] == args


_AMOUNTS: tuple[Any, ...] = (0, 1, 3, "25%", "50%", "100%")


def _effect(strategy: Body, replicas: int) -> tuple[str, int, int]:
    """Return type, surge and unavailable pods of a strategy, as Kubernetes computes them."""
    rolling = {"maxSurge": "25%", "maxUnavailable": "25%", **(strategy.get("rollingUpdate") or {})}

    def pods(value: Any, rounding: Any) -> int:
        return value if isinstance(value, int) else int(rounding(int(value[:-1]) * replicas / 100))

    kind = strategy.get("type") or "RollingUpdate"
    if kind == "Recreate":
        return kind, 0, 0
    surge, unavailable = pods(rolling["maxSurge"], ceil), pods(rolling["maxUnavailable"], floor)
    return kind, surge, 1 if surge == unavailable == 0 else unavailable


@pytest.mark.parametrize("replicas", [1, 3, 4, 10])
def test_a_rollout_replaces_as_many_pods_as_before(replicas: int, tmp_path: Path) -> None:
    strategies: list[Body] = [{}, {"type": "Recreate"}]
    for surge, unavailable in itertools.product(_AMOUNTS, _AMOUNTS):
        if (surge, unavailable) != (0, 0):
            strategies.append({"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
    given = [
        _deployment(name=f"r{index}", replicas=replicas, strategy=each, labels={"app": f"r{index}"})
        for index, each in enumerate(strategies)
    ]
    made = _import(tmp_path, *given)
    for index, each in enumerate(strategies):
        spec = _compiled(made, "Deployment", f"r{index}")["spec"]
        assert _effect(spec["strategy"], replicas) == _effect(each, replicas), each


def test_settings_of_the_deployment_are_kept(tmp_path: Path) -> None:
    settings: Body = {"minReadySeconds": 20, "progressDeadlineSeconds": 4000, "revisionHistoryLimit": 3, "paused": True}
    given = _deployment(**settings, pod={"terminationGracePeriodSeconds": 300, "hostname": "rank"})
    given["metadata"] |= {"annotations": {"reload.example.com/auto": "true"}, "labels": {"tier": "online"}}
    body = _compiled(_import(tmp_path, given), "Deployment")
    assert settings.items() <= body["spec"].items()
    pod = body["spec"]["template"]["spec"]
    assert (pod["terminationGracePeriodSeconds"], pod["hostname"]) == (300, "rank")
    assert "lifecycle" not in pod["containers"][0]
    assert body["metadata"]["annotations"]["reload.example.com/auto"] == "true"
    assert body["metadata"]["labels"]["tier"] == "online"


@pytest.mark.parametrize("requests", [{}, {"memory": "4Gi"}, {"memory": "8Gi"}])
@pytest.mark.parametrize("limits", [{}, {"memory": "8Gi"}])
def test_no_limit_of_memory_is_made_up(requests: Body, limits: Body, tmp_path: Path) -> None:
    """A server whose limit is its request, or a guess, is killed while it loads its model."""
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": "4", **limits}, "requests": {"cpu": "4", **requests}}
    found = _server(_import(tmp_path, _deployment({"resources": resources})))["resources"]
    assert found["limits"].get("memory") == limits.get("memory")
    wanted = requests.get("memory", limits.get("memory"))
    assert wanted is None or found["requests"]["memory"] == wanted


def test_shared_memory_without_a_size_has_none(tmp_path: Path) -> None:
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    made = _import(tmp_path, _deployment({"volumeMounts": mounts}, pod={"volumes": volumes}))
    template = _compiled(made, "Deployment")["spec"]["template"]["spec"]
    (mount,) = [each for each in _server(made)["volumeMounts"] if each["mountPath"] == "/dev/shm"]
    (volume,) = [each for each in template["volumes"] if each["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory"}


def _targets(service: Body, container: Body) -> dict[tuple[int, str], Any]:
    """Return where the ports of a Service lead to, by number and name."""
    named = {each.get("name"): each["containerPort"] for each in container.get("ports") or ()}
    return {
        (each["port"], each.get("name")): named.get(each.get("targetPort"), each.get("targetPort") or each["port"])
        for each in service["spec"]["ports"]
    }


def test_a_service_of_the_same_name_keeps_ports_and_settings(tmp_path: Path) -> None:
    ports = [
        {"name": "http", "port": 80, "targetPort": "web", "appProtocol": "http"},
        {"name": "stats", "port": 9100, "targetPort": "stats"},
    ]
    settings: Body = {"sessionAffinity": "ClientIP", "publishNotReadyAddresses": True, "internalTrafficPolicy": "Local"}
    service = _service(ports=ports, **settings)
    service["metadata"]["annotations"] = {"dns.example.com/name": "rank"}
    container = {"ports": [{"containerPort": 8080, "name": "web"}, {"containerPort": 9100, "name": "stats"}]}
    made = _import(tmp_path, _deployment(container), service)
    compiled = _compiled(made, "Service")
    assert settings.items() <= compiled["spec"].items()
    assert compiled["metadata"]["annotations"]["dns.example.com/name"] == "rank"
    found = _targets(compiled, _server(made))
    assert found[80, "http"] == 8080
    assert found[9100, "stats"] == 9100
    assert "9100" in _notes(made)  # the NetworkPolicy does not admit it


def _selects(selector: Body, labels: Body) -> bool:
    return bool(selector) and selector.items() <= labels.items()


@pytest.mark.parametrize("labels", [{"app": "rank"}, {"app.kubernetes.io/name": "rank", "release": "a"}])
def test_a_service_of_another_name_stays_and_finds_the_pods(labels: Body, tmp_path: Path) -> None:
    made = _import(tmp_path, _deployment(labels=labels), _service("front", labels))
    service, deployment = _compiled(made, "Service", "front"), _compiled(made, "Deployment")
    template = deployment["spec"]["template"]
    assert _selects(service["spec"]["selector"], template["metadata"]["labels"])
    assert _targets(service, _server(made)) == {(80, "api"): 8080}
    # The selector must not find pods of others.
    assert not _selects(service["spec"]["selector"], {"app.kubernetes.io/name": "servingdeployment"})


def test_a_service_of_several_deployments_keeps_them_together(tmp_path: Path) -> None:
    """Its selector cannot be mended for both, so they stay manifests; by a label of their own it can stay."""
    labels = {"app.kubernetes.io/part-of": "stack"}
    one = _deployment(name="one", labels={**labels, "model": "one"})
    two = _deployment(name="two", labels={**labels, "model": "two"})
    made = _import(tmp_path, one, two, _service("all", labels))
    assert [each.kind for each in made.specs if each.given] == ["KubernetesObjects"] * 3
    assert "has the pods of other objects" in _reasons(made)["Deployment ads/one"]
    own = {"stack": "a"}
    one, two = (_deployment(name=name, labels={**own, "model": name}) for name in ("one", "two"))
    made = _import(tmp_path, one, two, _service("all", own))
    for name in ("one", "two"):
        template = _compiled(made, "Deployment", name)["spec"]["template"]
        assert _selects(_compiled(made, "Service", "all")["spec"]["selector"], template["metadata"]["labels"])


def test_two_budgets_never_select_the_same_pods(tmp_path: Path) -> None:
    """Kubernetes evicts no such pod."""
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "ads"},
        "spec": {"minAvailable": "60%", "selector": {"matchLabels": {"stack": "a"}}},
    }
    one = _deployment(name="one", labels={"stack": "a", "model": "one"})
    made = _import(tmp_path, one, budget)
    assert _compiled(made, "PodDisruptionBudget", "one")["spec"]["minAvailable"] == "60%"
    assert "maxUnavailable" not in _compiled(made, "PodDisruptionBudget", "one")["spec"]
    made = _import(tmp_path, one, _deployment(name="two", labels={"stack": "a", "model": "two"}), budget)
    budgets = [each.body for each in made.compilation.manifests if each.kind == "PodDisruptionBudget"]
    assert [each["metadata"]["name"] for each in budgets] == ["b"]


def _scaler(api: str = "autoscaling/v2", **spec: Any) -> Body:
    return {
        "apiVersion": api,
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaler", "namespace": "ads"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "rank"},
            "maxReplicas": 9,
            **spec,
        },
    }


def test_an_autoscaler_keeps_its_metrics(tmp_path: Path) -> None:
    target = {"type": "AverageValue", "averageValue": "5"}
    metrics = [{"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": target}}]
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 900}}
    made = _import(tmp_path, _deployment(), _scaler(minReplicas=2, metrics=metrics, behavior=behavior))
    found = _compiled(made, "HorizontalPodAutoscaler")["spec"]
    assert (found["minReplicas"], found["maxReplicas"]) == (2, 9)
    assert found["metrics"] == metrics
    assert found["behavior"] == behavior


@pytest.mark.parametrize(("api", "spec", "use"), [("v2", {}, 80), ("v1", {"targetCPUUtilizationPercentage": 55}, 55)])
def test_an_autoscaler_without_metrics_follows_the_cpu(api: str, spec: Body, use: int, tmp_path: Path) -> None:
    made = _import(tmp_path, _deployment(), _scaler(f"autoscaling/{api}", **spec))
    (metric,) = _compiled(made, "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["resource"]["target"]["averageUtilization"] == use


def test_an_autoscaler_that_stays_scales_the_deployment_of_the_spec(tmp_path: Path) -> None:
    """Names of specs are shorter than those of objects."""
    name = "a" * 60
    target = {"kind": "Deployment", "name": name}
    keda = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "s", "namespace": "ads"},
        "spec": {"scaleTargetRef": target, "maxReplicaCount": 4, "triggers": []},
    }
    made = _import(tmp_path, _deployment(name=name), keda)
    deployment = next(each for each in made.compilation.manifests if each.kind == "Deployment")
    assert _compiled(made, "ScaledObject", "s")["spec"]["scaleTargetRef"]["name"] == deployment.name != name
    assert "replicas" not in deployment.body["spec"]


def test_routes_from_outside_are_listed(tmp_path: Path) -> None:
    route = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "rank", "namespace": "ads"},
        "spec": {"rules": [{"backendRefs": [{"name": "rank", "port": 80}]}]},
    }
    made = _import(tmp_path, _deployment(), _service(), route)
    assert "HTTPRoute ads/rank spec.rules[0].backendRefs[0].name" in _notes(made)
    assert (80, "api") in _targets(_compiled(made, "Service"), _server(made))


_FOREIGN = {"app.kubernetes.io/name": "rank"}


@pytest.mark.parametrize(
    ("kind", "api", "spec"),
    [
        ("NetworkPolicy", "networking.k8s.io/v1", {"podSelector": {"matchLabels": _FOREIGN}, "policyTypes": []}),
        ("InferencePool", "inference.networking.k8s.io/v1", {"selector": {"matchLabels": _FOREIGN}}),
        ("InferencePool", "inference.networking.x-k8s.io/v1alpha2", {"selector": _FOREIGN}),
        ("Router", "example.com/v1", {"args": ["--pods", "app.kubernetes.io/name=rank,tier=a"]}),
        ("PodMonitor", "monitoring.coreos.com/v1", {"selector": {"matchLabels": _FOREIGN}}),
    ],
)
def test_what_finds_pods_by_labels_that_avactl_sets_is_listed(kind: str, api: str, spec: Body, tmp_path: Path) -> None:
    other = {"apiVersion": api, "kind": kind, "metadata": {"name": "a", "namespace": "ads"}, "spec": spec}
    assert f"{kind} ads/a spec" in _notes(_import(tmp_path, _deployment(labels=_FOREIGN), other))
    assert f"{kind} ads/a spec" not in _notes(_import(tmp_path, _deployment(), other))


def _rollout(strategy: Body, **more: Any) -> Body:
    made = _deployment(**more)
    made |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    made["spec"]["strategy"] = strategy
    return made


def _with_platform(tmp_path: Path) -> Path:
    (tmp_path / "avactl.yaml").write_text("")
    (tmp_path / "platform.yaml").write_text(PLATFORM)
    return tmp_path / "new"


_CANARY = {"canary": {"steps": [{"setWeight": 25}, {"pause": {"duration": "5m"}}, {"pause": {"duration": 60}}]}}


def test_a_canary_of_argo_has_the_same_steps(tmp_path: Path) -> None:
    steps = [*_CANARY["canary"]["steps"], {"setWeight": 50}, {"pause": {"duration": "1h"}}, {"setWeight": 100}]
    made = _import(_with_platform(tmp_path), _rollout({"canary": {"steps": steps}}))
    (spec,) = [each for each in made.specs if each.kind == "ServingDeployment"]
    assert spec.spec["rollout"] == {
        "canary": {"steps": [{"percent": 25, "pause": "6m"}, {"percent": 50, "pause": "1h"}]}
    }


def test_a_switch_of_argo_keeps_the_former_version_as_long(tmp_path: Path) -> None:
    switch = {"activeService": "rank", "scaleDownDelaySeconds": 600}
    made = _import(_with_platform(tmp_path), _rollout({"blueGreen": switch}), _service())
    (spec,) = [each for each in made.specs if each.kind == "ServingDeployment"]
    assert spec.spec["rollout"] == {"blueGreen": {"keep": "10m"}}


@pytest.mark.parametrize(
    ("strategy", "why"),
    [
        ({"canary": {"steps": [{"setWeight": 20}, {"pause": {}}]}}, "step 2 waits for a person"),
        ({"canary": {"steps": [{"pause": {"duration": "1m"}}, {"setWeight": 20}]}}, "step 1 is `pause`"),
        ({"canary": {"steps": [{"analysis": {}}]}}, "step 1 is `analysis`"),
        ({"canary": {"analysis": {"a": 1}, "steps": [{"setWeight": 1}, {"pause": {}}]}}, "of Argo; its step 2 waits"),
        ({"canary": {"stableService": "a", "canaryService": "b"}}, "has `canaryService`, `stableService` of Argo"),
        ({"canary": {"trafficRouting": {"nginx": {}}, "steps": []}}, "has `trafficRouting`"),
        ({"blueGreen": {"activeService": "rank", "autoPromotionEnabled": False}}, "a person switches"),
        ({"blueGreen": {"activeService": "rank", "previewService": "next"}}, "has `previewService`"),
        ({"blueGreen": {"activeService": "other"}}, "Service `other` is not named after it"),
    ],
)
def test_a_rollout_stays_with_the_reason(strategy: Body, why: str, tmp_path: Path) -> None:
    made = _import(_with_platform(tmp_path), _rollout(strategy), _service())
    note = _reasons(made)["Rollout ads/rank"]
    assert "ServingDeployment with `rollout` would take its place" in note
    assert why in note


def test_what_was_mended_for_a_spec_that_cannot_be_is_as_before(tmp_path: Path) -> None:
    """Without the serving daemon, the Rollout stays, and so does the selector of its Service."""
    labels = {"app.kubernetes.io/name": "rank"}
    made = _import(tmp_path, _rollout(_CANARY, labels=labels), _service("front", labels))
    assert "serving daemon" in _reasons(made)["Rollout ads/rank"]
    assert _compiled(made, "Service", "front")["spec"]["selector"] == labels
    assert {each.result for each in made.outcomes} == {ImportResult.raw}
    assert not made.losses


def _jobset(**spec: Any) -> Body:
    container = {
        "name": "a",
        "image": "registry.example.com/gpt:1",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": "64", "memory": "500Gi"}},
    }
    pod = {"restartPolicy": "Never", "containers": [container]}
    job = {"parallelism": 4, "completions": 4, "backoffLimit": 0, "template": {"spec": pod}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "gpt", "namespace": "ads"},
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": job}}], **spec},
    }


def test_a_jobset_of_one_kind_of_workers_is_a_training_job(tmp_path: Path) -> None:
    given = _jobset(failurePolicy={"maxRestarts": 3}, ttlSecondsAfterFinished=3600)
    container = given["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = ["--head=gpt-workers-0-0.gpt", "--next=gpt-workers-0-3.gpt", "--index=$(JOB_COMPLETION_INDEX)"]
    made = _import(tmp_path, given)
    (spec,) = [each for each in made.specs if each.kind == "TrainingJob"]
    assert spec.spec["args"] == [
        "--head=$(MASTER_ADDR)",
        "--next=gpt-worker-3.gpt-rendezvous",
        "--index=$(JOB_COMPLETION_INDEX)",
    ]
    assert (spec.spec["retries"], spec.spec["ttl"]) == (3, "1h")
    assert spec.spec["workers"]["replicas"] == 4


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        (["torchrun", "train.py"], True),
        (["torchrun", "--standalone", "--nproc-per-node=8", "train.py"], True),
        (["sh", "-c", "python -m torch.distributed.run --nnodes 1 train.py"], True),
        (["torchrun", "--nnodes=4", "train.py"], False),
        (["sh", "-c", "torchrun --nnodes $NODES train.py"], False),
        (["sh", "-c", "PET_NNODES=4 torchrun train.py"], False),
        (["python", "train.py"], False),
    ],
)
def test_torchrun_that_joins_no_pods_finds_no_variables(words: list[str], alone: bool, tmp_path: Path) -> None:
    """By PET_NNODES it would wait for the other pods; in a JobSet, it starts in each of them by itself."""
    given = _jobset()
    container = given["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    container.update(command=words, image="registry.example.com/torch:1")
    made = _import(tmp_path, given)
    (spec,) = [each for each in made.specs if each.kind == "TrainingJob"]
    assert (spec.spec["framework"] == "custom") is alone
    assert any("by itself, as before" in each.why for each in made.losses) is alone
    assert spec.spec["command"] == words
    pod = _compiled(made, "Job", f"{spec.name}-worker")["spec"]["template"]["spec"]
    names = {each["name"] for each in pod["containers"][0]["env"]}
    assert any(name.startswith("PET_") for name in names) is not alone


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"successPolicy": {"operator": "Any"}}, "when any of its Jobs has"),
        ({"coordinator": {"replicatedJob": "workers"}}, "none for `coordinator`"),
        ({"failurePolicy": {"rules": [{"name": "a", "action": "FailJobSet"}]}}, "rules of `failurePolicy`"),
        ({"replicatedJobs": []}, "a TrainingJob would take its place"),
    ],
)
def test_a_jobset_stays_with_the_reason(change: Body, why: str, tmp_path: Path) -> None:
    assert why in _reasons(_import(tmp_path, _jobset(**change)))["JobSet ads/gpt"]


@pytest.mark.parametrize("name", ["gpt-workers-0-4.gpt", "$(JOBSET_NAME)"])
def test_a_jobset_whose_program_needs_the_operator_stays(name: str, tmp_path: Path) -> None:
    given = _jobset()
    container = given["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [f"--head={name}"]
    source = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}}
    container["env"] = [{"name": "JOBSET_NAME", "valueFrom": source}] if "$" in name else []
    assert "Deployment" not in _kinds(_import(tmp_path, given).outcomes)
    assert _reasons(_import(tmp_path, given))["JobSet ads/gpt"]


def _kinds(outcomes: Iterable[Any]) -> list[str]:
    return [each.spec.kind for each in outcomes if each.spec is not None]


def test_malformed_objects_of_others_stay_with_a_reason(tmp_path: Path) -> None:
    text = (HERE / "servers-of-others.yaml").read_text()
    objects = list(yaml.safe_load_all(text))
    for each in objects:
        for key in list(each["spec"]):
            for value in (3, "a", [], [3], {"a": 3}):
                changed = {**each, "spec": {**each["spec"], key: value}}
                (outcome,) = _import(tmp_path, changed).outcomes
                assert outcome.result is ImportResult.raw
                assert outcome.note


def test_a_server_whose_port_is_another_container_s_stays(tmp_path: Path) -> None:
    """The probes of a program of gRPC ask its HTTP proxy; as one server, both would listen on one port."""
    given = _deployment({"ports": [{"containerPort": 9000}], "readinessProbe": {"httpGet": {"port": 8000}}})
    proxy = {"name": "proxy", "image": "registry.example.com/proxy:1", "ports": [{"containerPort": 8000}]}
    given["spec"]["template"]["spec"]["containers"].append(proxy)
    assert "port 8000 is that of container proxy" in _reasons(_import(tmp_path, given))["Deployment ads/rank"]


def test_a_sidecar_that_cannot_be_keeps_the_server_a_manifest(tmp_path: Path) -> None:
    """Without one of its containers, a server is another program."""
    given = _deployment()
    more = {"name": "proxy", "image": "registry.example.com/proxy:1", "ports": [{"containerPort": 8080}]}
    given["spec"]["template"]["spec"]["containers"].append(more)
    made = _import(tmp_path, given)
    assert "listens on port 8080 already" in _reasons(made)["Deployment ads/rank"]
    containers = _compiled(made, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in containers] == ["main", "proxy"]


@pytest.mark.parametrize(("product", "kept"), [("nvidia-a100-80gb", True), ("nvidia-tesla-a100", False)])
def test_a_model_of_several_sizes_keeps_its_size(product: str, kept: bool, tmp_path: Path) -> None:
    """`gpu: A100` alone would also mean the GPUs with 40 GB."""
    selector = {"cloud.google.com/gke-accelerator": product}
    made = _import(tmp_path, _deployment(pod={"nodeSelector": selector}))
    found = _compiled(made, "Deployment")["spec"]["template"]["spec"]["nodeSelector"]
    assert found["avactl.dev/gpu"] == "A100"
    assert (selector.items() <= found.items()) is kept


def test_ports_that_only_services_name_are_listed(tmp_path: Path) -> None:
    """Ports of containers are informative: a Service may lead to one that no container declares."""
    ports = [{"name": "api", "port": 80, "targetPort": "web"}, {"name": "grpc", "port": 9000}]
    for name in ("rank", "front"):
        made = _import(tmp_path, _deployment(), _service(name, ports=ports))
        assert any("admits requests to 8080, and not to port 9000" in each.why for each in made.losses)


def _inference_service(**predictor: Any) -> Body:
    container = {"image": "registry.example.com/iris:1", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    mode = {"serving.kserve.io/deploymentMode": "Standard"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", "namespace": "ads", "annotations": mode},
        "spec": {"predictor": predictor if "model" in predictor else {"containers": [container], **predictor}},
    }


@pytest.mark.parametrize(
    ("predictor", "why"),
    [
        ({"minReplicas": 5, "maxReplicas": 3}, "KServe refuses `minReplicas: 5` above `maxReplicas: 3`"),
        ({"minReplicas": -1}, "KServe refuses `minReplicas: -1`"),
        ({"maxReplicas": -1}, "KServe refuses `maxReplicas: -1`"),
        ({"minReplicas": 1.5}, "KServe refuses `minReplicas: 1.5`"),
        ({"workerSpec": {}}, "its predictor has `workerSpec`"),
        ({"model": {"modelFormat": {"name": "vLLM"}}}, "KServe chooses a server for `vLLM`, unless `runtime`"),
        ({"minReplicas": "2"}, 'KServe refuses `minReplicas: "2"`'),
        ({"minReplicas": True}, "KServe refuses `minReplicas: true`"),
        ({"sklearn": {"storageUri": "s3://a/b"}}, "KServe chooses a server for `sklearn`"),
        (
            {"model": {"modelFormat": {"name": "a"}, "runtime": "a", "storage": {"key": "a"}}},
            "`storage` of its model",
        ),
        ({"model": {"modelFormat": {"name": "a"}, "runtime": "a"}}, "its ServingRuntime a is not in this import"),
        ({"model": {"modelFormat": "sklearn"}}, "has no `modelFormat` with a name"),
        ({"model": {}}, "has no `modelFormat` with a name"),
        ({"model": "iris"}, "has no `modelFormat` with a name"),
    ],
)
def test_an_inference_service_stays_with_the_reason(predictor: Body, why: str, tmp_path: Path) -> None:
    assert why in _reasons(_import(tmp_path, _inference_service(**predictor)))["InferenceService ads/iris"]


@pytest.mark.parametrize(
    "predictor",
    [{"minReplicas": 5, "maxReplicas": 0}, {"minReplicas": 0, "maxReplicas": 3}, {"maxReplicas": 1}],
)
def test_numbers_of_replicas_that_kserve_accepts(predictor: Body, tmp_path: Path) -> None:
    assert "ServingDeployment" in _kinds(_import(tmp_path, _inference_service(**predictor)).outcomes)


def test_the_status_says_how_kserve_runs_an_inference_service(tmp_path: Path) -> None:
    """Without the annotation, KServe's settings decide."""
    given = {**_inference_service(), "status": {"deploymentMode": "Standard"}}
    del given["metadata"]["annotations"]
    assert "ServingDeployment" in _kinds(_import(tmp_path, given).outcomes)
    given["status"]["deploymentMode"] = "Knative"
    assert "Knative scales it" in _reasons(_import(tmp_path, given))["InferenceService ads/iris"]


def test_a_container_gets_the_model_that_its_variable_locates(tmp_path: Path) -> None:
    given = _inference_service()
    (container,) = given["spec"]["predictor"]["containers"]
    container["env"] = [{"name": "STORAGE_URI", "value": "pvc://models/iris/3/"}]
    pod = _compiled(_import(tmp_path, given), "Deployment", "iris-predictor")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert {"name": "STORAGE_URI", "value": "/mnt/models"} in server["env"]
    (mount,) = [each for each in server["volumeMounts"] if each["mountPath"] == "/mnt/models"]
    assert (mount["subPath"], mount["readOnly"]) == ("iris/3", True)
    claims = {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}
    assert claims[mount["name"]]["claimName"] == "models"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("gs://models/iris", "init container copies gs://models/iris"),
        ("hf://org/iris", "and it names no commit"),
        ("oci://registry.example.com/iris:1", "beside the server"),
        ("s3://models/iris", "its server is none that avactl knows"),
    ],
)
def test_a_container_whose_model_kserve_copies_stays(uri: str, why: str, tmp_path: Path) -> None:
    given = _inference_service()
    given["spec"]["predictor"]["containers"][0]["env"] = [{"name": "STORAGE_URI", "value": uri}]
    assert why in _reasons(_import(tmp_path, given))["InferenceService ads/iris"]


def test_an_inference_service_without_knative_has_one_pod_at_least(tmp_path: Path) -> None:
    text = (HERE / "kserve-standard.yaml").read_text().replace("minReplicas: 2", "minReplicas: 0")
    made = _import(tmp_path, *yaml.safe_load_all(text))
    lost = [each.why for each in made.losses if each.path == "spec.predictor.minReplicas" and "iris" in each.source]
    assert lost == ["without Knative, KServe runs at least one pod"]
