"""SGLang, an OpenAI-compatible server of large language models.

Sources, at 0.5.23: `sglang/srt/arg_groups/fields/` for the options, `sglang/srt/entrypoints/http_server.py` for
`/ready` and `/health`, `docs/advanced_features/lora.md` for adapters, `sglang/srt/entrypoints/engine.py` for several
machines, and `metrics_collector.py` and `http_request_metrics.py` in `sglang/srt/observability/` for metrics. For
disaggregated prefill: `sglang/srt/arg_groups/fields/disagg.py`, `sglang/srt/disaggregation/common/conn.py` and
sglang-router 0.3.2.
"""

from __future__ import annotations

from avactl.kinds.serving.llm import LEADER, RANK, adapter_path, machines_per_replica, model_options
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

BOOTSTRAP_PORT = 8998
"""Port of the bootstrap server, by which decode pods find prefill pods."""
DIST_INIT_PORT = 20000
"""Port of the leader at which the machines of a replica meet."""

OPTIONS = {
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "max_length": "--context-length",
    "gpu_memory": "--mem-fraction-static",
}


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> ModelServer:
    """Return the server of one model and its adapters."""
    llm, path = spec.llm, model_directory(spec)
    args = [
        f"--model-path={path}",
        f"--served-model-name={spec.served[0].name}",
        "--host=0.0.0.0",
        f"--port={ports['http']}",
        *model_options(spec, OPTIONS),
    ]
    if llm is not None and llm.adapters:
        args += ["--enable-lora", f"--max-lora-rank={llm.max_rank}"]
        # The number includes the model without an adapter.
        args.append(f"--max-loras-per-batch={llm.max_adapters + 1}")
        args += ["--lora-paths", *(f"{each.name}={adapter_path(each)}" for each in llm.adapters)]
    if spec.batching is not None:
        args.append(f"--max-running-requests={spec.batching.max_size}")
    args.append("--enable-metrics")
    if machines_per_replica(spec) > 1:
        args += [
            f"--nnodes={machines_per_replica(spec)}",
            f"--node-rank={RANK}",
            f"--dist-init-addr={LEADER}:{DIST_INIT_PORT}",
        ]
    return ModelServer(
        command=["python3", "-m", "sglang.launch_server"],
        args=args,
        ports=ports,
        model_path=path,
        ready="/ready",
        # It generates one token on an idle server, which takes at least a second.
        live="/health",
        metrics=(ports["http"], "/metrics"),
        env={"HF_HUB_OFFLINE": "1"},
        # A server with another rank than 0 answers no requests.
        worker=args if machines_per_replica(spec) > 1 else [],
        timeout=25,
    )


def _transfer(role: str) -> list[str]:
    return [
        f"--disaggregation-mode={role}",
        "--disaggregation-transfer-backend=nixl",
        f"--disaggregation-bootstrap-port={BOOTSTRAP_PORT}",
    ]


# Probes are requests, too, and fail while the server starts.
_RESPONSES, _NO_PROBES = "sglang:http_responses_total", ',endpoint!~"/health.*|/ready|/metrics"'
RUNTIME = ServingRuntime(
    title="SGLang",
    version="0.5.23",
    files="the directory with `config.json` and weights",
    ports={"http": 30000},
    startup=LLM_STARTUP,
    answer_timeout=LLM_ANSWER,
    takes_path=True,
    hub=True,
    needs_files=True,
    error_rate=share(rate(_RESPONSES, f'{_NO_PROBES},status_code=~"5.."'), rate(_RESPONSES, _NO_PROBES)),
    latency=p99("sglang:e2e_request_latency_seconds"),
    metrics={
        "queue": sum_of_pods("sglang:num_queue_reqs"),
        "running": sum_of_pods("sglang:num_running_reqs"),
        "tokens": rate_of_pods("sglang:generation_tokens_total", appears_late=True),
        "first_token": p95_of_service("sglang:time_to_first_token_seconds", appears_late=True),
        "per_token": p95_of_service("sglang:inter_token_latency_seconds", appears_late=True),
    },
    images=("lmsysorg/sglang",),
    model_options=("--model-path", "--model"),
    name_options=("--served-model-name",),
    programs=(("python3", "-m", "sglang.launch_server"), ("python", "-m", "sglang.launch_server")),
    image="lmsysorg/sglang",
    parser="argparse",
    server=server,
    batching=BatchingSupport(fields=("max_size",), why="SGLang adds each request to the running batch at once"),
    llm=LanguageModelSupport(
        options=OPTIONS,
        aliases={
            **dict.fromkeys(("--tp", "--tp-size"), "--tensor-parallel-size"),
            **dict.fromkeys(("--pp", "--pp-size"), "--pipeline-parallel-size"),
            **dict.fromkeys(("--dp", "--dp-size"), "--data-parallel-size"),
        },
        adapters=True,
        machines=True,
        even_stages=True,
        disaggregation=Disaggregation(
            router=("python3", "-m", "sglang_router.launch_router"),
            router_options=("--pd-disaggregation",),
            connector="sglang",
            port=BOOTSTRAP_PORT,
            options=_transfer,
            prefill_annotations={"sglang.ai/bootstrap-port": str(BOOTSTRAP_PORT)},
            same_stages=True,
        ),
    ),
)
