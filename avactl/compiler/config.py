"""`avactl.yaml` at the root of a spec repository: the included files, and what the repository allows."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from typing import Annotated

from pydantic import Field, ValidationError

from avactl.compiler.errors import to_diagnostics
from avactl.compiler.lint.remedies import describe_value
from avactl.compiler.selection import CONFIG_FILE, Paths, policy_files, unmatched_includes
from avactl.diagnostics import Diagnostic, Reference, Span
from avactl.diagnostics.model import SPEC_PATH
from avactl.diagnostics.suggest import WordIndex, did_you_mean, one_of
from avactl.policy.owners import CodeOwner, Owners
from avactl.policy.settings import Ready, Rules
from avactl.spec.documents.yaml import MAX_BYTES, load_yaml, too_large
from avactl.spec.repository.tree import Tree
from avactl.spec.repository.tree_files import OWN_REPOSITORY
from avactl.spec.schema.base import Model
from avactl.spec.schema.values import Duration, Name, RelPath, duration_seconds

MAX_ENVIRONMENTS = 32
"""Maximum number of environments of a repository; `validate` compiles all of them."""


class PythonFiles(Model):
    """Evaluation of Python spec files."""

    allow: bool = Field(
        False, description="Evaluate `*.py` files, without network access and with an empty environment."
    )
    timeout: Duration = Field("10s", description="Maximum evaluation time per file.")


class Environment(Model):
    """One environment of a repository, such as production."""

    include: list[RelPath] = Field(
        default_factory=list, description="Directories and files with specs of this environment only, as its clusters."
    )
    overlays: list[RelPath] = Field(
        default_factory=list,
        description="Directories and files with overlays: partial specs that change others. Later ones win.",
    )


class RepositoryConfig(Model):
    """The settings of a spec repository."""

    include: Annotated[list[RelPath], Field(min_length=1)] = Field(
        default_factory=lambda: ["."], description="Directories and files with specs."
    )
    exclude: list[RelPath] = Field(
        default_factory=list, description="Directories, files and patterns (`**/*.tmpl.yaml`) to skip."
    )
    environments: Annotated[dict[Name, Environment], Field(max_length=MAX_ENVIRONMENTS)] = Field(
        default_factory=dict, description="Environments by name. Commands take one of them by `--environment`."
    )
    owners: Annotated[list[CodeOwner], Field(min_length=1)] | None = Field(
        None, description="Teams and kinds that files may declare, by path. Default: any file may declare anything."
    )
    python: PythonFiles = Field(default_factory=PythonFiles, description="Python spec files and Python policies.")
    policies: Ready = Field(default_factory=Ready, description="Built-in policies to enable.")


def unreadable_problem(path: str, error: OSError) -> Diagnostic:
    """Return the diagnostic for an existing file that cannot be read."""
    hint = "replace it with a regular, readable file"
    if isinstance(error, PermissionError):
        hint = "check its permissions"
    elif isinstance(error, FileNotFoundError):
        hint = "it was deleted during the run: run the command again"
    return Diagnostic("file-unreadable", f"cannot be read: {error.strerror or error}", Span(path), hint=hint)


def unmatched_paths(tree: Tree, config: RepositoryConfig, paths: Collection[str]) -> list[Diagnostic]:
    """Return a problem for each path in avactl.yaml that the repository does not have."""
    lists: list[tuple[tuple[str, ...], list[str]]] = [(("include",), config.include)]
    for name, environment in config.environments.items():
        lists.append((("environments", name, "include"), environment.include))
        lists.append((("environments", name, "overlays"), environment.overlays))
    found = [(key, index, names[index]) for key, names in lists for index in unmatched_includes(names, paths)]
    if not found or set(tree.skipped.values()) - {OWN_REPOSITORY}:
        return []
    documents, _ = load_yaml(CONFIG_FILE, tree.read(CONFIG_FILE))
    there = {part for path in paths for part in (path, path.rpartition("/")[0])} - {"", CONFIG_FILE}
    known = WordIndex(there)
    compiled = (("include",), ("environments", tree.environment, "include"))
    problems = []
    for key, index, name in found:
        near = known.closest(name)
        hint = f"did you mean `{near}`?" if near else "correct the path, which is relative to avactl.yaml, or remove it"
        message = f"{'.'.join(key)}[{index}]: `{name}` does not exist"
        span, about = documents[0].span(*key, index), Reference(SPEC_PATH, name) if key in compiled else None
        problems.append(Diagnostic("missing-reference", message, span, hint=hint, reference=about))
    return problems


def environment_paths(config: RepositoryConfig, environment: str) -> Paths:
    """Return the patterns of the files of an environment, or of a repository without environments."""
    every = config.environments
    if environment not in every:
        return Paths(config.include, config.exclude, [])
    mine = every[environment]
    others = [path for each in every.values() for path in each.include if path not in mine.include]
    overlays = [path for each in every.values() for path in each.overlays]
    return Paths([*config.include, *mine.include], [*config.exclude, *others, *overlays], mine.overlays)


def unknown_environment(tree: Tree, config: RepositoryConfig) -> Diagnostic | None:
    """Return the problem of a tree without one of the environments of its repository."""
    known, name = config.environments, tree.environment
    if name in known or not (name or known):
        return None
    if not known:
        hint = "declare it under `environments` in avactl.yaml, or remove `--environment`"
        return Diagnostic("unknown-environment", f"there is no environment `{name}`", Span(CONFIG_FILE), hint=hint)
    documents, _ = load_yaml(CONFIG_FILE, tree.read(CONFIG_FILE))
    span = documents[0].span("environments", key=True) if documents else Span(CONFIG_FILE)
    if name:
        hint = did_you_mean(name, known, "environments")
        return Diagnostic("unknown-environment", f"there is no environment `{name}`", span, hint=hint)
    hint = f"add `--environment {next(iter(known))}`, or set AVACTL_ENVIRONMENT"
    message = f"choose an environment: {one_of(known)}"
    return Diagnostic("unknown-environment", message, span, hint=hint)


def base_in_environment(tree: Tree) -> Tree:
    """Return the earlier revision of a change. Before its repository had environments, it was the same in all."""
    if not tree.environment or load_config(tree)[0].environments:
        return tree
    plain = copy(tree)
    plain.environment = ""  # type: ignore[misc]
    return plain


def load_config(tree: Tree) -> tuple[RepositoryConfig, list[Diagnostic]]:
    """Return the repository's settings, or the defaults if there is no file."""
    try:
        size = tree.size(CONFIG_FILE)
        if size > MAX_BYTES:
            return RepositoryConfig(), [too_large(CONFIG_FILE, size)]
        data = tree.read(CONFIG_FILE)
    except FileNotFoundError:
        return RepositoryConfig(), []
    except OSError as error:
        return RepositoryConfig(), [unreadable_problem(CONFIG_FILE, error)]
    documents, problems = load_yaml(CONFIG_FILE, data)
    if not documents:
        return RepositoryConfig(), [p for p in problems if p.code != "empty-file"]
    document = documents[0]
    if not isinstance(document.value, dict):
        message = f"avactl.yaml: expected a mapping, got {describe_value(document.value)}"
        problem = Diagnostic("wrong-type", message, document.span(), hint="begin with `include: [.]`")
        return RepositoryConfig(), [*problems, problem]
    if len(documents) > 1:
        hint = "merge the two documents"
        message = "avactl.yaml must contain a single document"
        problems.append(Diagnostic("wrong-type", message, documents[1].span(), hint=hint))
    value = document.value
    try:
        return RepositoryConfig.model_validate(value, by_alias=True, by_name=False), problems
    except ValidationError as error:
        wrong = {entry["loc"][0] for entry in error.errors()}
        # What is right counts: without it, files that are not meant to be specs would be told as well.
        config = RepositoryConfig.model_validate({key: value[key] for key in value if key not in wrong}, by_alias=True)
        return config, [*problems, *to_diagnostics(RepositoryConfig, document, error)]


def rules_of(config: RepositoryConfig, paths: Collection[str]) -> Rules | None:
    """Return the policies that apply to a repository, or None if it has none."""
    files = tuple(policy_files(config.exclude, paths))
    if not files and not config.policies.model_fields_set:
        return None
    return Rules(config.policies, files, config.python.allow, float(duration_seconds(config.python.timeout)))


def owners_of(tree: Tree) -> Owners:
    """Return the `owners` of a repository; () if it has none."""
    return tuple(load_config(tree)[0].owners or ())
