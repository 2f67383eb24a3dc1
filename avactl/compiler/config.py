"""`avactl.yaml` at the root of a spec repository: what belongs to it, and what it allows."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError

from avactl.compiler.errors import to_diagnostics
from avactl.compiler.selection import CONFIG_FILE
from avactl.compiler.state import Tree
from avactl.diagnostics import Diagnostic, Span
from avactl.kinds.base import Model
from avactl.kinds.values import Duration, RelPath
from avactl.source.yaml import MAX_BYTES, load_yaml, too_large


class PythonFiles(Model):
    """Whether Python spec files are evaluated, and for how long."""

    allow: bool = Field(False, description="Evaluate `*.py` files. They run with no network and an empty environment.")
    timeout: Duration = Field("10s", description="Longest evaluation of one file.")


class Config(Model):
    """The settings of a spec repository."""

    include: Annotated[list[RelPath], Field(min_length=1)] = Field(
        default_factory=lambda: ["."], description="Directories and files that hold specs."
    )
    exclude: list[RelPath] = Field(
        default_factory=list, description="Directories, files and patterns (`**/*.tmpl.yaml`) that do not."
    )
    python: PythonFiles = Field(default_factory=PythonFiles, description="Python spec files.")


def unreadable(path: str, error: OSError) -> Diagnostic:
    """The diagnostic of a file that is there and cannot be read."""
    hint = "look at its permissions" if isinstance(error, PermissionError) else "put a file there that can be read"
    return Diagnostic("file-unreadable", f"cannot be read: {error.strerror or error}", Span(path), hint=hint)


def load_config(tree: Tree) -> tuple[Config, list[Diagnostic]]:
    """The repository's settings, the defaults where there is no file."""
    try:
        size = tree.size(CONFIG_FILE)
        if size > MAX_BYTES:
            return Config(), [too_large(CONFIG_FILE, size)]
        data = tree.read(CONFIG_FILE)
    except FileNotFoundError:
        return Config(), []
    except OSError as error:
        return Config(), [unreadable(CONFIG_FILE, error)]
    documents, problems = load_yaml(CONFIG_FILE, data)
    if not documents:
        return Config(), [p for p in problems if p.code != "empty-file"]
    document = documents[0]
    if not isinstance(document.value, dict):
        problem = Diagnostic("wrong-type", "avactl.yaml: expected a mapping", document.span())
        return Config(), [*problems, problem]
    try:
        return Config.model_validate(document.value, by_alias=True, by_name=False), problems
    except ValidationError as error:
        return Config(), [*problems, *to_diagnostics(Config, document, error)]
