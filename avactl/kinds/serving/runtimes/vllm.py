"""vLLM, an OpenAI-compatible server of large language models.

Sources, at 0.33.0: `vllm/engine/arg_utils.py` and `vllm/entrypoints/common/cli_args.py` for the options,
`vllm/entrypoints/serve/instrumentator/` for `/health` and `/metrics`, `docs/features/lora.md` for adapters,
`docs/serving/parallelism_scaling.md` and `vllm/entrypoints/cli/serve.py` for several machines.
"""

from __future__ import annotations

from avactl.kinds.serving.llm import LEADER, RANK, Parallelism, adapter_path, machines, parallelism, share
from avactl.kinds.serving.runtimes.server import LLM_STARTUP, Server
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.spec.schema.base import EnvSource
from avactl.spec.schema.values import percent

PORTS = {"http": 8000}
MASTER_PORT = 29501
"""Port of the leader at which the machines of a replica meet; vLLM's default."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of LoRA adapters that `--max-lora-rank` takes, but 1. Source: `vllm/config/lora.py`."""


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> Server:
    """Return the server of one model and its adapters."""
    model, llm, found = spec.served[0], spec.llm, parallelism(spec)
    path = spec.directory(model) if model.is_fetched else str(model.path)
    shared = [path, f"--served-model-name={model.name}", *_parallel(found)]
    if llm is not None:
        if llm.max_length is not None:
            shared.append(f"--max-model-len={llm.max_length}")
        if llm.gpu_memory is not None:
            shared.append(f"--gpu-memory-utilization={share(percent(llm.gpu_memory))}")
        if llm.adapters:
            rank = next(rank for rank in RANKS if rank >= llm.max_rank)
            shared += ["--enable-lora", f"--max-lora-rank={rank}", f"--max-loras={llm.max_adapters}"]
    if spec.batching is not None:
        shared.append(f"--max-num-seqs={spec.batching.max_size}")
    env: dict[str, str | EnvSource] = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if machines(spec) > 1:
        shared += [
            "--distributed-executor-backend=mp", f"--nnodes={machines(spec)}", f"--node-rank={RANK}",
            f"--master-addr={LEADER}", f"--master-port={MASTER_PORT}",
        ]  # fmt: skip
        env["VLLM_HOST_IP"] = EnvSource(field="status.podIP")
    args = [*shared, "--host=0.0.0.0", f"--port={ports['http']}"]
    if llm is not None and llm.adapters:
        args += ["--lora-modules", *(f"{each.name}={adapter_path(each)}" for each in llm.adapters)]
    return Server(
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
        worker=[*shared, "--headless"] if machines(spec) > 1 else [],
        startup=LLM_STARTUP,
        timeout=5,
    )


def _parallel(found: Parallelism) -> list[str]:
    args = [f"--tensor-parallel-size={found.tensor}"]
    if found.pipeline > 1:
        args.append(f"--pipeline-parallel-size={found.pipeline}")
    return args
