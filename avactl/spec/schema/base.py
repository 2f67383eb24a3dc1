"""Base classes of all kinds: the strict model, metadata, and the resource around a spec."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from avactl.contracts import names
from avactl.contracts.foreign_keys import KEY_DOMAINS, domain_pattern, key_owner
from avactl.spec.python_files import calls
from avactl.spec.schema.values import (
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    Name,
    Subject,
    TeamRef,
    label_key,
    label_value,
    value_error,
)

API_VERSION = "avactl.dev/v1"
GROUP = names.GROUP


class Model(BaseModel):
    """A part of a spec. Keys are camelCase in YAML, snake_case in Python; unknown keys are rejected."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
        # Most commands need few kinds: a validator is built when the first spec of its kind is read.
        defer_build=True,
    )


SAFE_ANNOTATIONS = ("pulumi.com/skipAwait",)
"""Annotations of others' domains that specs may have."""


def _own_key(key: str, what: str) -> str:
    owner = key_owner(key)
    if owner:
        raise value_error(
            f"{what} `{key}` is set by avactl or {owner}".replace("avactl or avactl", "avactl"),
            "choose a prefix of your own",
        )
    return key


OF_CONTROLLERS = ("controller-revision-hash", "controller-uid", "job-name", "pod-template-hash")
"""Labels without a domain by which Kubernetes' controllers know their pods; the API server refuses Jobs with others."""


def _own_label(key: str) -> str:
    if key in OF_CONTROLLERS:
        raise value_error(f"label `{key}` is set by Kubernetes", "choose another key")
    return label_key(_own_key(key, "label"))


def _key_schema(allowed: tuple[str, ...] = (), taken: tuple[str, ...] = ()) -> WithJsonSchema:
    """Return the schema of keys as Kubernetes takes them, without those of others."""
    own = domain_pattern(tuple(domain.name for domain in KEY_DOMAINS))
    but = "".join(f"(?!{re.escape(key)}$)" for key in allowed)
    other = f"(?!({'|'.join(taken)})$)" if taken else ""
    return WithJsonSchema({"type": "string", "pattern": f"^{other}(?!{but}{own}){LABEL_KEY_PATTERN[1:]}"})


LabelKey = Annotated[str, AfterValidator(_own_label), _key_schema(taken=OF_CONTROLLERS)]
LabelValue = Annotated[
    str, AfterValidator(label_value), WithJsonSchema({"type": "string", "pattern": LABEL_VALUE_PATTERN})
]
# Checked key by key, so that a diagnostic points at the one that is wrong.
Labels = dict[LabelKey, LabelValue]


def _check_annotation(key: str) -> str:
    return label_key(key if key in SAFE_ANNOTATIONS else _own_key(key, "annotation"), "an annotation key")


Annotations = dict[Annotated[str, AfterValidator(_check_annotation), _key_schema(SAFE_ANNOTATIONS)], str]


class Metadata(Model):
    """Identity of a spec: its name and the team that it belongs to."""

    name: Name = Field(description="Name of the spec; names of Kubernetes objects are derived from it.")
    team: TeamRef | None = Field(None, description="Team that owns the spec. Required for kinds that belong to teams.")
    member: Subject | None = Field(
        None,
        description="Member of the team for whom the pods run, by the name in the identity provider: their GPUs count "
        "for `perMember` of the team's Quota.",
    )
    namespace: Name | None = Field(
        None, description="Namespace of the objects, one of the team's. Default: the team's first namespace."
    )
    object_name: Name | None = Field(
        None,
        description="Base of the object names. Default: `name`. To rename a workspace, job or service and keep its "
        "objects and their data, set this to the old name.",
    )
    labels: Labels = Field(default_factory=dict, description="Labels added to every object of the spec.")
    annotations: Annotations = Field(default_factory=dict, description="Annotations added to every object of the spec.")


class SecretKey(Model):
    """One key of a Kubernetes Secret in the namespace of the objects. A spec never holds the value."""

    name: Name = Field(description="Name of the Secret.")
    key: Annotated[str, Field(pattern=r"^[-A-Za-z0-9_][-._A-Za-z0-9]*$", max_length=253)] = Field(
        description="Key in the Secret."
    )


class ConfigMapKey(Model):
    """One key of a ConfigMap in the namespace of the objects."""

    name: Name = Field(description="Name of the ConfigMap.")
    key: Annotated[str, Field(pattern=r"^[-A-Za-z0-9_][-._A-Za-z0-9]*$", max_length=253)] = Field(
        description="Key in the ConfigMap."
    )


_ONE_OF_MAP = r"(labels|annotations)\['[A-Za-z0-9][-A-Za-z0-9_./]*'\]"
_ENV_FIELD = (
    rf"(metadata\.(name|namespace|uid|{_ONE_OF_MAP})|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?))"
)
_FILE_FIELD = rf"metadata\.(name|namespace|uid|labels|annotations|{_ONE_OF_MAP})"


def _pod_field(pattern: str, fields: str) -> tuple[AfterValidator, WithJsonSchema]:
    """Return the check and the schema of a path of a pod's field, one of those that the API server takes in a place."""

    def check(value: str) -> str:
        if len(value) > 253 or not re.fullmatch(pattern, value):
            raise value_error(f"`{value[:80]}` is not a field that pods can be told", f"write one of {fields}")
        return value

    return AfterValidator(check), WithJsonSchema({"type": "string", "pattern": f"^{pattern}$", "maxLength": 253})


_OF_ENV = _pod_field(
    _ENV_FIELD,
    "`metadata.name`, `.namespace`, `.uid`, `metadata.labels['KEY']`, `metadata.annotations['KEY']`, `spec.nodeName`, "
    "`spec.serviceAccountName`, `status.podIP`, `status.hostIP`",
)
_OF_FILES = _pod_field(
    _FILE_FIELD, "`metadata.name`, `.namespace`, `.uid`, `.labels`, `.annotations`, or `metadata.labels['KEY']`"
)
EnvField = Annotated[str, _OF_ENV[0], _OF_ENV[1]]
FileField = Annotated[str, _OF_FILES[0], _OF_FILES[1]]
"""Fields of a pod in its variables, and in its files. Source: pkg/apis/core/validation/validation.go of Kubernetes,
`validEnvDownwardAPIFieldPathExpressions` and `validVolumeDownwardAPIFieldPathExpressions`."""


class EnvSource(Model):
    """The value of an environment variable from elsewhere; set one key."""

    secret: SecretKey | None = Field(None, description="Secret and key that contain the value.")
    config_map: ConfigMapKey | None = Field(None, description="ConfigMap and key that contain the value.")
    field: EnvField | None = Field(
        None, description="Path of a field of the pod, such as `metadata.name`, `spec.nodeName` or `status.podIP`."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.secret, self.config_map, self.field].count(None) != 2:
            raise value_error(
                "the value has one of `secret`, `configMap` and `field`", "write `{secret: {name: …, key: …}}`"
            )
        return self


_ENV_NAME = "[A-Za-z_][A-Za-z0-9_]*"


def _env_name(value: str) -> str:
    if not re.fullmatch(_ENV_NAME, value):
        fixed = re.sub(r"[^A-Za-z0-9_]+", "_", value).lstrip("0123456789")
        raise value_error(
            f"`{value}` is not a variable name: use letters, digits and `_`, and do not begin with a digit",
            f"write `{fixed}`" if fixed.strip("_") else "write a name such as `LOG_LEVEL`",
        )
    if names.injects_devices(value):
        raise value_error(
            f"`{value}` makes the container runtime inject devices that the pod was not given",
            "remove it: `gpus` requests GPUs, and CUDA_VISIBLE_DEVICES chooses among them",
        )
    return value


_ENV_PATTERN = f"{names.CHOOSING_VARIABLE_PATTERN}|^(?!{names.GPU_VARIABLE_PATTERN[1:]}){_ENV_NAME}$"
EnvName = Annotated[str, AfterValidator(_env_name), WithJsonSchema({"type": "string", "pattern": _ENV_PATTERN})]
Env = Annotated[
    dict[EnvName, str | EnvSource],
    Field(
        description="Environment variables: text, `{secret: {name, key}}`, `{configMap: {name, key}}`, or `{field: "
        "metadata.name}`. Plain-text credentials are rejected."
    ),
]


class PatchTarget(Model):
    """Objects of the spec that a patch changes."""

    kind: Annotated[str, Field(pattern="^[A-Z][A-Za-z0-9]{1,62}$")] = Field(
        description="Kubernetes kind, such as `Job`; `avactl render` lists the objects of a spec."
    )
    role: Name | None = Field(
        None, description="Only objects of one role: `worker`, `server`, … (label `app.kubernetes.io/component`)."
    )
    name: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        None, description="Only the object with this name."
    )


class JsonOperation(Model):
    """One operation of a JSON Patch (RFC 6902)."""

    op: Literal["add", "remove", "replace", "test"] = Field(description="Operation.")
    path: Annotated[str, Field(pattern="^/", max_length=1024)] = Field(description="JSON Pointer to the value.")
    value: Any = Field(None, description="Value, except for `remove`.")


class Patch(Model):
    """A change of compiled objects that no key of the spec expresses."""

    target: PatchTarget = Field(description="Objects to change.")
    merge: dict[str, Any] | None = Field(
        None,
        description="Strategic merge patch: part of the object, with lists of containers, volumes and variables merged "
        "by name, as by `kubectl patch`.",
    )
    json_patch: Annotated[list[JsonOperation], Field(min_length=1, max_length=64)] | None = Field(
        None, description="JSON Patch: a list of operations, instead of `merge`."
    )


class Resource(Model):
    """Base of all kinds: a document with apiVersion, kind, metadata and spec."""

    KIND: ClassVar[str]
    SCOPE: ClassVar[Literal["platform", "team", "either"]]
    """`platform`: unique names. `team`: requires metadata.team, names are unique per team. `either`: optional team."""

    PLATFORM_OWNED: ClassVar[bool] = False
    """True for a team's spec that `owners` in avactl.yaml must allow by kind, as it does platform kinds."""

    MEMBER_PATH: ClassVar[tuple[str, str]] = ("metadata", "member")
    """Path of the member for whom the pods run."""

    OBJECT_NAME_HINT: ClassVar[str] = "remove the key"
    """Remedy for `metadata.objectName` in a kind that does not support it."""

    api_version: Literal["avactl.dev/v1"] = Field("avactl.dev/v1", description="Always `avactl.dev/v1`.")
    kind: str = Field(description="Name of the kind.")
    metadata: Metadata = Field(description="Name, team, labels.")
    spec: Any = Field(description="Desired state.")
    patches: list[Patch] = Field(
        default_factory=list, max_length=64, description="Changes of the compiled objects, for what no key expresses."
    )

    def __init__(self, /, **data: Any) -> None:
        super().__init__(**data)
        # Beside the fields: neither equality nor YAML depends on it.
        self.__dict__["_made_at"] = calls.calling_place(sys._getframe(1))

    # Validation of documents does not go through the constructor.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @property
    def made_at(self) -> calls.CallPlace | None:
        """Place of the constructor call in a Python program; None for specs of files."""
        place: calls.CallPlace | None = self.__dict__.get("_made_at")
        return place

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def team(self) -> str | None:
        """`metadata.team`."""
        return self.metadata.team

    @property
    def member(self) -> str | None:
        """Member of the team for whom the pods run; None: the team."""
        return self.metadata.member

    @property
    def owner(self) -> str | None:
        """Team whose files declare the spec; None: the platform's."""
        return self.metadata.team

    @classmethod
    def owned_by_platform(cls) -> bool:
        """Return True if files of a team may declare the kind only where `owners` lists it."""
        return cls.PLATFORM_OWNED or cls.SCOPE == "platform"

    def needs_one_cluster(self) -> bool:
        """Return True if the spec must name a cluster where its team uses several."""
        return self.SCOPE == "team"

    def placed_on(self, every: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the clusters of a spec that other specs take theirs from, out of `every`; None: it uses its team's."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the document as in YAML, without defaults."""
        data = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {"apiVersion": API_VERSION, "kind": self.KIND, **data}
