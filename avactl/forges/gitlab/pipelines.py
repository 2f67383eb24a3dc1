"""Pipelines of GitLab CI for a new repository."""

from __future__ import annotations

from collections.abc import Sequence

from avactl.base.templates import substitute
from avactl.forges.forge import PipelineOptions
from avactl.forges.pipeline_files import PUBLISHED_BRANCHES, read_template

_PIPELINE, _STACK, _STACKS = ".gitlab-ci.yml", ".gitlab/stack.yml", ".gitlab/stacks.sh"


def pipelines(options: PipelineOptions) -> dict[str, str]:
    """Return the pipelines by path."""
    files = read_template("gitlab", {"PULUMI_VERSION": options.pulumi})
    publish = files.pop("gitlab-publish.yml")
    if not options.applies:
        files = {_PIPELINE: _without_stacks(files[_PIPELINE], publish if options.publishes else "")}
    return _adapt(files, options.environments) if options.environments else files


def _without_stacks(text: str, publish: str) -> str:
    """Return the pipeline without the jobs of stacks, and with that which publishes rendered files, if it is given."""
    text = text[: text.index("\nstacks:\n")]
    head = "# Default branch: the rendered objects are committed to the branch `rendered`.\n" if publish else ""
    variable = "GITLAB_TOKEN (masked; not protected, because pipelines of merge requests would not get it)"
    more = ", and,\n# masked and protected, RENDERED_TOKEN" if publish else ""
    about = text[text.index("# Default branch:") : text.index("stages:")]
    new = f"{head}# Variables to set: {variable}{more}.\n# docs/ci.md of avactl describes them.\n"
    text = substitute(text, about, new)
    stages = "[check, publish]" if publish else "[check]"
    return substitute(text, "stages: [check, stacks, apply]", f"stages: {stages}") + (f"\n{publish}" if publish else "")


def _adapt(files: dict[str, str], environments: Sequence[str]) -> dict[str, str]:
    """Return the pipelines of a repository with environments."""
    adapted = {_PIPELINE: _adapt_pipeline(files[_PIPELINE], environments)}
    if _STACK in files:
        adapted[_STACK] = substitute(files[_STACK], "{name: production, action", "{name: $AVACTL_ENVIRONMENT, action")
        text = substitute(files[_STACKS], "while read -r stack; do", "while read -r environment stack; do")
        text = substitute(text, 'variables: {STACK: "%s"}', 'variables: {STACK: "%s", AVACTL_ENVIRONMENT: "%s"}')
        adapted[_STACKS] = substitute(
            text, '"$stack" "$stage" "$stack" "$stack"', '"$stack" "$stage" "$stack" "$environment" "$stack"'
        )
    return adapted


def _adapt_pipeline(text: str, environments: Sequence[str]) -> str:
    plan = 'avactl plan --merge-base --base "origin/$CI_MERGE_REQUEST_TARGET_BRANCH_NAME" --head HEAD'
    loop = (
        f"|\n      for environment in {' '.join(environments)}; do\n"
        f'        {plan} --environment "$environment"\n      done'
    )
    text = substitute(text, plan, loop)
    if "\nstacks:\n" in text:
        text = substitute(text, "avactl stacks --base", "avactl stacks --all-environments --base")
    if "\npublish:\n" in text:
        matrix = f"  parallel:\n    matrix: [{{AVACTL_ENVIRONMENT: [{', '.join(environments)}]}}]\n"
        group = "  resource_group: avactl/rendered"
        text = substitute(text, f"{group}\n", f"{group}-$AVACTL_ENVIRONMENT\n{matrix}")
        text = substitute(
            text, "render --publish rendered --to", 'render --publish "rendered-$AVACTL_ENVIRONMENT" --to'
        )
        text = substitute(text, *PUBLISHED_BRANCHES)
    return text
