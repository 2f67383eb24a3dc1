"""Workflows of GitHub Actions for a new repository."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from avactl.base.templates import read_files, substitute
from avactl.forges.forge import PipelineOptions

_STACK = "      stack: ${{ matrix.stack }}\n"
_ENVIRONMENTS = {
    "avactl-apply.yml": (
        ("avactl stacks --base", "avactl stacks --all-environments --base"),
        ("        stack: ${{ fromJSON(", "        include: ${{ fromJSON("),
        (_STACK, f"{_STACK}      environment: ${{{{ matrix.environment }}}}\n"),
    ),
    "avactl-drift.yml": (
        ("avactl stacks --format", "avactl stacks --all-environments --format"),
        ("        stack: ${{ fromJSON(", "        include: ${{ fromJSON("),
        (_STACK, f"{_STACK}      environment: ${{{{ matrix.environment }}}}\n"),
    ),
    "avactl-stack.yml": (
        ("      drift:\n", "      environment:\n        type: string\n        required: true\n      drift:\n"),
        ("in the environments `production` and `drift`", "in the environments NAME and `NAME-drift`"),
        (
            "environment: ${{ inputs.drift && 'drift' || 'production' }}  ",
            "environment: ${{ inputs.drift && format('{0}-drift', inputs.environment) || inputs.environment }}  ",
        ),
        ("      STACK: ${{", "      AVACTL_ENVIRONMENT: ${{ inputs.environment }}\n      STACK: ${{"),
    ),
    "avactl.yml": (),
}
"""Changes of the workflows for a repository with environments: text and replacement."""


def pipelines(options: PipelineOptions) -> dict[str, str]:
    """Return the workflows by path."""
    written = {"avactl.yml"}
    if options.applies:
        written |= {"avactl-apply.yml", "avactl-drift.yml", "avactl-stack.yml"}
    if options.publishes:
        written.add("avactl-publish.yml")
    files = {}
    for path, data in read_files(resources.files("avactl.forges.github") / "template").items():
        name = path.rpartition("/")[2]
        if name in written:
            files[path] = _adapt(name, data.decode(), options.environments) if options.environments else data.decode()
    return files


def _adapt(name: str, text: str, environments: Sequence[str]) -> str:
    if name == "avactl-publish.yml":
        return publish_environments(text, environments)
    for old, new in _ENVIRONMENTS[name]:
        text = substitute(text, old, new)
    return text


def publish_environments(text: str, environments: Sequence[str]) -> str:
    """Return the workflow that publishes, with a job for each environment."""
    matrix = f"    strategy: {{fail-fast: false, matrix: {{environment: [{', '.join(environments)}]}}}}\n"
    permissions = "    permissions:\n      contents: write"
    text = substitute(text, permissions, matrix + permissions)
    text = substitute(
        text, "avactl render --publish rendered\n", 'avactl render --publish "rendered-$AVACTL_ENVIRONMENT"\n'
    )
    text = substitute(text, "        env:\n", "        env:\n          AVACTL_ENVIRONMENT: ${{ matrix.environment }}\n")
    return substitute(text, "the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
