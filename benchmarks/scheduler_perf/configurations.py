"""The configurations of scheduler_perf as typed models, in which an unknown operation or field is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from tools.controlplane.build import KUBERNETES_VERSIONS, find_module_folder

MODULE = "k8s.io/kubernetes"
FOLDER = Path("test/integration/scheduler_perf")
CONFIGURATION = "performance-config.yaml"
MAX_NODES = 1000
MAX_PODS = 7000
MAX_SHORT_PODS = 200
UNSCALED_PARAMS = frozenset({"classes"})
"""Parameters that count kinds of things, however many nodes and pods there are."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ConfigurationError(Exception):
    """A configuration has an operation, a field or a parameter that is not known; the message names it."""


def _seconds(value: object) -> object:
    """Parse a duration of Go."""
    if not isinstance(value, str):
        return value
    parts = re.findall(r"([0-9.]+)(ms|s|m|h)", value)
    if "".join(number + unit for number, unit in parts) != value or not parts:
        raise ValueError(f"not a duration: {value}")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


Seconds = Annotated[float, BeforeValidator(_seconds)]
Parameter = bool | int | float | str
Labels = dict[str, str]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class LabelStrategy(_Model):
    """Nodes get the values of a label in turn."""

    label_key: str
    label_values: list[str]


class UniqueLabelStrategy(_Model):
    """Each node gets its own value of a label."""

    label_key: str


class VolumeLimit(_Model):
    """Volumes of a CSI driver on a node."""

    count: int


class AllocatableStrategy(_Model):
    """Nodes get allocatable resources, and a CSINode with limits of volumes."""

    node_allocatable: dict[str, str]
    csi_node_allocatable: dict[str, VolumeLimit] = {}
    migrated_plugins: list[str] = []


class CreateNodes(_Model):
    """Create nodes."""

    opcode: Literal["createNodes"]
    count: int = 0
    count_param: str = ""
    node_template_path: str | None = None
    node_allocatable_strategy: AllocatableStrategy | None = None
    label_node_prepare_strategy: LabelStrategy | None = None
    unique_node_label_strategy: UniqueLabelStrategy | None = None


class CreateNamespaces(_Model):
    """Create the namespaces PREFIX-0, PREFIX-1, …"""

    opcode: Literal["createNamespaces"]
    prefix: str
    count: int = 0
    count_param: str = ""
    namespace_template_path: str | None = None


class CreatePods(_Model):
    """Create pods, and wait until they are bound unless told to skip this; or keep creating them for some time."""

    opcode: Literal["createPods"]
    count: int = 0
    count_param: str = ""
    steady_state: bool = False
    steady_state_param: str = ""
    duration: Seconds = 0.0
    duration_param: str = ""
    collect_metrics: bool = False
    namespace: str | None = None
    pod_template_path: str | None = None
    skip_wait_to_completion: bool = False
    persistent_volume_template_path: str | None = None
    persistent_volume_claim_template_path: str | None = None


class CreatePodSets(_Model):
    """Create pods in each of several namespaces."""

    opcode: Literal["createPodSets"]
    count: int = 0
    count_param: str = ""
    namespace_prefix: str
    create_pods_op: CreatePods


class DeletePods(_Model):
    """Delete pods, at once or at a rate."""

    opcode: Literal["deletePods"]
    namespace: str
    label_selector: Labels = {}
    skip_wait_to_completion: bool = False
    delete_pods_per_second: int = 0


class CreateAny(_Model):
    """Create objects of any kind."""

    opcode: Literal["createAny"]
    template_path: str
    namespace: str = ""
    count: int = 1
    count_param: str = ""


class UpdateAny(_Model):
    """Replace objects of any kind, and their status."""

    opcode: Literal["updateAny"]
    template_path: str
    namespace: str = ""
    count: int = 1
    count_param: str = ""
    update_per_second: int = 0
    subresources: list[str] = []


class CreateResourceDriver(_Model):
    """Publish a ResourceSlice for each node whose name matches a glob."""

    opcode: Literal["createResourceDriver"]
    driver_name: str
    nodes: str
    max_claims_per_node: int = 0
    max_claims_per_node_param: str = ""


class CreateResourceClaims(_Model):
    """Create ResourceClaims."""

    opcode: Literal["createResourceClaims"]
    template_path: str
    namespace: str
    count: int = 0
    count_param: str = ""


class AllocResourceClaims(_Model):
    """Allocate all ResourceClaims of a namespace without pods."""

    opcode: Literal["allocResourceClaims"]
    namespace: str = ""


class Churn(_Model):
    """Create objects at an interval until the workload ends; with `recreate`, delete them in turn."""

    opcode: Literal["churn"]
    mode: Literal["create", "recreate"]
    number: int = 0
    interval_milliseconds: int = 500
    namespace: str | None = None
    template_paths: list[str]


class Barrier(_Model):
    """Wait until pods are bound, or were attempted."""

    opcode: Literal["barrier"]
    namespaces: list[str] = []
    label_selector: Labels = {}
    stage_requirement: Literal["Scheduled", "Attempted"] = "Scheduled"


class Sleep(_Model):
    """Wait for some time."""

    opcode: Literal["sleep"]
    duration: Seconds = 0.0
    duration_param: str = ""


class StartCollectingMetrics(_Model):
    """Start to measure the pods of some namespaces."""

    opcode: Literal["startCollectingMetrics"]
    name: str = ""
    namespaces: Annotated[list[str], Field(min_length=1)]
    label_selector: Labels = {}


class StopCollectingMetrics(_Model):
    """Stop measuring."""

    opcode: Literal["stopCollectingMetrics"]


Operation = Annotated[
    CreateNodes
    | CreateNamespaces
    | CreatePods
    | CreatePodSets
    | DeletePods
    | CreateAny
    | UpdateAny
    | CreateResourceDriver
    | CreateResourceClaims
    | AllocResourceClaims
    | Churn
    | Barrier
    | Sleep
    | StartCollectingMetrics
    | StopCollectingMetrics,
    Field(discriminator="opcode"),
]


class MetricSelector(_Model):
    """The metric that upstream compares with a threshold; not read here, where kube-scheduler is the measure."""

    name: str
    labels: Labels = {}
    data_bucket: str = ""
    expect_lower: bool = False


class Workload(_Model):
    """One size of a case."""

    name: str
    params: dict[str, Parameter] = {}
    labels: list[str] = []
    threshold: float | dict[str, float] = 0.0
    threshold_metric_selector: MetricSelector | None = None
    feature_gates: dict[str, bool] = {}


class LabelValues(_Model):
    """Labels by which upstream collects a metric."""

    label: str
    values: list[str]


class MetricsCollector(_Model):
    """Metrics of kube-scheduler that upstream collects; avactl has others, so they are not compared."""

    metrics: dict[str, list[LabelValues] | None]


class Case(_Model):
    """A case: operations, and workloads with the values of their parameters."""

    name: str
    feature_gates: dict[str, bool] = {}
    metrics_collector_config: MetricsCollector | None = None
    workload_template: list[Operation]
    workloads: list[Workload]
    scheduler_config_path: str = ""
    default_pod_template_path: str | None = None
    labels: list[str] = []
    default_threshold_metric_selector: MetricSelector | None = None
    folder: Path = Path()


class Size(NamedTuple):
    """Nodes and pods of a workload."""

    nodes: int
    pods: int


_ALWAYS_ON = {"SchedulerQueueingHints": True}
"""Gates that Kubernetes 1.37 does not have any more: what they were for is always on."""
_CASES = TypeAdapter(list[Case])
_O = TypeVar("_O", bound=BaseModel)


def find_folder() -> Path:
    """Return the folder of scheduler_perf in the Go module cache. Raises UnavailableError without Go.

    The cases are those of Kubernetes 1.36, whichever version the schedulers are compared on: 1.37 adds others.
    """
    _, pinned_in = KUBERNETES_VERSIONS["1.36"]
    return find_module_folder("kubernetes", MODULE, pinned_in) / FOLDER


def read_cases(folder: Path) -> list[Case]:
    """Return the cases of all configurations. Raises ConfigurationError."""
    paths = sorted(folder.rglob(CONFIGURATION))
    if not paths:
        raise ConfigurationError(f"no {CONFIGURATION} in {folder}")
    cases = [case for path in paths for case in parse_cases(path.read_text(encoding="utf-8"), path)]
    names = [case.name for case in cases]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"cases with the same name: {', '.join(repeated)}")
    return cases


def parse_cases(text: str, path: Path) -> list[Case]:
    """Return the cases of one configuration. Raises ConfigurationError."""
    try:
        cases = _CASES.validate_python(yaml.safe_load(text))
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ConfigurationError(f"{path}: {'; '.join(reasons)}") from None
    return [case.model_copy(update={"folder": path.parent}) for case in cases]


def resolve(operation: _O, workload: Workload) -> _O:
    """Return an operation with the workload's values in place of its parameters. Raises ConfigurationError."""
    values = {}
    for field in type(operation).model_fields:
        parameter = getattr(operation, field)
        if field.endswith("_param") and parameter:
            name = parameter.removeprefix("$")
            if name not in workload.params:
                raise ConfigurationError(f"{workload.name}: parameter {name} is undefined")
            values[to_camel(field.removesuffix("_param"))] = workload.params[name]
    if not values:
        return operation
    given = operation.model_dump(by_alias=True, exclude_unset=True)
    return type(operation).model_validate({**given, **values})


def unroll(case: Case, workload: Workload) -> list[Operation]:
    """Return the operations of a workload: parameters have values, and sets of pods are one operation each."""
    operations: list[Operation] = []
    for operation in case.workload_template:
        resolved = resolve(operation, workload)
        if isinstance(resolved, CreatePodSets):
            pods = resolve(resolved.create_pods_op, workload)
            operations += [
                pods.model_copy(update={"namespace": f"{resolved.namespace_prefix}-{number}"})
                for number in range(resolved.count)
            ]
        else:
            operations.append(resolved)
    return operations


def size_of(case: Case, workload: Workload) -> Size:
    """Return the number of nodes and pods that a workload creates, apart from churn."""
    operations = unroll(case, workload)
    nodes = sum(operation.count for operation in operations if isinstance(operation, CreateNodes))
    return Size(nodes, sum(operation.count for operation in operations if isinstance(operation, CreatePods)))


def conflicting_gates(case: Case, workload: Workload, gates: Mapping[str, bool]) -> list[str]:
    """Return the feature gates that a workload needs and the control plane has otherwise, as `NAME=value`."""
    needed = {**case.feature_gates, **workload.feature_gates}
    gates = {**_ALWAYS_ON, **gates}
    return [f"{name}={str(value).lower()}" for name, value in needed.items() if gates.get(name) != value]


def choose_smallest(case: Case, workloads: Sequence[Workload]) -> Workload:
    """Return the smallest workload, scaled down if it has more than 200 pods."""
    smallest = min(workloads, key=lambda workload: sum(size_of(case, workload)))
    pods = size_of(case, smallest).pods
    return smallest if pods <= MAX_SHORT_PODS else _scale(case, smallest, MAX_SHORT_PODS / pods)


def choose_workload(case: Case, workloads: Sequence[Workload], nodes: int) -> Workload:
    """Return the smallest workload with at least `nodes` nodes and at most 1,000, or the nearest one.

    A larger one is scaled down if all others have fewer nodes; so is one with more than 7,000 pods.
    """
    sizes = {workload.name: size_of(case, workload) for workload in workloads}
    at_least = [workload for workload in workloads if sizes[workload.name].nodes >= nodes]
    if at_least:
        chosen = min(at_least, key=lambda workload: sizes[workload.name].nodes)
    else:
        chosen = max(workloads, key=lambda workload: sizes[workload.name])
    size = sizes[chosen.name]
    factor = min(1.0, MAX_PODS / max(size.pods, 1), nodes / size.nodes if size.nodes > MAX_NODES else 1.0)
    return chosen if factor == 1.0 else _scale(case, chosen, factor)


def _scale(case: Case, workload: Workload, factor: float) -> Workload:
    """Multiply the numbers of nodes and pods. Raises ConfigurationError if others would have to follow."""
    counted = [operation for operation in case.workload_template if isinstance(operation, CreateNodes | CreatePods)]
    scaled = {operation.count_param.removeprefix("$") for operation in counted}
    for operation in case.workload_template:
        if getattr(operation, "count_param", "").removeprefix("$") not in {*scaled, *UNSCALED_PARAMS, ""}:
            raise ConfigurationError(f"{case.name}: a workload with {operation.opcode} cannot be scaled")
    params = {
        name: max(1, round(value * factor)) if name in scaled and isinstance(value, int | float) else value
        for name, value in workload.params.items()
    }
    return workload.model_copy(update={"name": f"{workload.name} × {factor:.3g}", "params": params})
