"""Serving runtimes: their names, and the facts about them that a spec needs.

Each is a module in `avactl/kinds/serving/runtimes` with a `ServingRuntime` as `RUNTIME`. The name in
`spec.runtime.name` is that of the module in camel case. No module outside that folder names a runtime; others ask
`runtime_of(spec)`, which is in `avactl/kinds/serving/runtime.py`: a record's hooks take specs, and specs ask for facts
by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pydantic.alias_generators import to_camel, to_snake

from avactl.kinds.serving.queries import ScalingMetric

STARTUP, LLM_STARTUP = 600, 1800
"""Default limits for the start of servers, and of language-model servers, in seconds."""
LLM_ANSWER = 3600
"""Default limit for an answer of a language model, in seconds: Envoy's, 15 s, ends streams in their midst."""
_PACKAGE = "avactl.kinds.serving.runtimes"


class RetiredRuntime(NamedTuple):
    """A runtime that earlier versions of avactl had."""

    title: str
    image: str
    """Part of the names of its images."""
    why: str
    instead: str


RETIRED = {
    "torchServe": RetiredRuntime(
        "TorchServe",
        "torchserve",
        "its repository is archived and gets no security fixes",
        "serve the model with `triton`, or a large language model with `vllm`; `custom` runs the image as it is, with "
        "`port`, `args` and `probe: {path: /ping}`",
    )
}
"""Runtimes that left, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """Facts about a runtime that need no spec."""

    title: str
    """Its name in messages."""
    version: str
    """The version whose source was read for this record; "" for servers that avactl does not know."""
    files: str
    """Form of the files that `url` of a model points to."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Default ports by name, including those that only the runtime's own options can change. Without `http`, the
    spec gives the port, and the probe too."""
    startup: int = STARTUP
    """Seconds that the server may take to load its models, unless the spec says otherwise."""
    answer_timeout: int | None = None
    """Seconds that gateways give an answer, unless the spec says otherwise; None: their own default."""
    max_gpus: int | None = None
    """GPUs of a pod that the server can use; None: all."""
    aliases: tuple[str, ...] = ()
    """Other names of it, for suggestions."""
    grpc_services: tuple[str, ...] = ()
    """gRPC services that are exposed unless the spec says otherwise; empty: all."""
    takes_path: bool = False
    """True if the server is told the directory of its model, so that `path` of the model has a meaning."""
    needs_files: bool = False
    """True if a model must say where its files are; False: the server also finds them by the model's name."""
    hub: bool = False
    """True if its images have Python and huggingface_hub, to copy models of Hugging Face's hub with."""
    numbered: bool = False
    """True if versions are numbers, the names of directories."""
    versioned: bool = False
    """True if the directory of a model is one below its name, with the version as name."""
    labels: bool = False
    """True if versions can have labels, by which clients request them."""
    error_rate: str | None = None
    """Query for the share of failed requests, from 0 to 1, for rollouts (`queries.py`); None: no such metric."""
    latency: str | None = None
    """Query for the p99 of the latency, or its mean where the server has no histogram, in units of the server."""
    metrics: Mapping[str, ScalingMetric] = field(default_factory=dict)
    """Metrics for autoscalers, by field of `ServerMetrics`."""
    images: tuple[str, ...] = ()
    """Parts of the names of its images, by which the importer knows it."""
    model_options: tuple[str, ...] = ()
    """Words of its command line before the model's directory, for the importer. Only with `takes_path`."""
    name_options: tuple[str, ...] = ()
    """Options of its command line with the name that clients request the model by, for the importer."""
    programs: tuple[tuple[str, ...], ...] = ()
    """Commands that start it, before its options, for the importer."""


@cache
def runtime_names() -> tuple[str, ...]:
    """Return the names of all runtimes."""
    directory = Path(__file__).parents[3].joinpath(*_PACKAGE.split("."))
    return tuple(sorted(to_camel(module.name) for module in pkgutil.iter_modules([str(directory)])))


@cache
def facts_of(name: str) -> RuntimeFacts:
    """Return the facts about a runtime by its name. Raises ModuleNotFoundError."""
    found: RuntimeFacts = importlib.import_module(f"{_PACKAGE}.{to_snake(name)}").RUNTIME
    return found
