"""`avactl.yaml` at the root of a spec repository: the included files, and what the repository allows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field, ValidationError

from avactl.compiler.problems.errors import to_diagnostics
from avactl.compiler.problems.remedies import show
from avactl.compiler.selection import CONFIG_FILE, missing, policy_files
from avactl.diagnostics import Diagnostic, Span
from avactl.diagnostics.suggest import closest
from avactl.kinds.base import Model
from avactl.kinds.fields.values import Duration, RelPath, seconds
from avactl.policy.owners import Owner, Owners
from avactl.policy.settings import Ready, Rules
from avactl.source.tree import Tree
from avactl.source.yaml import MAX_BYTES, load_yaml, too_large


class PythonFiles(Model):
    """Evaluation of Python spec files."""

    allow: bool = Field(
        False, description="Evaluate `*.py` files, without network access and with an empty environment."
    )
    timeout: Duration = Field("10s", description="Maximum evaluation time per file.")


class Config(Model):
    """The settings of a spec repository."""

    include: Annotated[list[RelPath], Field(min_length=1)] = Field(
        default_factory=lambda: ["."], description="Directories and files with specs."
    )
    exclude: list[RelPath] = Field(
        default_factory=list, description="Directories, files and patterns (`**/*.tmpl.yaml`) to skip."
    )
    owners: Annotated[list[Owner], Field(min_length=1)] | None = Field(
        None, description="Teams and kinds that files may declare, by path. Default: any file may declare anything."
    )
    python: PythonFiles = Field(default_factory=PythonFiles, description="Python spec files and Python policies.")
    policies: Ready = Field(default_factory=Ready, description="Built-in policies to enable.")


def unreadable(path: str, error: OSError) -> Diagnostic:
    """Return the diagnostic for an existing file that cannot be read."""
    hint = "replace it with a regular, readable file"
    if isinstance(error, PermissionError):
        hint = "check its permissions"
    elif isinstance(error, FileNotFoundError):
        hint = "it was deleted during the run: run the command again"
    return Diagnostic("file-unreadable", f"cannot be read: {error.strerror or error}", Span(path), hint=hint)


def unmatched(tree: Tree, config: Config, paths: Collection[str]) -> list[Diagnostic]:
    """Return a problem for each `include` entry that the repository does not have."""
    indexes = missing(config.include, paths)
    if not indexes or tree.skipped:
        return []
    documents, _ = load_yaml(CONFIG_FILE, tree.read(CONFIG_FILE))
    there = {part for path in paths for part in (path, path.rpartition("/")[0])} - {"", CONFIG_FILE}
    found = []
    for index in indexes:
        name = config.include[index]
        near = closest(name, there)
        hint = f"did you mean `{near}`?" if near else "correct the path, which is relative to avactl.yaml, or remove it"
        message = f"include[{index}]: `{name}` does not exist"
        found.append(Diagnostic("missing-reference", message, documents[0].span("include", index), hint=hint))
    return found


def load_config(tree: Tree) -> tuple[Config, list[Diagnostic]]:
    """Return the repository's settings, or the defaults if there is no file."""
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
        message = f"avactl.yaml: expected a mapping, got {show(document.value)}"
        problem = Diagnostic("wrong-type", message, document.span(), hint="begin with `include: [.]`")
        return Config(), [*problems, problem]
    if len(documents) > 1:
        hint = "merge the two documents"
        message = "avactl.yaml must contain a single document"
        problems.append(Diagnostic("wrong-type", message, documents[1].span(), hint=hint))
    value = document.value
    try:
        return Config.model_validate(value, by_alias=True, by_name=False), problems
    except ValidationError as error:
        wrong = {entry["loc"][0] for entry in error.errors()}
        # What is right counts: without it, files that are not meant to be specs would be told as well.
        config = Config.model_validate({key: value[key] for key in value if key not in wrong}, by_alias=True)
        return config, [*problems, *to_diagnostics(Config, document, error)]


def rules_of(config: Config, paths: Collection[str]) -> Rules | None:
    """Return the policies that apply to a repository, or None if it has none."""
    files = tuple(policy_files(config.exclude, paths))
    if not files and not config.policies.model_fields_set:
        return None
    return Rules(config.policies, files, config.python.allow, float(seconds(config.python.timeout)))


def owners_of(tree: Tree) -> Owners:
    """Return the `owners` of a repository; () if it has none."""
    return tuple(load_config(tree)[0].owners or ())
