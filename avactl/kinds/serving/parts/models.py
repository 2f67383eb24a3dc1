"""Models of a service: where their files are, in the store and in the pod."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from avactl.spec.schema.base import Model
from avactl.spec.schema.compute import DatasetName
from avactl.spec.schema.values import HUB, AbsPath, Bytes, ModelUrl, Name, value_error

MODELS = "/models"
"""Directory of downloaded models."""
LIVE = f"{MODELS}/live"
"""Directory of the models of `spec.models`, which servers scan."""
ADAPTERS = "/adapters"
"""Directory of downloaded LoRA adapters."""


def exactly_one(*keys: str) -> ConfigDict:
    """Return the configuration of a model whose schema requires exactly one of some keys."""
    return ConfigDict(json_schema_extra={"oneOf": [{"required": [key]} for key in keys]})


_VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
ModelName = Annotated[str, Field(pattern=_VERSION_PATTERN, max_length=63)]


class ModelDataset(Model):
    """Dataset that has the files of a model."""

    name: DatasetName = Field(
        description="Dataset of the team or the platform; `TEAM/NAME` for one shared by another team."
    )
    version: Name | None = Field(None, description="Version of the dataset. Default: its newest.")


class Files(Model):
    """Where the files of a model are."""

    url: ModelUrl | None = Field(
        None,
        description="Location of the model files, in the form of the runtime: a SavedModel, a model repository's "
        "directory of the model (`config.pbtxt`, `1/`), or a directory with `config.json` and weights; for some "
        "runtimes also `hf://ORGANISATION/NAME@COMMIT` on Hugging Face's hub. Omit it if the image has them.",
    )
    dataset: ModelDataset | None = Field(
        None, description="Dataset that has the model files: mounted through its cache tier, else copied."
    )
    path: AbsPath | None = Field(
        None,
        description="Directory of the model files in the image or on a volume of `pod`, for runtimes that are told it.",
    )
    secret: Name | None = Field(
        None,
        description="Secret with the store's credentials, or the key `token` for Hugging Face's hub. Default: that of "
        "the team bucket that contains the URL.",
    )
    files: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=32)] = Field(
        default_factory=list,
        description='Patterns of the files to copy from Hugging Face\'s hub: `["*.safetensors", "*.json"]`. '
        "Default: all, of weights only the safetensors if there are any.",
    )
    size: Bytes = Field("10Gi", description="Volume size for the model files, in bytes.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [key for key in ("url", "dataset", "path") if getattr(self, key) is not None]
        if len(given) > 1:
            raise value_error(f"`{given[0]}` and `{given[1]}` exclude each other", f"remove `{given[1]}`")
        if self.files and not (self.url or "").startswith(f"{HUB}://"):
            raise value_error("`files` has patterns of files on Hugging Face's hub", "remove `files`")
        return self

    @property
    def is_fetched(self) -> bool:
        """True if avactl brings the files into the pod."""
        return self.url is not None or self.dataset is not None


class ServedModel(Files):
    """Model to serve. Set one of `version` and `versions`."""

    model_config = exactly_one("version", "versions")

    name: ModelName = Field(description="Model name that clients request.")
    version: ModelName | None = Field(
        None, description="Version. Runtimes that find versions by directory require an integer."
    )
    versions: Annotated[list[ModelName], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="Versions that are live at the same time, in `models`. Each is a directory below `url`.",
    )
    labels: dict[Annotated[str, Field(pattern=_VERSION_PATTERN, max_length=63)], ModelName] = Field(
        default_factory=dict,
        max_length=16,
        description="Names of versions in `models`, by which clients request them, if the runtime has them: "
        '`{stable: "3"}`.',
    )

    @model_validator(mode="after")
    def _one_version(self) -> Self:
        if (self.version is None) == (self.versions is None):
            raise value_error("a model has either `version` or `versions`", 'write `version: "1"`')
        return self

    @property
    def live(self) -> list[str]:
        """Versions that are live."""
        return [self.version] if self.version is not None else list(self.versions or ())


class Adapter(Files):
    """LoRA adapter, which clients request as a model of its own."""

    name: ModelName = Field(description="Model name that clients request.")
    size: Bytes = Field("1Gi", description="Volume size for the files, in bytes.")
