"""vLLM, an OpenAI-compatible server of large language models.

Sources, at 0.33.0: `vllm/engine/arg_utils.py` and `vllm/entrypoints/common/cli_args.py` for the options,
`vllm/entrypoints/serve/instrumentator/` for `/health` and `/metrics`, `docs/features/lora.md` for adapters,
`docs/serving/parallelism_scaling.md` and `vllm/entrypoints/cli/serve.py` for several machines,
`vllm/v1/metrics/loggers.py` for metrics, beside those of HTTP by prometheus-fastapi-instrumentator. For disaggregated
prefill: `vllm/config/kv_transfer.py`, `vllm/envs.py`, `vllm/distributed/kv_transfer/kv_connector/v1/nixl` for the
connector, its roles, its port and what it compares between two servers, and vllm-router 0.1.17.
"""

from __future__ import annotations

from avactl.kinds.serving.llm import LEADER, RANK, adapter_path, machines_per_replica, model_options
from avactl.kinds.serving.parts.prefill import PREFILL
from avactl.kinds.serving.queries import p95_of_service, p99, rate, rate_of_pods, share, sum_of_pods
from avactl.kinds.serving.runtime import (
    BatchingSupport,
    Disaggregation,
    LanguageModelSupport,
    ModelServer,
    ServingRuntime,
    model_directory,
)
from avactl.kinds.serving.runtime_facts import LLM_ANSWER, LLM_STARTUP
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.lowering import k8s
from avactl.spec.schema.base import EnvSource

MASTER_PORT = 29501
"""Port of the leader at which the machines of a replica meet; vLLM's default."""
NIXL_PORT = 5600
"""Port of the NIXL side channel, by which pods locate the KV cache of a prompt."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of LoRA adapters that `--max-lora-rank` takes, but 1. Source: `vllm/config/lora.py`."""

OPTIONS = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "max_length": "--max-model-len",
    "gpu_memory": "--gpu-memory-utilization",
}


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> ModelServer:
    """Return the server of one model and its adapters."""
    llm, path = spec.llm, model_directory(spec)
    shared = [path, f"--served-model-name={spec.served[0].name}", *model_options(spec, OPTIONS)]
    if llm is not None and llm.adapters:
        rank = next(rank for rank in RANKS if rank >= llm.max_rank)
        shared += ["--enable-lora", f"--max-lora-rank={rank}", f"--max-loras={llm.max_adapters}"]
    if spec.batching is not None:
        shared.append(f"--max-num-seqs={spec.batching.max_size}")
    env: dict[str, str | EnvSource] = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if machines_per_replica(spec) > 1:
        shared += [
            "--distributed-executor-backend=mp",
            f"--nnodes={machines_per_replica(spec)}",
            f"--node-rank={RANK}",
            f"--master-addr={LEADER}",
            f"--master-port={MASTER_PORT}",
        ]
        env["VLLM_HOST_IP"] = EnvSource(field="status.podIP")
    args = [*shared, "--host=0.0.0.0", f"--port={ports['http']}"]
    if llm is not None and llm.adapters:
        args += ["--lora-modules", *(f"{each.name}={adapter_path(each)}" for each in llm.adapters)]
    return ModelServer(
        command=["vllm", "serve"],
        args=args,
        ports=ports,
        model_path=path,
        # It listens only once the model is loaded and its kernels are compiled.
        ready="/health",
        live="/health",
        metrics=(ports["http"], "/metrics"),
        # The files are in the pod: without this, a missing one would be looked for on the Internet.
        env=env,
        worker=[*shared, "--headless"] if machines_per_replica(spec) > 1 else [],
        timeout=5,
    )


def _transfer(role: str) -> list[str]:
    # The handshake fails if version, model or vLLM differ. The decode pod then recomputes the prompt, as it does if the
    # prefill pod is gone; by default, the request would fail.
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if role == PREFILL else "kv_consumer",
        "kv_load_failure_policy": "recompute",
    }
    return [f"--kv-transfer-config={k8s.json_line(config)}"]


RUNTIME = ServingRuntime(
    title="vLLM",
    version="0.33.0",
    files="the directory with `config.json` and weights",
    ports={"http": 8000},
    startup=LLM_STARTUP,
    answer_timeout=LLM_ANSWER,
    takes_path=True,
    hub=True,
    needs_files=True,
    error_rate=share(rate("http_requests_total", ',status="5xx"'), rate("http_requests_total")),
    latency=p99("vllm:e2e_request_latency_seconds"),
    metrics={
        "queue": sum_of_pods("vllm:num_requests_waiting"),
        "running": sum_of_pods("vllm:num_requests_running"),
        "tokens": rate_of_pods("vllm:generation_tokens_total"),
        "first_token": p95_of_service("vllm:time_to_first_token_seconds"),
        "per_token": p95_of_service("vllm:request_time_per_output_token_seconds"),
    },
    images=("vllm-openai",),
    model_options=("serve", "--model"),
    name_options=("--served-model-name",),
    programs=(
        ("vllm", "serve"),
        ("python3", "-m", "vllm.entrypoints.openai.api_server"),
        ("python", "-m", "vllm.entrypoints.openai.api_server"),
    ),
    image="vllm/vllm-openai",
    parser="argparse",
    server=server,
    batching=BatchingSupport(fields=("max_size",), why="vLLM adds each request to the running batch at once"),
    llm=LanguageModelSupport(
        options=OPTIONS,
        aliases={
            "-tp": "--tensor-parallel-size",
            "-pp": "--pipeline-parallel-size",
            "-dp": "--data-parallel-size",
        },
        adapters=True,
        machines=True,
        disaggregation=Disaggregation(
            router=("vllm-router",),
            router_options=("--vllm-pd-disaggregation", "--kv-connector=nixl"),
            connector="nixlv2",
            port=NIXL_PORT,
            options=_transfer,
            env={
                "VLLM_NIXL_SIDE_CHANNEL_HOST": EnvSource(field="status.podIP"),
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(NIXL_PORT),
            },
            compares_models=True,
        ),
    ),
)
