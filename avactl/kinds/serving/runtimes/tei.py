"""Text Embeddings Inference (TEI), a server of embedding models, rerankers and text classifiers.

Sources, at 1.9.3: `router/src/main.rs` for the options, `router/src/http/server.rs` for `/health`, `/metrics` and the
counters of requests, `router/src/lib.rs` for `te_request_duration`, `core/src/infer.rs` and `core/src/queue.rs` for
failures and the queue, `backends/candle/src/lib.rs` for the one GPU, `Dockerfile-cuda-all` for the entry point.
"""

from __future__ import annotations

from avactl.kinds.serving.queries import p99, rate, share_of_failures, sum_of_pods
from avactl.kinds.serving.runtime import BatchingSupport, ModelServer, ServingRuntime, cores, model_directory
from avactl.kinds.serving.spec import ServingDeploymentSpec

PROMETHEUS_PORT = 9000


def server(spec: ServingDeploymentSpec, ports: dict[str, int]) -> ModelServer:
    """Return the server of one model."""
    path = model_directory(spec)
    args = [
        f"--model-id={path}",
        f"--served-model-name={spec.served[0].name}",
        # Each option can be a variable, too: HOSTNAME is set in every pod, and PROMETHEUS_PORT beside a Service
        # `prometheus`, as a URL, with which the server does not start.
        "--hostname=0.0.0.0",
        f"--port={ports['http']}",
        f"--prometheus-port={PROMETHEUS_PORT}",
        f"--tokenization-workers={cores(spec)}",
    ]
    if spec.batching is not None:
        batching = spec.batching
        args += [
            f"--max-batch-requests={batching.max_size}",
            f"--max-concurrent-requests={batching.max_size * batching.queue}",
        ]
    return ModelServer(
        # The entry point of the image for all GPUs chooses the program for the GPU of the machine.
        command=[],
        args=args,
        ports=ports,
        model_path=path,
        # It listens only once the model is loaded and warm. The check waits for the batch that runs.
        ready="/health",
        live="/health",
        # Servers of HTTP do not open the port of --prometheus-port.
        metrics=(ports["http"], "/metrics"),
        timeout=5,
    )


RUNTIME = ServingRuntime(
    title="Text Embeddings Inference",
    version="1.9.3",
    files="the directory with `config.json`, `tokenizer.json` and weights",
    ports={"http": 3000},
    max_gpus=1,
    aliases=("text-embeddings-inference", "textembeddingsinference"),
    takes_path=True,
    needs_files=True,
    # Other failures are those of clients: invalid input, or a connection that they closed. No counter has all
    # successes, and the histogram has each request that succeeded.
    error_rate=share_of_failures(
        rate("te_request_failure", ',err=~"inference|overloaded"'), rate("te_request_duration_count"), appears_late=True
    ),
    latency=p99("te_request_duration"),
    metrics={"queue": sum_of_pods("te_queue_size", appears_late=True)},
    images=("text-embeddings-inference",),
    model_options=("--model-id",),
    name_options=("--served-model-name",),
    image="huggingface/text-embeddings-inference",
    server=server,
    batching=BatchingSupport(
        fields=("max_size", "queue"),
        why="Text Embeddings Inference starts a batch as soon as the one before is done",
    ),
)
