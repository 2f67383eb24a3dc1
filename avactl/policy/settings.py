"""Models of policy settings in avactl.yaml and of JSON Schema policy files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, WithJsonSchema

from avactl.policy import NAME, Over, Severity
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Count, value_error


class RuleSetting(Model):
    """An enabled built-in policy."""

    severity: Severity = Field("error", description="`error` fails the compile; `warning` is only reported.")
    exempt: list[str] = Field(
        default_factory=list, description="Specs exempt from the policy: `team/name`, or `name` for platform specs."
    )


class LongJobs(RuleSetting):
    """Settings of the policy `checkpoints`."""

    gpu_hours: Count = Field(100, description="GPU-hours (GPUs × `timeout`) above which a job needs a checkpoint.")


Switch = Severity | RuleSetting


class Ready(Model):
    """Built-in policies: `NAME: error`, `NAME: warning`, or settings: `NAME: {severity: warning, exempt: […]}`."""

    images_pinned: Switch | None = Field(
        None, alias="images-pinned", description="Every image is pinned by digest, because tags are mutable."
    )
    versions_fixed: Switch | None = Field(
        None,
        alias="versions-fixed",
        description="No `latest`: images have a tag or digest; models and job datasets have a version.",
    )
    no_privileged: Switch | None = Field(
        None,
        alias="no-privileged",
        description="No pod is privileged, adds capabilities, or shares the host's namespaces or directories.",
    )
    checkpoints: Severity | LongJobs | None = Field(
        None, description="Jobs above `gpuHours` (default 100) or without `timeout` have a checkpoint."
    )
    jobs_end: Switch | None = Field(None, alias="jobs-end", description="Every training job has a `timeout`.")
    services_redundant: Switch | None = Field(
        None, alias="services-redundant", description="Every service runs at least two pods."
    )
    egress_closed: Switch | None = Field(
        None, alias="egress-closed", description="No cluster allows team pods to reach the whole internet."
    )


def _policy_name(value: str) -> str:
    if not re.fullmatch(NAME, value) or len(value) > 63:
        raise value_error(f"`{value[:80]}` is not a policy name", "use at most 63 of a-z, 0-9 and `-`")
    return value


PolicyName = Annotated[
    str, AfterValidator(_policy_name), WithJsonSchema({"type": "string", "pattern": NAME, "maxLength": 63})
]
"""Name of a policy."""


class SchemaFile(Model):
    """A JSON Schema policy: one document of a YAML or JSON file under `policies/`."""

    policy: PolicyName = Field(description="Its name.")
    over: Over = Field("specs", description="`specs`: specs with defaults filled in. `manifests`: Kubernetes objects.")
    kinds: list[str] = Field(default_factory=list, description="Kinds to check. Default: all.")
    severity: Severity = Field("error", description="`error` fails the compile; `warning` is only reported.")
    help: str = Field("", description="Remedy reported with every problem.")
    schema_: dict[str, Any] = Field(
        alias="schema", description="JSON Schema (2020-12, or as declared by its `$schema`)."
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """All policies that apply to a repository."""

    ready: Ready
    files: tuple[str, ...]
    """Files of the repository's own policies."""
    python: bool
    """True if Python files are evaluated."""
    timeout: float
    """Maximum run time of one file, in seconds."""
