"""The Jobs of a pipeline beside its training: `stage` copies the model, `validate` measures it, `seal` publishes it."""

from __future__ import annotations

from math import ceil

from avactl.contracts.pod_annotations import KEPT_VERSIONS, REJECTED_OUTPUT, VERSION_LINEAGE
from avactl.kinds.pipeline.spec import PipelineSpec
from avactl.kinds.pipeline.training import RUN, as_template, checkpoint_directory, store_secrets
from avactl.kinds.team.names import RUN_ACCOUNT
from avactl.program.lowering import k8s, pods
from avactl.program.lowering.gpu_request import gpu_annotations, share_env
from avactl.program.lowering.k8s import drop_none
from avactl.program.manifest import Body, Manifest
from avactl.program.program import Item, Program
from avactl.spec.schema.pod_settings import PodSettings
from avactl.spec.schema.values import duration_seconds

STAGE, VALIDATE, SEAL = "stage", "validate", "seal"
STEPS = (STAGE, VALIDATE, SEAL)
RESULT_FILE = pods.TERMINATION_LOG
_COPY_TIMEOUT = 6 * 3600
_STEP_VARIABLES = {VERSION_LINEAGE: "AVACTL_LINEAGE", KEPT_VERSIONS: "AVACTL_KEEP", REJECTED_OUTPUT: "AVACTL_REJECTED"}
"""Environment variables, by the pod annotation that sets them."""


def versions_directory(item: Item[PipelineSpec]) -> str:
    """Return the directory of all versions."""
    return item.spec.publish.to.rstrip("/")


def candidate_directory(item: Item[PipelineSpec]) -> str:
    """Return the directory of the version that a run publishes."""
    return f"{versions_directory(item)}/{RUN}"


def step_name(item: Item[PipelineSpec], step: str) -> str:
    """Name of the template, and of the Job, of a step."""
    return f"{item.name}-{step}"


def step_objects(item: Item[PipelineSpec], program: Program) -> list[Manifest]:
    """Return the templates of the three steps, and the GPU claim of the validation."""
    source = checkpoint_directory(item, program)
    if source is None:
        raise LookupError(f"{item} has no checkpoint path")
    train = item.spec.train
    more = [
        *(["--model", train.output] if train.output else []),
        *(["--marker", train.marker] if train.marker else []),
    ]
    if train.job is not None:
        more += ["--rejected", "$(AVACTL_REJECTED)"]
    stage = _build_copier(
        item, program, STAGE, ["--from", source, *more, "--to", candidate_directory(item), "--result", RESULT_FILE]
    )
    keep = ["--keep", str(item.spec.publish.keep), "--keep-versions", "$(AVACTL_KEEP)"]
    seal = _build_copier(item, program, SEAL, ["--to", candidate_directory(item), *keep])
    gpu = validation_gpu(item, program)
    claims = gpu.claim(item.ns) if item.spec.validation.resources.gpus else []
    return [*claims, stage, _build_validation(item, program, gpu), seal]


def validation_gpu(item: Item[PipelineSpec], program: Program) -> pods.GpuRequest:
    """Return how the pod of the validation gets its GPUs."""
    return pods.GpuRequest(item, program, item.spec.validation.resources, VALIDATE, 1)


def _build_copier(item: Item[PipelineSpec], program: Program, step: str, args: list[str]) -> Manifest:
    """Return the template of a step that avactl's own image does, with the rights of the bucket's Secret only."""
    notes = {VERSION_LINEAGE.name: "{}", KEPT_VERSIONS.name: ""} if step == SEAL else {}
    if step == STAGE and item.spec.train.job is not None:
        notes = {REJECTED_OUTPUT.name: ""}
    own: list[Body] = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": annotation.field_path}}}
        for annotation, variable in _STEP_VARIABLES.items()
        if annotation.name in notes
    ]
    container = drop_none(
        name=step,
        image=program.cluster_spec(item.cluster).images.avactl,
        command=["avactl", "delivery", step],
        args=args,
        env=pods.merge_env(own, store_secrets(item, program, versions_directory(item))),
        resources=pods.build_resources("1", "1Gi"),
    )
    pod = pods.pod_spec(item, program, container, service_account=RUN_ACCOUNT, restartPolicy="Never")
    return _build_template(item, step, pod, notes, _COPY_TIMEOUT)


def _build_validation(item: Item[PipelineSpec], program: Program, gpu: pods.GpuRequest) -> Manifest:
    spec = item.spec.validation
    volumes = pods.PodVolumes(item, program)
    if spec.resources.shared_memory:
        volumes.empty("shared-memory", "/dev/shm", size=spec.resources.shared_memory, memory=True)  # noqa: S108
    volumes.datasets(spec.datasets)
    own = {"AVACTL_CANDIDATE_URL": candidate_directory(item), "AVACTL_METRICS": RESULT_FILE}
    container = drop_none(
        name=VALIDATE,
        image=spec.image,
        command=spec.command or None,
        args=spec.args or None,
        # Its variables may use those of the run.
        env=pods.merge_env(
            pods.env_list(own | share_env(spec.resources)),
            store_secrets(item, program, versions_directory(item)),
            pods.env_list(spec.env),
        ),
        resources=pods.build_resources(spec.resources.cpu, spec.resources.memory, gpu.resources(), gpu.claims),
        terminationMessagePath=RESULT_FILE,
    )
    settings = spec.pod
    pod = pods.pod_spec(
        item,
        program,
        container,
        volumes=volumes,
        gpu=gpu,
        service_account=RUN_ACCOUNT,
        priority="avactl-normal",
        settings=settings,
        settings_at=(("spec", "validation", "pod"),),
        restartPolicy="Never",
    )
    notes = gpu_annotations(spec.resources)
    return _build_template(item, VALIDATE, pod, notes, max(1, ceil(duration_seconds(spec.timeout))), settings)


def _build_template(
    item: Item[PipelineSpec],
    step: str,
    pod: Body,
    notes: dict[str, str],
    timeout: int,
    settings: PodSettings | None = None,
) -> Manifest:
    labels, notes = k8s.object_labels(item, step), {**notes, **pods.member_annotation(item)}
    if settings is not None:
        labels, notes = {**settings.labels, **labels}, {**settings.annotations, **notes}
    job = k8s.build_manifest(
        item,
        item.cluster,
        "batch/v1",
        "Job",
        step_name(item, step),
        namespace=item.ns,
        component=step,
        spec={
            "backoffLimit": item.spec.retries,
            "activeDeadlineSeconds": timeout,
            "podFailurePolicy": {
                "rules": [
                    # Preemption, drains and lost nodes are no failures of the step.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
                ]
            },
            "template": {"metadata": drop_none(labels=labels, annotations=notes or None), "spec": pod},
        },
    )
    return as_template(item, job, step)
