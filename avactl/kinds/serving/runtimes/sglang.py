"""SGLang, an OpenAI-compatible server of large language models.

Sources, at 0.5.23: `sglang/srt/arg_groups/fields/` for the options, `sglang/srt/entrypoints/http_server.py` for
`/ready` and `/health`, `docs/advanced_features/lora.md` for adapters, and `sglang/srt/entrypoints/engine.py` for
several machines.
"""

from __future__ import annotations

from avactl.kinds.serving.llm import LEADER, RANK, adapter_path, machines, parallelism, share
from avactl.kinds.serving.runtimes.server import LLM_STARTUP, Server
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.spec.schema.values import percent

PORTS = {"http": 30000}
DIST_INIT_PORT = 20000
"""Port of the leader at which the machines of a replica meet."""


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> Server:
    """Return the server of one model and its adapters."""
    model, llm, found = spec.served[0], spec.llm, parallelism(spec)
    path = spec.directory(model) if model.is_fetched else str(model.path)
    args = [
        f"--model-path={path}", f"--served-model-name={model.name}", "--host=0.0.0.0", f"--port={ports['http']}",
        f"--tensor-parallel-size={found.tensor}",
    ]  # fmt: skip
    if found.pipeline > 1:
        args.append(f"--pipeline-parallel-size={found.pipeline}")
    if llm is not None:
        if llm.max_length is not None:
            args.append(f"--context-length={llm.max_length}")
        if llm.gpu_memory is not None:
            args.append(f"--mem-fraction-static={share(percent(llm.gpu_memory))}")
        if llm.adapters:
            args += ["--enable-lora", f"--max-lora-rank={llm.max_rank}"]
            # The number includes the model without an adapter.
            args.append(f"--max-loras-per-batch={llm.max_adapters + 1}")
            args += ["--lora-paths", *(f"{each.name}={adapter_path(each)}" for each in llm.adapters)]
    if spec.batching is not None:
        args.append(f"--max-running-requests={spec.batching.max_size}")
    args.append("--enable-metrics")
    if machines(spec) > 1:
        args += [
            f"--nnodes={machines(spec)}", f"--node-rank={RANK}", f"--dist-init-addr={LEADER}:{DIST_INIT_PORT}",
        ]  # fmt: skip
    return Server(
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
        worker=args if machines(spec) > 1 else [],
        startup=LLM_STARTUP,
        timeout=25,
    )
