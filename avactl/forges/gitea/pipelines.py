"""Workflows of Gitea Actions for a new repository. They use no actions, which an instance may not offer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from avactl.base.templates import read_files, substitute
from avactl.forges.forge import PipelineOptions

_APPLY, _PUBLISH = "avactl-apply.yml", "avactl-publish.yml"


def pipelines(options: PipelineOptions) -> dict[str, str]:
    """Return the workflows by path."""
    template = read_files(resources.files("avactl.forges.gitea") / "template")
    files = {}
    for path, data in template.items():
        name, text = path.rpartition("/")[2], data.decode()
        if name == _APPLY:
            if not options.applies:
                continue
            text = substitute(text, "PULUMI_VERSION", options.pulumi)
        elif name == _PUBLISH and not options.publishes:
            continue
        if options.environments and name in (_APPLY, _PUBLISH):
            text = _adapt(name, text, options.environments)
        files[path] = text
    return files


def _adapt(name: str, text: str, environments: Sequence[str]) -> str:
    """Return a workflow with a job for each environment."""
    job = "    runs-on: ubuntu-latest\n"
    matrix = f"    strategy: {{fail-fast: false, matrix: {{environment: [{', '.join(environments)}]}}}}\n"
    variable = "AVACTL_ENVIRONMENT: ${{ matrix.environment }}\n"
    if name == _APPLY:
        text = substitute(text, "    env:\n      DRIFT", f"    env:\n      {variable}      DRIFT")
    else:
        write = "    permissions:\n      contents: w"
        text = substitute(text, write, f"    env:\n      {variable}{write}")
        text = substitute(text, "--publish rendered\n", '--publish "rendered-$AVACTL_ENVIRONMENT"\n')
        text = substitute(text, "the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
    return substitute(text, job, job + matrix)
