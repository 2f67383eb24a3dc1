"""Workflows of GitHub Actions for a new repository."""

from __future__ import annotations

from avactl.forges.forge import PipelineOptions
from avactl.forges.pipeline_files import MATRIX, PUBLISHED_BRANCHES, PipelineFile, choose_files, read_template

_STACK = "      stack: ${{ matrix.stack }}\n"
_STACKS = (
    ("        stack: ${{ fromJSON(", "        include: ${{ fromJSON("),
    (_STACK, f"{_STACK}      environment: ${{{{ matrix.environment }}}}\n"),
)
_WRITE = "    permissions:\n      contents: write"
_FOLDER = ".github/workflows"
_FILES = {
    f"{_FOLDER}/avactl.yml": PipelineFile(),
    f"{_FOLDER}/avactl-apply.yml": PipelineFile(
        applies=True, environments=(("avactl stacks --base", "avactl stacks --all-environments --base"), *_STACKS)
    ),
    f"{_FOLDER}/avactl-drift.yml": PipelineFile(
        applies=True, environments=(("avactl stacks --format", "avactl stacks --all-environments --format"), *_STACKS)
    ),
    f"{_FOLDER}/avactl-stack.yml": PipelineFile(
        applies=True,
        environments=(
            ("      drift:\n", "      environment:\n        type: string\n        required: true\n      drift:\n"),
            ("in the environments `production` and `drift`", "in the environments NAME and `NAME-drift`"),
            (
                "environment: ${{ inputs.drift && 'drift' || 'production' }}  ",
                "environment: ${{ inputs.drift && format('{0}-drift', inputs.environment) || inputs.environment }}  ",
            ),
            ("      STACK: ${{", "      AVACTL_ENVIRONMENT: ${{ inputs.environment }}\n      STACK: ${{"),
        ),
    ),
    f"{_FOLDER}/avactl-publish.yml": PipelineFile(
        publishes=True,
        environments=(
            (_WRITE, MATRIX + _WRITE),
            ("avactl render --publish rendered\n", 'avactl render --publish "rendered-$AVACTL_ENVIRONMENT"\n'),
            ("        env:\n", "        env:\n          AVACTL_ENVIRONMENT: ${{ matrix.environment }}\n"),
            PUBLISHED_BRANCHES,
        ),
    ),
}


def pipelines(options: PipelineOptions) -> dict[str, str]:
    """Return the workflows by path."""
    return choose_files(read_template("github", {}), _FILES, options)
