"""PromQL of error rate and latency, by runtime. `{{pods}}`, `{{namespace}}` and `{{interval}}` are filled in.

Sources: metrics of TensorFlow Serving (tensorflow_serving/servables/tensorflow/util.cc, with the entrypoint's
:tensorflow:serving:request_count), Triton (docs/user_guide/metrics.md), TorchServe (docs/metrics.md), vLLM
(docs/design/metrics.md, with the HTTP metrics of prometheus-fastapi-instrumentator), SGLang
(python/sglang/srt/observability/metrics_collector.py).
"""

from __future__ import annotations

_PODS = 'namespace="{{namespace}}",pod=~"{{pods}}"'


def _rate(metric: str, more: str = "") -> str:
    return f'rate({{__name__="{metric}",{_PODS}{more}}}[{{{{interval}}}}])'


def _share(failed: str, all_: str) -> str:
    return f"(sum({failed}) or vector(0)) / (sum({all_}) > 0)"


_TF, _TRITON = ":tensorflow:serving:request", "nv_inference_request"
_FAILED = f"(sum({_rate(f'{_TRITON}_failure')}) or vector(0))"


def _p99(metric: str) -> str:
    return f"histogram_quantile(0.99, sum by (le) ({_rate(f'{metric}_bucket')}))"


_TORCH = f'rate({{__name__=~"Requests[245]XX",{_PODS}}}[{{{{interval}}}}])'

ERROR_RATE = {
    "tensorflowServing": _share(_rate(f"{_TF}_count", ',status!="OK"'), _rate(f"{_TF}_count")),
    "triton": f"{_FAILED} / (sum({_rate(f'{_TRITON}_success')}) + {_FAILED} > 0)",
    "torchServe": _share(_rate("Requests5XX"), _TORCH),
    "vllm": _share(_rate("http_requests_total", ',status="5xx"'), _rate("http_requests_total")),
}
"""Share of failed requests, from 0 to 1, by runtime."""
LATENCY = {
    "tensorflowServing": _p99(f"{_TF}_latency"),
    "triton": f"sum({_rate(f'{_TRITON}_duration_us')}) / (sum({_rate(f'{_TRITON}_success')}) > 0)",
    "torchServe": f"sum({_rate('ts_inference_latency_microseconds')}) / "
    f"(sum({_rate('ts_inference_requests_total')}) > 0)",
    "vllm": _p99("vllm:e2e_request_latency_seconds"),
    "sglang": _p99("sglang:e2e_request_latency_seconds"),
}
"""p99 of the latency, or its mean where the runtime has no histogram, in units of the runtime, by runtime."""
