"""Workflows of Gitea Actions for a new repository. They use no actions, which an instance may not offer."""

from __future__ import annotations

from typing import NamedTuple

from avactl.forges.forge import PipelineOptions
from avactl.forges.pipeline_files import MATRIX, PUBLISHED_BRANCHES, PipelineFile, choose_files, read_template


class WorkflowDialect(NamedTuple):
    """Differences between the forges that run these workflows."""

    folder: str
    token: str
    """Variable, and secret of each job, with the token."""
    runner: str
    """Label that runners have by default."""


GITEA = WorkflowDialect(".gitea", "GITEA_TOKEN", "ubuntu-latest")
_VARIABLE = "AVACTL_ENVIRONMENT: ${{ matrix.environment }}\n"
_CONTAINER = "    container:\n"
_WRITE = "    permissions:\n      contents: w"
_FILES = {
    "workflows/avactl.yml": PipelineFile(),
    "workflows/avactl-apply.yml": PipelineFile(
        applies=True,
        environments=(
            ("    env:\n      DRIFT", f"    env:\n      {_VARIABLE}      DRIFT"),
            (_CONTAINER, MATRIX + _CONTAINER),
        ),
    ),
    "workflows/avactl-publish.yml": PipelineFile(
        publishes=True,
        environments=(
            (_WRITE, f"    env:\n      {_VARIABLE}{_WRITE}"),
            ("--publish rendered\n", '--publish "rendered-$AVACTL_ENVIRONMENT"\n'),
            PUBLISHED_BRANCHES,
            (_CONTAINER, MATRIX + _CONTAINER),
        ),
    ),
}


def pipelines(options: PipelineOptions, dialect: WorkflowDialect) -> dict[str, str]:
    """Return the workflows by path."""
    parameters = {
        "PULUMI_VERSION": options.pulumi,
        "TOKEN_NAME": dialect.token,
        "RUNNER_LABEL": dialect.runner,
    }
    files = choose_files(read_template("gitea", parameters), _FILES, options)
    return {f"{dialect.folder}/{path}": text for path, text in files.items()}
