"""ServingDeployment: several models and versions, and language models with their adapters."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest

from avactl.compiler import compile_tree
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.on_base import Objects, api_server_says, objects
from tests.kinds.test_serving import HEAD, pod, server
from tests.test_invalid import BASE
from tools.controlplane import KubeClient

TENSORFLOW = f"""{HEAD}
  models:
    - {{name: resnet50, versions: ["3", "4"], labels: {{stable: "3"}}, url: "s3://vision/models/resnet50", secret: old}}
    - {{name: unet, version: "7", url: "s3://vision/unet/7", secret: models-s3}}
  runtime: {{name: tensorflowServing, image: "tensorflow/serving:2.19.1"}}
"""
TRITON = f"""{HEAD}
  models: [{{name: detector, versions: ["3", "4"], url: "s3://vision/models/detector", secret: models-s3}}]
  runtime: {{name: triton, image: "nvcr.io/nvidia/tritonserver:25.06-py3"}}
"""
VLLM = f"""{HEAD}
  model: {{name: chat, version: "1", url: "s3://vision/models/chat", secret: models-s3, size: 40Gi}}
  runtime: {{name: vllm, image: "vllm/vllm-openai:v0.33.0"}}
  resources: {{cpu: 8, memory: 64Gi, gpus: 4, sharedMemory: 16Gi}}
  llm:
    maxLength: 8192
    gpuMemory: 85%
    maxRank: 20
    adapters: [{{name: sql, url: "s3://vision/adapters/sql", secret: models-s3}}]
  batching: {{maxSize: 64}}
"""
SGLANG = VLLM.replace("name: vllm", "name: sglang").replace("vllm/vllm-openai:v0.33.0", "lmsysorg/sglang:v0.5.23")


def model_list(found: Objects) -> dict[str, str]:
    data: dict[str, str] = found["ConfigMap", "classifier-models"]["data"]
    return data


def test_tensorflow_serving_reads_its_models_again() -> None:
    found = objects(TENSORFLOW)
    main = server(found)
    assert "--model_config_file=/models/models.config" in main["args"]
    assert "--model_config_file_poll_wait_seconds=10" in main["args"]
    assert not any(arg.startswith(("--model_name", "--model_base_path")) for arg in main["args"])
    data = model_list(found)
    assert data["resnet50.sources"].splitlines() == [
        "resnet50/3 s3_old:vision/models/resnet50/3 all",
        "resnet50/4 s3_old:vision/models/resnet50/4 all",
    ]
    assert data["unet.sources"] == "unet/7 s3_models_s3:vision/unet/7 all\n"
    assert "model_version_policy { specific { versions: 3 versions: 4 } }" in data["resnet50.config"]
    assert 'version_labels { key: "stable" value: 3 }' in data["resnet50.config"]
    assert 'base_path: "/models/live/unet"' in data["unet.config"]
    assert data["unet.health"] == "/v1/models/unet/versions/7\n"


def test_triton_scans_its_repository() -> None:
    found = objects(TRITON)
    args = server(found)["args"]
    assert {"--model-repository=/models/live", "--model-control-mode=poll"} <= set(args)
    assert server(found)["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert "--strict-readiness=false" in args
    assert model_list(found)["detector.sources"].splitlines() == [
        "detector s3_models_s3:vision/models/detector unnumbered",
        "detector/3 s3_models_s3:vision/models/detector/3 all",
        "detector/4 s3_models_s3:vision/models/detector/4 all",
    ]


def test_a_sidecar_follows_the_list() -> None:
    containers = pod(objects(TENSORFLOW))["initContainers"]
    first, follow = containers
    assert (first["name"], follow["name"], follow["restartPolicy"]) == ("fetch-models", "models", "Always")
    assert follow["readinessProbe"]["exec"]["command"] == ["test", "-f", "/models/work/ready"]
    env = {entry["name"]: entry for entry in follow["env"]}
    assert env["STORES"]["value"] == "S3_MODELS_S3 S3_OLD"
    assert env["RCLONE_CONFIG_S3_OLD_TYPE"]["value"] == "s3"
    assert env["RCLONE_CONFIG_S3_OLD_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "old"
    assert "ONCE" not in env


@pytest.mark.parametrize("text", [TENSORFLOW, TRITON], ids=["tensorflow", "triton"])
def test_a_new_model_or_version_starts_no_pods(text: str) -> None:
    more = text.replace('versions: ["3", "4"]', 'versions: ["3", "5"]').replace(
        "  runtime:", '    - {name: new, version: "1", url: "s3://vision/new", secret: models-s3}\n  runtime:'
    )
    if "models: [" in text:
        more = text.replace('versions: ["3", "4"]', 'versions: ["3", "5"]')
    before, after = objects(text), objects(more)
    assert model_list(before) != model_list(after)
    assert before["Deployment", "classifier"] == after["Deployment", "classifier"]


def test_a_model_of_a_cached_dataset_is_mounted() -> None:
    service = VLLM.replace('url: "s3://vision/models/chat", secret: models-s3, size: 40Gi', "dataset: {name: imagenet}")
    found = objects(service.partition("  llm:")[0])
    mounts = {mount["mountPath"]: mount for mount in server(found)["volumeMounts"]}
    assert mounts["/models/chat"]["readOnly"] is True
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod(found)["volumes"] if "persistentVolumeClaim" in v]
    assert claims == ["dataset-imagenet-v1"]
    assert "initContainers" not in pod(found)


def test_pods_wait_for_the_models_of_cached_datasets() -> None:
    service = VLLM.replace('url: "s3://vision/models/chat", secret: models-s3, size: 40Gi', "dataset: {name: imagenet}")
    service = service.partition("  llm:")[0] + "  startWhen: {warm: 90%}\n"
    daemons = BASE["base/platform.yaml"].replace(
        b"metadata: {name: main}\nspec:\n",
        b"metadata: {name: main}\nspec:\n  daemons: {scheduler: true, cache: true}\n",
    )
    result = compile_tree(MemoryTree({"base.yaml": daemons, "spec.yaml": service.encode()}))
    template = next(
        m.body["spec"]["template"] for m in result.manifests if (m.kind, m.name) == ("Deployment", "classifier")
    )
    assert template["metadata"]["annotations"]["avactl.dev/start-when-warm"] == '{"avactl-system/imagenet/v1":90}'


def test_vllm_is_told_model_split_and_adapters() -> None:
    main = server(objects(VLLM))
    assert main["command"] == ["vllm", "serve"]
    assert main["args"] == [
        "/models/chat",
        "--served-model-name=chat",
        "--tensor-parallel-size=4",
        "--max-model-len=8192",
        "--gpu-memory-utilization=0.85",
        "--enable-lora",
        "--max-lora-rank=32",
        "--max-loras=4",
        "--max-num-seqs=64",
        "--host=0.0.0.0",
        "--port=8000",
        "--lora-modules",
        "sql=/adapters/sql",
    ]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in main["env"]
    assert main["startupProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert main["startupProbe"]["periodSeconds"] * main["startupProbe"]["failureThreshold"] == 1800
    assert {"name": "adapter-0", "mountPath": "/adapters/sql"} in main["volumeMounts"]


def test_sglang_is_told_model_split_and_adapters() -> None:
    main = server(objects(SGLANG))
    assert main["args"] == [
        "--model-path=/models/chat",
        "--served-model-name=chat",
        "--host=0.0.0.0",
        "--port=30000",
        "--tensor-parallel-size=4",
        "--context-length=8192",
        "--mem-fraction-static=0.85",
        "--enable-lora",
        "--max-lora-rank=20",
        "--max-loras-per-batch=5",
        "--lora-paths",
        "sql=/adapters/sql",
        "--max-running-requests=64",
        "--enable-metrics",
    ]
    assert main["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert main["livenessProbe"]["timeoutSeconds"] == 25


def test_a_model_in_the_image_is_not_fetched() -> None:
    text = VLLM.replace('url: "s3://vision/models/chat", secret: models-s3, size: 40Gi', "path: /opt/chat")
    found = objects(text.partition("  llm:")[0])
    assert server(found)["args"][0] == "/opt/chat"
    assert "initContainers" not in pod(found)


@pytest.mark.parametrize("text", [TENSORFLOW, TRITON, VLLM, SGLANG], ids=["tensorflow", "triton", "vllm", "sglang"])
def test_the_api_server_takes_every_object(text: str, kube: KubeClient, namespace: str) -> None:
    found: dict[tuple[str, str], dict[str, Any]] = objects(text)
    assert api_server_says(found, kube, namespace) == []


def test_the_deadline_of_a_rollout_grows_with_the_files_that_pods_copy() -> None:
    def deadline(text: str) -> int:
        found: int = objects(text)["Deployment", "classifier"]["spec"]["progressDeadlineSeconds"]
        return found

    start, images = 1800 + 300, 900
    copied = 40 * 1024 // 20 + 1024 / 20  # of the model and the adapter, at 20 MiB/s
    assert deadline(VLLM) == start + images + ceil(copied)
    assert deadline(VLLM.replace("size: 40Gi", "size: 600Gi")) - deadline(VLLM) == 560 * 1024 // 20
    own = f"{VLLM}  pod: {{initContainers: [{{name: warm, image: 'warm:1'}}]}}\n"
    assert deadline(own) == deadline(VLLM) + 900
    assert deadline(TRITON) == 600 + 300 + images + 100 * 1024 // 20
    # The files of an image are there once it is pulled.
    path = VLLM.replace('url: "s3://vision/models/chat", secret: models-s3, size: 40Gi', "path: /opt/chat")
    assert deadline(path) == start + images + ceil(1024 / 20)
