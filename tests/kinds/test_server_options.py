"""Options of model servers by release, and those that avactl writes itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from avactl.compiler import compile_tree
from avactl.kinds.serving.runtime import runtimes
from avactl.kinds.serving.server_arguments import options_by_release
from avactl.spec.repository.tree import MemoryTree
from tests.test_invalid import BASE
from tests.work import calls
from tools.server_options import ALWAYS, GIT_SERVERS

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "serving"
SERVERS = {name: each for name, each in runtimes().items() if each.image}
ALWAYS_OF = {"vllm": ALWAYS, "sglang": ALWAYS, **{each.name: each.always for each in GIT_SERVERS}}


@pytest.mark.parametrize("server", SERVERS)
def test_every_release_has_options(server: str) -> None:
    releases = options_by_release(server)
    numbers = [tuple(map(int, release.split("."))) for release in releases]
    assert numbers == sorted(numbers)
    assert all(names >= ALWAYS_OF[server] for names in releases.values())


def test_all_but_custom_servers_have_a_table() -> None:
    assert set(SERVERS) == set(ALWAYS_OF) == {name for name, each in runtimes().items() if not each.is_generic}
    assert options_by_release("custom") == {}


def test_the_newest_releases_have_what_avactl_writes() -> None:
    seen = set()
    for path in GOLDEN.glob("*.yaml"):
        for body in yaml.safe_load_all(path.read_text()):
            template = body.get("spec", {}).get("template", {}).get("spec", {}) if body else {}
            for container in template.get("containers", ()):
                server = next((name for name, each in SERVERS.items() if each.image in container["image"]), None)
                for word in container.get("args", ()) if server else ():
                    if option := re.match(r"--(?:no-)?([a-z][\w-]*)", word):
                        seen.add((server, option[1]))
    newest = {server: list(options_by_release(server).values())[-1] for server in SERVERS}
    assert {(server, name) for server, name in seen if name not in newest[str(server)]} == set()
    assert {server for server, _ in seen} == set(SERVERS)
    assert len(seen) > 40


@pytest.mark.parametrize(
    ("server", "image", "option", "told"),
    [
        (
            "vllm",
            "vllm/vllm-openai:v0.9.1",
            "--modle",
            "error vLLM 0.9 has no option `--modle`: did you mean `--model`?",
        ),
        (
            "vllm",
            "mirror.example.com/vllm/vllm-openai:v0.4.2",
            "--reasoning-parser",
            "warning vLLM 0.4 has no option `--reasoning-parser`: releases from 0.7 on have it",
        ),
        (
            "vllm",
            "registry.example.com/llm:1",
            "--modle",
            "warning vLLM up to 0.33 has no option `--modle`: did you mean `--model`?",
        ),
        ("vllm", "registry.example.com/llm:1", "--reasoning-parser", ""),
        ("vllm", "vllm/vllm-openai:v0.9.1", "--enforce_eager", ""),
        ("vllm", "vllm/vllm-openai:v0.9.1", "--no-enable-prefix-caching", ""),
        ("vllm", "vllm/vllm-openai:v0.9.1", "--hf-overrides.rope_theta=1", ""),
        ("vllm", "vllm/vllm-openai:v0.9.1", "--max-num-batched", ""),
        ("vllm", "vllm/vllm-openai:v0.9.1", "$(EXTRA)", ""),
        ("vllm", "vllm/vllm-openai:v0.9.1", "--$(OPTION)=1", ""),
        ("sglang", "lmsysorg/sglang:v0.4.6.post1-cu124", "--disable-radix", ""),
        (
            "sglang",
            "lmsysorg/sglang:v0.4.6.post1-cu124",
            "--mem-fracton=0.8",
            "error SGLang 0.4.6 has no option `--mem-fracton`: did you mean `--mem-fraction-static`?",
        ),
        # Its parser takes names as they are.
        ("tei", "ghcr.io/huggingface/text-embeddings-inference:89-1.9.2", "--max-batch-tokens=8192", ""),
        (
            "tei",
            "ghcr.io/huggingface/text-embeddings-inference:89-1.9.2",
            "--max_batch_tokens=8192",
            "error Text Embeddings Inference 1.9 has no option `--max_batch_tokens`: did you mean "
            "`--max-batch-tokens`?",
        ),
        (
            "tei",
            "ghcr.io/huggingface/text-embeddings-inference:1.6",
            "--dense-path=2_Dense",
            "warning Text Embeddings Inference 1.6 has no option `--dense-path`: releases from 1.8 on have it",
        ),
        ("triton", "nvcr.io/nvidia/tritonserver:25.06-py3", "--log-verb=1", ""),
        ("triton", "nvcr.io/nvidia/tritonserver:25.06-trtllm-python-py3", "--http-max-input-size=67108864", ""),
        (
            "triton",
            "nvcr.io/nvidia/tritonserver:24.05-py3",
            "--http-max-input-size=67108864",
            "warning Triton 24.05 has no option `--http-max-input-size`: releases from 25.06 on have it",
        ),
        (
            "triton",
            "nvcr.io/nvidia/tritonserver:25.06-py3",
            "--grpc_infer_thread_count=4",
            "error Triton 25.06 has no option `--grpc_infer_thread_count`: did you mean `--grpc-infer-thread-count`?",
        ),
        ("tensorflowServing", "tensorflow/serving:2.19.1-gpu", "--mixed_precision=bfloat16", ""),
        (
            "tensorflowServing",
            "tensorflow/serving:2.19.1-gpu",
            "--rest-api-timeout-in-ms=1",
            "error TensorFlow Serving 2.19 has no option `--rest-api-timeout-in-ms`: did you mean "
            "`--rest_api_timeout_in_ms`?",
        ),
        (
            "tensorflowServing",
            "registry.example.com/serving:1",
            "--enable_batch",
            "warning TensorFlow Serving up to 2.20 has no option `--enable_batch`: did you mean `--enable_batching`?",
        ),
    ],
)
def test_options_that_the_release_does_not_have(server: str, image: str, option: str, told: str) -> None:
    text = f"""apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: chat, team: vision}}
spec:
  runtime: {{name: {server}, image: "{image}", args: ["{option}"]}}
  model: {{name: chat, version: "1", url: "s3://imagenet/chat"}}
  resources: {{gpus: 1}}
"""
    problems = compile_tree(MemoryTree({**BASE, "chat.yaml": text.encode()})).diagnostics
    found = [f"{d.severity} {d.message}: {d.hint}" for d in problems if d.code == "unknown-option"]
    assert found == ([told] if told else [])


GPUS = """apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: chat, team: vision}}
spec:
  runtime: {{name: {server}, image: "registry.example.com/llm:1", args: {args}}}
  model: {{name: chat, version: "1", url: "s3://imagenet/chat"}}
  llm: {{gpuMemory: 90%}}
  resources: {{gpus: 4}}
"""


@pytest.mark.parametrize(
    ("server", "args", "told"),
    [
        ("vllm", ["--tensor-parallel-size", "2"], "conflicting-keys"),
        ("vllm", ["--tensor_parallel_size=2"], "conflicting-keys"),
        ("vllm", ["--tensor-parallel", "2"], "conflicting-keys"),
        ("vllm", ["-tp=2"], "conflicting-keys"),
        ("vllm", ["--tensor-parallel-size", "04"], ""),
        ("vllm", ["--gpu-memory-utilization", "0.90"], ""),
        ("vllm", ["--gpu-memory-utilization", "0.8"], "conflicting-keys"),
        ("vllm", ["--max-model-len", "4096"], ""),
        ("vllm", ["--data-parallel-size", "4"], "parallelism-mismatch"),
        ("vllm", ["--data_parallel_size", "64"], "parallelism-mismatch"),
        ("vllm", ["--data-parallel-size", "4", "--tensor-parallel-size", "1"], ""),
        ("vllm", ["--data-parallel-size=2", "-tp", "2"], ""),
        ("vllm", ["--data-parallel-size", "\u00b2"], ""),
        ("vllm", ["--data-parallel-size", "9" * 5000], ""),
        ("vllm", ["--no_enable_prefix_caching"], ""),
        ("vllm", ["--", "--nothing"], ""),
        ("sglang", ["--dp", "4"], "parallelism-mismatch"),
        ("sglang", ["--dp", "4", "--enable-dp-attention"], ""),
    ],
)
def test_arguments_and_the_gpus_of_a_replica(server: str, args: list[str], told: str) -> None:
    text = GPUS.format(server=server, args=json.dumps(args))
    problems = compile_tree(MemoryTree({**BASE, "chat.yaml": text.encode()})).diagnostics
    assert [d.code for d in problems] == ([told] if told else [])


def test_options_of_prefill_servers() -> None:
    text = GPUS.format(server="vllm", args="[]").replace("llm:1", "vllm/vllm-openai:v0.33.0")
    text = text.replace("{gpuMemory: 90%}", '{prefill: {router: {image: "r:1"}, args: [--enforce-eagr]}}')
    problems = compile_tree(MemoryTree({**BASE, "chat.yaml": text.encode()})).diagnostics
    (found,) = [d for d in problems if d.code == "unknown-option"]
    assert (found.span.line, found.hint) == (7, "did you mean `--enforce-eager`?")


def test_arguments_of_another_program() -> None:
    text = GPUS.format(server="vllm", args='["--my-flag", "-tp", "8"]').replace(
        ", args", ", command: [/start.sh], args"
    )
    assert compile_tree(MemoryTree({**BASE, "chat.yaml": text.encode()})).diagnostics == ()


def test_thousands_of_unknown_options_are_little_work() -> None:
    text = GPUS.format(server="vllm", args=json.dumps([f"--x{number}" for number in range(3000)]))
    tree = MemoryTree({**BASE, "chat.yaml": text.encode()})
    compile_tree(tree)  # imports modules
    assert calls(lambda: compile_tree(tree)) < 2_000 * 3_000
    assert len(compile_tree(tree).diagnostics) == 3000
