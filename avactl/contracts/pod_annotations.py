"""Annotations of pods: one record for each that avactl writes or reads.

The limits of the scheduler, the fields of a snapshot, the admission policies and the checks of manifests come from
`POD_ANNOTATIONS`, and so does docs/pod-annotations.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from avactl.contracts.names import GROUP

MAX_TEXT_CHARS = 64
"""Longest number, word or list of device indices in an annotation."""
MAX_LABEL_KEY_CHARS = 317
"""Longest label key: 253 characters of a DNS subdomain, a slash, and 63."""
MAX_USER_CHARS = 253
"""Longest name of a user in specs."""
MAX_DOCUMENT_CHARS = 4096
"""Longest JSON document that the scheduler reads from an annotation."""


class Writer(Enum):
    """Accounts that write an annotation."""

    MEMBER = "specs that avactl compiles, and manifests of teams"
    SPEC = "specs"
    SCHEDULER_BINDING = "the scheduler, with the binding"
    SCHEDULER_STATUS = "the scheduler, with the status"
    DELIVERY = "the delivery daemon"
    JOB_CONTROLLER = "Kubernetes' Job controller"


SCHEDULER_WRITES = frozenset({Writer.SCHEDULER_BINDING, Writer.SCHEDULER_STATUS})


class AnnotationReader(Enum):
    """Programs that read an annotation."""

    SCHEDULER = "the scheduler"
    CONSTRAINTS = "the scheduler's constraints"
    SNAPSHOT = "`avactl plan`"
    COMMANDS = "`avactl jobs` and other commands"
    DELIVERY = "the delivery daemon"
    CONTAINERS = "the pod's containers"
    DIFF = "`avactl diff`, as a digest of what it shows elsewhere"
    OTHERS = "people and other programs"


class PodAnnotation(NamedTuple):
    """One annotation of pods."""

    name: str
    meaning: str
    """One line of docs/pod-annotations.md."""
    writers: frozenset[Writer]
    """If all of them are the scheduler, admission policies refuse the annotation from anyone else. Manifests of teams
    may have those of `MEMBER`, and no others."""
    readers: frozenset[AnnotationReader]
    max_chars: int = MAX_TEXT_CHARS
    """Longest value that the scheduler accepts, if it reads the annotation: it reports a pod with a longer one as
    unschedulable."""
    values: tuple[str, ...] = ()
    """All values that the scheduler accepts, if they are words."""

    @property
    def field_path(self) -> str:
        """Path of the annotation in a `fieldRef`."""
        return f"metadata.annotations['{self.name}']"


_MEMBER, _SPEC, _DELIVERY = (frozenset({each}) for each in (Writer.MEMBER, Writer.SPEC, Writer.DELIVERY))
_JOB_CONTROLLER = frozenset({Writer.JOB_CONTROLLER})
_SCHEDULER, _CONTAINERS = (frozenset({each}) for each in (AnnotationReader.SCHEDULER, AnnotationReader.CONTAINERS))
_PLANNED_CONSTRAINTS = frozenset({AnnotationReader.SCHEDULER, AnnotationReader.CONSTRAINTS, AnnotationReader.SNAPSHOT})
_DIFF, _OTHERS, _COMMANDS = (
    frozenset({each}) for each in (AnnotationReader.DIFF, AnnotationReader.OTHERS, AnnotationReader.COMMANDS)
)
_PLANNED = frozenset({AnnotationReader.SCHEDULER, AnnotationReader.SNAPSHOT})

LINK = PodAnnotation(
    f"{GROUP}/link",
    "slowest acceptable link between the pod's GPUs",
    _MEMBER,
    _PLANNED,
    values=("nvlink", "pcieSwitch", "socket", "node", "any"),
)
LINK_POLICY = PodAnnotation(
    f"{GROUP}/link-policy",
    "whether the pod waits for that link",
    _MEMBER,
    _PLANNED,
    values=("preferred", "required"),
)
GPU_SHARE = PodAnnotation(
    f"{GROUP}/gpu-share",
    "requested fraction of one GPU, such as `0.5`",
    _MEMBER,
    _PLANNED | _COMMANDS,
)
PREEMPTIBLE = PodAnnotation(
    f"{GROUP}/preemptible",
    "`false`: the scheduler never preempts the pod; `true`: it may preempt the pod of a workspace",
    _MEMBER,
    _PLANNED,
    values=("true", "false"),
)
GANG_SIZE = PodAnnotation(
    f"{GROUP}/gang-size",
    "number of the gang's pods that must be placed together; an elastic gang can grow beyond it. Accepted as a label, "
    "too, for pods written by hand",
    _MEMBER,
    _PLANNED | _COMMANDS,
)
WITHIN = PodAnnotation(
    f"{GROUP}/within",
    "level of the topology (a node label) of which one domain must hold all pods of the gang, from `workers.within`",
    _MEMBER,
    _PLANNED,
    MAX_LABEL_KEY_CHARS,
)
SPOT_FROM = PodAnnotation(
    f"{GROUP}/spot-from",
    "lowest index in the Job of the pods that may run on spot nodes, from `spot: allow` of an elastic job; those with "
    "a lower one may not, whatever their tolerations",
    _SPEC,
    _PLANNED,
)
CHECKPOINT_EVERY = PodAnnotation(
    f"{GROUP}/checkpoint-every",
    "seconds between two checkpoints of a pod that saves them; `avactl defrag` can move it to free capacity",
    _SPEC,
    _SCHEDULER | _COMMANDS,
)
START_WHEN_WARM = PodAnnotation(
    f"{GROUP}/start-when-warm",
    "JSON object of dataset versions (`NAMESPACE/NAME/VERSION`) and the percentages that must be cached first, from "
    "`startWhen`",
    _SPEC,
    _PLANNED_CONSTRAINTS,
    MAX_DOCUMENT_CHARS,
)
DATA_LOCALITY = PodAnnotation(
    f"{GROUP}/data-locality",
    "JSON object with `prefer` or `require`, and a list of dataset versions (`NAMESPACE/NAME/VERSION`) of which a part "
    "should, or must, be cached on the node, from `locality`",
    _SPEC,
    _PLANNED_CONSTRAINTS,
    MAX_DOCUMENT_CHARS,
)
AFTER = PodAnnotation(
    f"{GROUP}/after",
    "JSON list of Jobs of the namespace that must be complete first, from `after`",
    _SPEC,
    _PLANNED_CONSTRAINTS,
    MAX_DOCUMENT_CHARS,
)
TIMEOUT = PodAnnotation(
    f"{GROUP}/timeout",
    f"seconds from the binding after which the scheduler sets the condition `{GROUP}/TimedOut`",
    _SPEC,
    _SCHEDULER | _COMMANDS,
)
STOP_WHEN_DONE = PodAnnotation(
    f"{GROUP}/stop-when-done",
    "container of a workspace: once it ends with exit code 0, the scheduler scales the StatefulSet to 0 whose first "
    "pod it is, from `whenIdle: stop`",
    _SPEC,
    _SCHEDULER,
)
DEVICES = PodAnnotation(
    f"{GROUP}/devices",
    "indices of the pod's GPUs on device-plugin pools, such as `0,3`",
    frozenset({Writer.SCHEDULER_BINDING}),
    _PLANNED | _CONTAINERS | _COMMANDS,
)
PREEMPTION = PodAnnotation(
    f"{GROUP}/preemption",
    "on preempted pods and on those they are preempted for: the UID of the first preemptor and the number of the "
    "decision, from which a new leader learns which victims belong to which preemptor",
    frozenset({Writer.SCHEDULER_STATUS}),
    _SCHEDULER,
)
JOB_INDEX = PodAnnotation(
    "batch.kubernetes.io/job-completion-index",
    "index of the pod in its Job",
    _JOB_CONTROLLER,
    _PLANNED | _CONTAINERS | _COMMANDS,
)
JOB_FAILURES = PodAnnotation(
    "batch.kubernetes.io/job-index-failure-count",
    "number of failed pods of this index before this one, for the health check",
    _JOB_CONTROLLER,
    _CONTAINERS,
)
JOB_IGNORED_FAILURES = PodAnnotation(
    "batch.kubernetes.io/job-index-ignored-failure-count",
    "number of failed pods that the Job has ignored; removed from preempted pods, so that the next one starts at once",
    _JOB_CONTROLLER | {Writer.SCHEDULER_STATUS},
    _CONTAINERS,
)
RUN_DIGEST = PodAnnotation(
    f"{GROUP}/run",
    "digest of everything that defines a run of a job, on its objects, too; a new digest starts a new run",
    _SPEC,
    _CONTAINERS | _COMMANDS | _DIFF,
)
CONFIG = PodAnnotation(f"{GROUP}/config", "digest of the policy that a daemon reads when it starts", _SPEC, _DIFF)
CONFIG_DIGEST = PodAnnotation(
    f"{GROUP}/config-digest", "digest of the files that a server reads when it starts", _SPEC, _DIFF
)
CONFIGURATION = PodAnnotation(f"{GROUP}/configuration", "digest of the configuration of a cache tier", _SPEC, _DIFF)
USER = PodAnnotation(
    f"{GROUP}/user",
    "member of the team for whom the pod runs, from `metadata.member` or the `user` of a workspace; its GPUs count for "
    "`perMember` of the team's quota. Pods without a spec have the name of the account that creates them",
    _SPEC,
    _PLANNED | _OTHERS,
    MAX_USER_CHARS,
)
LIVE_URL = PodAnnotation(
    f"{GROUP}/live-url",
    "URL of the live version of a pipeline's model; empty if there is none",
    _DELIVERY,
    _CONTAINERS,
)
REJECTED_OUTPUT = PodAnnotation(
    f"{GROUP}/rejected-output",
    "output of a running job that the validation has rejected, on the pod that copies a model",
    _DELIVERY,
    _CONTAINERS,
)
KEPT_VERSIONS = PodAnnotation(
    f"{GROUP}/keep",
    "numbers of versions that are kept in any case, separated by commas, on the pod that publishes",
    _DELIVERY,
    _CONTAINERS,
)
VERSION_LINEAGE = PodAnnotation(
    f"{GROUP}/lineage",
    "JSON document with the sources of a version, on the pod that publishes",
    _DELIVERY,
    _CONTAINERS,
)
DEFAULT_CONTAINER = PodAnnotation(
    "kubectl.kubernetes.io/default-container",
    "container with the user's program; the others are helpers of the platform",
    _MEMBER,
    _COMMANDS | {AnnotationReader.DELIVERY, AnnotationReader.OTHERS},
)
PROMETHEUS_SCRAPE, PROMETHEUS_PORT, PROMETHEUS_PATH = (
    PodAnnotation(f"prometheus.io/{key}", f"{meaning}, of a pod with metrics", _MEMBER, _OTHERS)
    for key, meaning in (("scrape", "`true`"), ("port", "port"), ("path", "path"))
)

POD_ANNOTATIONS = (
    LINK,
    LINK_POLICY,
    GPU_SHARE,
    PREEMPTIBLE,
    GANG_SIZE,
    WITHIN,
    SPOT_FROM,
    CHECKPOINT_EVERY,
    START_WHEN_WARM,
    DATA_LOCALITY,
    AFTER,
    TIMEOUT,
    STOP_WHEN_DONE,
    DEVICES,
    PREEMPTION,
    JOB_INDEX,
    JOB_FAILURES,
    JOB_IGNORED_FAILURES,
    RUN_DIGEST,
    CONFIG,
    CONFIG_DIGEST,
    CONFIGURATION,
    USER,
    LIVE_URL,
    REJECTED_OUTPUT,
    KEPT_VERSIONS,
    VERSION_LINEAGE,
    DEFAULT_CONTAINER,
    PROMETHEUS_SCRAPE,
    PROMETHEUS_PORT,
    PROMETHEUS_PATH,
)


def read_by(reader: AnnotationReader) -> tuple[PodAnnotation, ...]:
    """Return the annotations that a program reads."""
    return tuple(each for each in POD_ANNOTATIONS if reader in each.readers)


def written_by(writer: Writer) -> tuple[str, ...]:
    """Return the names of the annotations that an account writes."""
    return tuple(each.name for each in POD_ANNOTATIONS if writer in each.writers)


def written_only_by_scheduler() -> tuple[str, ...]:
    """Return the names of the annotations that nobody but the scheduler may write."""
    return tuple(each.name for each in POD_ANNOTATIONS if each.writers <= SCHEDULER_WRITES)
