"""ServingDeployment: what pods, servers and clients get."""

from __future__ import annotations

from typing import Any

import pytest

from avactl.program.registry import get_kind
from tests.kinds.on_base import Objects, api_server_says, compile_spec, objects, problems
from tools.controlplane import KubeClient

HEAD = """
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {name: classifier, team: vision}
spec:
"""
TENSORFLOW = f"""{HEAD}
  model: {{name: resnet50, version: "3", url: "s3://vision/models/resnet50/3", secret: models-s3, size: 2Gi}}
  runtime: {{name: tensorflowServing, image: "tensorflow/serving:2.19.1"}}
  resources: {{cpu: 4, memory: 8Gi}}
"""
TRITON = f"""{HEAD}
  model: {{name: detector, version: "4", url: "s3://vision/models/detector"}}
  runtime: {{name: triton, image: "nvcr.io/nvidia/tritonserver:25.06-py3"}}
  resources: {{cpu: 8, memory: 32Gi, gpus: 2, sharedMemory: 4Gi}}
"""
TEI = f"""{HEAD}
  model: {{name: retrieve, version: "1", url: "s3://vision/models/retrieve"}}
  runtime: {{name: tei, image: "ghcr.io/huggingface/text-embeddings-inference:1.9"}}
  resources: {{cpu: 4, memory: 8Gi, gpus: 1}}
"""
CUSTOM = f"""{HEAD}
  model: {{name: ranker, version: "7", url: "s3://vision/models/ranker/7"}}
  runtime: {{name: custom, image: "registry.example.com/ranker:7", port: 9000, args: [--fast]}}
  probe: {{path: /health, period: 5s, timeout: 1500ms, startup: 2m}}
"""


def pod(found: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = found["Deployment", "classifier"]["spec"]["template"]["spec"]
    return spec


def server(found: Objects) -> dict[str, Any]:
    container: dict[str, Any] = pod(found)["containers"][0]
    return container


def test_tensorflow_serving_finds_the_version_below_its_base_path() -> None:
    found = objects(TENSORFLOW + "  batching: {maxSize: 32, maxDelay: 5ms, queue: 50}\n")
    main = server(found)
    assert main["command"] == ["tensorflow_model_server"]
    assert "--model_base_path=/models/resnet50" in main["args"]
    assert "--model_name=resnet50" in main["args"]
    assert "--rest_api_port=8501" in main["args"]
    assert "--enable_batching=true" in main["args"]
    assert "--batching_parameters_file=/etc/avactl/batching.config" in main["args"]
    assert {"name": "model", "mountPath": "/models/resnet50/3"} in main["volumeMounts"]
    assert main["readinessProbe"]["httpGet"] == {"path": "/v1/models/resnet50/versions/3", "port": 8501}
    assert found["ConfigMap", "classifier-server"]["data"]["batching.config"].splitlines() == [
        "max_batch_size { value: 32 }",
        "batch_timeout_micros { value: 5000 }",
        "max_enqueued_batches { value: 50 }",
        "num_batch_threads { value: 4 }",
    ]


def test_the_model_is_fetched_with_its_secret_and_never_holds_a_value() -> None:
    fetch = pod(objects(TENSORFLOW))["initContainers"][0]
    env = {entry["name"]: entry for entry in fetch["env"]}
    assert env["SOURCE"]["value"] == "s3://vision/models/resnet50/3"
    assert env["TARGET"]["value"] == "/models/resnet50/3"
    assert env["RCLONE_S3_SECRET_ACCESS_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "models-s3"


def test_the_secret_of_the_teams_bucket_is_the_default() -> None:
    team = """
    apiVersion: avactl.dev/v1
    kind: Team
    metadata: {name: speech}
    spec:
      buckets:
        - {name: other, url: "s3://speech-models-old", secret: old}
        - {name: models, url: "s3://speech-models", secret: speech-s3}
    """.replace("\n    ", "\n")
    text = TENSORFLOW.replace("team: vision", "team: speech").replace(", secret: models-s3", "")
    found = objects(f"{team}\n---\n{text.replace('s3://vision', 's3://speech-models')}")
    secrets = {
        e["valueFrom"]["secretKeyRef"]["name"] for e in pod(found)["initContainers"][0]["env"] if "valueFrom" in e
    }
    assert secrets == {"speech-s3"}


def test_triton_serves_a_repository_and_is_asked_for_the_version() -> None:
    main = server(objects(TRITON))
    assert main["command"] == ["tritonserver"]
    assert main["args"][0] == "--model-repository=/models"
    assert {p["name"]: p["containerPort"] for p in main["ports"]} == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert {"name": "model", "mountPath": "/models/detector"} in main["volumeMounts"]
    assert main["readinessProbe"]["httpGet"]["path"] == "/v2/models/detector/versions/4/ready"
    assert main["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_text_embeddings_inference_bounds_batches_and_requests() -> None:
    main = server(objects(TEI + "  batching: {maxSize: 64, queue: 10}\n"))
    assert "command" not in main
    assert main["args"] == [
        "--model-id=/models/retrieve",
        "--served-model-name=retrieve",
        "--hostname=0.0.0.0",
        "--port=3000",
        "--prometheus-port=9000",
        "--tokenization-workers=4",
        "--max-batch-requests=64",
        "--max-concurrent-requests=640",
    ]
    assert {p["name"]: p["containerPort"] for p in main["ports"]} == {"http": 3000}
    assert main["readinessProbe"]["httpGet"] == {"path": "/health", "port": 3000}
    (found,) = problems(TEI + "  batching: {maxSize: 64, maxDelay: 2ms}\n")
    assert (found.code, found.message.partition(":")[0]) == ("without-effect", "`maxDelay` has no effect here")


@pytest.mark.parametrize("name", ["torchServe", "TorchServe", "torchserve"])
def test_torchserve_is_refused_with_what_to_use_instead(name: str) -> None:
    (found,) = problems(CUSTOM.replace("name: custom", f"name: {name}"))
    assert found.code == "invalid-value"
    assert "TorchServe is no longer supported: its repository is archived" in found.message
    assert "`triton`" in found.hint


def test_a_custom_server_is_told_where_its_model_is() -> None:
    main = server(objects(CUSTOM))
    assert "command" not in main
    assert main["args"] == ["--fast"]
    assert {"name": "AVACTL_MODEL_PATH", "value": "/models/ranker/7"} in main["env"]
    startup = main["startupProbe"]
    assert (startup["periodSeconds"], startup["timeoutSeconds"], startup["failureThreshold"]) == (5, 2, 24)
    assert startup["httpGet"] == {"path": "/health", "port": 9000}


def test_options_that_change_start_new_pods() -> None:
    def digest(text: str) -> str:
        metadata = objects(text)["Deployment", "classifier"]["spec"]["template"]["metadata"]
        return str(metadata["annotations"]["avactl.dev/config-digest"])

    assert digest(TENSORFLOW) == digest(TENSORFLOW)
    assert digest(TENSORFLOW) != digest(TENSORFLOW + "  batching: {maxSize: 8}\n")


def test_fixed_replicas_are_ours_and_scaled_ones_the_autoscalers() -> None:
    fixed = objects(TENSORFLOW + "  replicas: 3\n")
    assert fixed["Deployment", "classifier"]["spec"]["replicas"] == 3
    assert ("HorizontalPodAutoscaler", "classifier") not in fixed

    result = compile_spec(TENSORFLOW + "  replicas: {min: 2, max: 9, cpuUtilization: 55}\n")
    deployment = next(m for m in result.manifests if m.kind == "Deployment")
    assert "replicas" not in deployment.body["spec"]
    assert deployment.owned == ("spec.replicas",)
    scaler = next(m for m in result.manifests if m.kind == "HorizontalPodAutoscaler").body["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 9)
    assert scaler["metrics"][0]["resource"]["target"]["averageUtilization"] == 55


@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1)])
def test_a_rollout_never_waits_for_itself(surge: int, unavailable: int) -> None:
    found = objects(TENSORFLOW + f"  maxSurge: {surge}\n")
    rolling = found["Deployment", "classifier"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": surge, "maxUnavailable": unavailable}


def test_a_pod_that_stops_drains_first() -> None:
    found = objects(TENSORFLOW + "  drain: 90s\n")
    assert server(found)["lifecycle"] == {"preStop": {"sleep": {"seconds": 90}}}
    assert pod(found)["terminationGracePeriodSeconds"] > 90
    assert "lifecycle" not in server(objects(TENSORFLOW + "  drain: 0s\n"))


def test_different_classes_go_together_and_equal_ones_apart() -> None:
    found = objects(TRITON)
    labels = found["Deployment", "classifier"]["spec"]["template"]["metadata"]["labels"]
    assert labels["avactl.dev/resource-class"] == "gpu"
    affinity = pod(found)["affinity"]

    def classes(kind: str) -> list[str]:
        term = affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"]
        values: list[str] = term["labelSelector"]["matchExpressions"][0]["values"]
        return values

    assert classes("podAntiAffinity") == ["gpu"]
    assert classes("podAffinity") == ["cpu", "io"]


def test_clients_can_balance_themselves() -> None:
    found = objects(TENSORFLOW)
    assert found["Service", "classifier-headless"]["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in found["Service", "classifier"]["spec"]
    ports = {p["name"]: p["port"] for p in found["Service", "classifier"]["spec"]["ports"]}
    assert ports == {"http": 8501, "grpc": 8500}


def test_only_named_teams_may_call() -> None:
    team = """
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: web}
spec: {namespaces: [{name: web-a}, {name: web-b}]}
---
"""
    found = objects(f"{team}{TRITON}  exposeTo: [web]\n")
    own, exposed = found["NetworkPolicy", "classifier"]["spec"]["ingress"]

    def namespaces(rule: dict[str, Any]) -> list[str]:
        values: list[str] = rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"]
        return values

    assert namespaces(own) == ["vision"]
    assert namespaces(exposed) == ["web-a", "web-b"]
    assert {p["port"] for p in own["ports"]} == {8000, 8001, 8002}
    assert {p["port"] for p in exposed["ports"]} == {8000, 8001}


def test_the_platforms_namespaces_may_call_and_scrape() -> None:
    platform = """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: edge}
spec: {namespaces: [{name: gateway}]}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: vision}
---
"""
    text = CUSTOM.replace(', url: "s3://vision/models/ranker/7"', "")
    (rule,) = objects(platform + text, base=False)["NetworkPolicy", "classifier"]["spec"]["ingress"]
    names = rule["from"][0]["namespaceSelector"]["matchExpressions"][0]["values"]
    assert names == ["gateway", "vision"]


def test_pods_without_gpus_see_none_on_gpu_machines() -> None:
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    assert hidden in server(objects(TENSORFLOW))["env"]
    assert hidden not in server(objects(TRITON)).get("env", [])


def test_the_users_variable_wins() -> None:
    env = server(objects(CUSTOM + "  env: {AVACTL_MODEL_PATH: /elsewhere}\n"))["env"]
    assert [e["value"] for e in env if e["name"] == "AVACTL_MODEL_PATH"] == ["/elsewhere"]


def test_teams_of_another_cluster_cannot_call() -> None:
    more = """
apiVersion: avactl.dev/v1
kind: Cluster
metadata: {name: other}
---
apiVersion: avactl.dev/v1
kind: Team
metadata: {name: far}
spec: {clusters: [other]}
---
"""
    text = TENSORFLOW.replace("\nspec:\n", "\nspec:\n  cluster: main\n") + "  exposeTo: [far]\n"
    assert "other-cluster" in [d.code for d in problems(more + text)]


def test_facts_are_what_a_person_wants_to_know() -> None:
    result = compile_spec(TRITON + "  replicas: {min: 1, max: 2}\n")
    item = result.program.get("ServingDeployment", "classifier", "vision")
    facts = get_kind("ServingDeployment").facts(item, result.program)
    assert facts["replicas"] == "1 to 2"
    assert facts["GPUs"] == "2 to 4 V100"
    assert facts["model"] == "detector 4"


@pytest.mark.parametrize("text", [TENSORFLOW, TRITON, TEI, CUSTOM], ids=["tensorflow", "triton", "tei", "custom"])
def test_the_api_server_takes_every_object(text: str, kube: KubeClient, namespace: str) -> None:
    found = objects(text + "  replicas: {min: 1, max: 2}\n")
    assert api_server_says(found, kube, namespace) == []
