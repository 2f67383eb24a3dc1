"""What avactl.yaml and policy files say of policies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.kinds.base import Model
from avactl.kinds.fields.values import Count, bad
from avactl.policy import NAME, Over, Severity


class Rule(Model):
    """A ready-made policy that is switched on."""

    severity: Severity = Field("error", description="`error` stops a compile, `warning` is told.")
    exempt: list[str] = Field(
        default_factory=list, description="Specs that it does not look at: `team/name`, or `name` of the platform's."
    )


class LongJobs(Rule):
    """The policy `checkpoints`."""

    gpu_hours: Count = Field(100, description="GPU-hours that a job may lose: its GPUs × its `timeout`.")


Switch = Severity | Rule


class Ready(Model):
    """Ready-made policies: `NAME: error`, `NAME: warning`, or settings: `NAME: {severity: warning, exempt: […]}`."""

    images_pinned: Switch | None = Field(
        None, alias="images-pinned", description="Every image is pinned by digest: a tag can be moved."
    )
    versions_fixed: Switch | None = Field(
        None,
        alias="versions-fixed",
        description="No `latest`: images have a tag or a digest, models and the datasets of jobs a version.",
    )
    no_privileged: Switch | None = Field(
        None,
        alias="no-privileged",
        description="No pod is privileged, takes capabilities, or shares the machine's namespaces or directories.",
    )
    checkpoints: Severity | LongJobs | None = Field(
        None, description="Jobs of more than `gpuHours` (100; without `timeout`: endless) have a checkpoint."
    )
    jobs_end: Switch | None = Field(None, alias="jobs-end", description="Every training job has a `timeout`.")
    services_redundant: Switch | None = Field(
        None, alias="services-redundant", description="Every service runs in at least two pods."
    )
    egress_closed: Switch | None = Field(
        None, alias="egress-closed", description="No cluster lets its teams' pods reach the whole internet."
    )


def _policy_name(value: str) -> str:
    if not re.fullmatch(NAME, value) or len(value) > 63:
        raise bad(f"`{value[:80]}` is not a name of a policy", "use a-z, 0-9 and `-`, at most 63 of them")
    return value


PolicyName = Annotated[
    str, AfterValidator(_policy_name), WithJsonSchema({"type": "string", "pattern": NAME, "maxLength": 63})
]
"""What a policy is called."""


class SchemaFile(Model):
    """A JSON Schema as a policy: one document of a YAML or JSON file below `policies/`."""

    policy: PolicyName = Field(description="Its name.")
    over: Over = Field("specs", description="`specs` as YAML has them, defaults filled in; or Kubernetes `manifests`.")
    kinds: list[str] = Field(default_factory=list, description="Kinds that it looks at. Default: all.")
    severity: Severity = Field("error", description="`error` stops a compile, `warning` is told.")
    help: str = Field("", description="The remedy, told with every problem.")
    schema_: dict[str, Any] = Field(alias="schema", description="JSON Schema (2020-12, or what its `$schema` says).")


@dataclass(frozen=True, slots=True)
class Rules:
    """All policies that apply to a repository."""

    ready: Ready
    files: tuple[str, ...]
    """Files of the repository's own policies."""
    python: bool
    """Whether Python files are evaluated."""
    timeout: float
    """Longest run of one file, seconds."""
