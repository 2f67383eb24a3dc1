"""Environments of a new repository: their clusters and overlays, and pipelines that apply each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_STACK = "      stack: ${{ matrix.stack }}\n"
_CONFIG = """# Environments: `avactl validate` checks all, other commands take `--environment NAME`.
environments:
"""
_ENVIRONMENT = """  {name}:
    include: [clusters/{name}]     # its clusters and pools
    overlays: [overlays/{name}]    # what it changes of the specs in teams/
"""
_OVERLAY = """# What {name} changes: the spec that it names, and the keys that differ.
apiVersion: avactl.dev/v1
{kind}
metadata: {{name: hello, team: vision, labels: {{environment: {name}}}}}
"""
_PLACED = """spec: {{cluster: {cluster}}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {{name: gpus, team: vision}}
spec: {{cluster: {cluster}}}
"""
_WORKFLOWS = {
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
}
"""Changes of GitHub's workflows: text and replacement."""


def in_environments(files: Mapping[str, str], environments: Sequence[str]) -> dict[str, str]:
    """Return the files of a repository with environments, each with all clusters under names of its own."""
    found: dict[str, str] = {}
    for path, text in files.items():
        if path.startswith("clusters/"):
            for name in environments:
                cluster = path.removeprefix("clusters/").removesuffix(".yaml")
                found[f"clusters/{name}/{cluster}.yaml"] = _of_cluster(text, cluster, name)
        else:
            found[path] = _adapted(path, text, environments)
    clusters = [path[len("clusters/") : -len(".yaml")] for path in files if path.startswith("clusters/")]
    for name in environments:
        placed = _PLACED.format(cluster=f"{name}-{clusters[0]}") if len(clusters) > 1 else ""
        kind = re.findall(r"(?m)^kind: \w+$", files["teams/vision/hello.yaml"])[0]
        found[f"overlays/{name}/vision.yaml"] = _OVERLAY.format(name=name, kind=kind) + placed
    return found


def _of_cluster(text: str, cluster: str, environment: str) -> str:
    return re.sub(rf"(name: |cluster: ){re.escape(cluster)}\b", rf"\g<1>{environment}-{cluster}", text).replace(
        "{name: a10}", f"{{name: {environment}-a10}}"
    )


def _adapted(path: str, text: str, environments: Sequence[str]) -> str:
    name, listed = path.rpartition("/")[2], ", ".join(environments)
    for old, new in _WORKFLOWS.get(name, ()):
        text = _replaced(text, old, new)
    if path == "avactl.yaml":
        text = _replaced(text, "include: [clusters, teams]", "include: [teams]")
        made = "".join(_ENVIRONMENT.format(name=each) for each in environments)
        return _replaced(text, "# Who may declare", f"{_CONFIG}{made}# Who may declare")
    if name == "avactl-publish.yml":
        matrix = f"    strategy: {{fail-fast: false, matrix: {{environment: [{listed}]}}}}\n"
        text = _replaced(
            text, "    permissions:\n      contents: write", f"{matrix}    permissions:\n      contents: write"
        )
        text = _replaced(
            text, "avactl render --publish rendered\n", 'avactl render --publish "rendered-$AVACTL_ENVIRONMENT"\n'
        )
        text = _replaced(
            text, "        env:\n", "        env:\n          AVACTL_ENVIRONMENT: ${{ matrix.environment }}\n"
        )
        return _replaced(text, "the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
    if path == ".gitlab-ci.yml":
        return _gitlab(text, listed, environments)
    if path == ".gitlab/stack.yml":
        return _replaced(text, "{name: production, action", "{name: $AVACTL_ENVIRONMENT, action")
    if path == ".gitlab/stacks.sh":
        text = _replaced(text, "while read -r stack; do", "while read -r environment stack; do")
        text = _replaced(text, 'variables: {STACK: "%s"}', 'variables: {STACK: "%s", AVACTL_ENVIRONMENT: "%s"}')
        return _replaced(
            text, '"$stack" "$stage" "$stack" "$stack"', '"$stack" "$stage" "$stack" "$environment" "$stack"'
        )
    if path == "README.md":
        chosen = f"export AVACTL_ENVIRONMENT={environments[0]}   # or {', '.join(environments[1:]) or 'another'}\n"
        text = _replaced(text, "avactl diff  ", f"{chosen}avactl diff  ")
        text = text.replace("the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
        text = text.replace("`avactl reconcile --watch`", "`avactl reconcile --watch --environment NAME`")
        text = text.replace("avactl render -o out && kubectl", "avactl render --environment NAME -o out && kubectl")
        return _replaced(
            text, "`clusters/` contains clusters and node pools,",
            "`clusters/` contains the clusters and node pools of each environment, `overlays/` what it changes,",
        )  # fmt: skip
    return text


def _gitlab(text: str, listed: str, environments: Sequence[str]) -> str:
    plan = 'avactl plan --merge-base --base "origin/$CI_MERGE_REQUEST_TARGET_BRANCH_NAME" --head HEAD'
    loop = (
        f"|\n      for environment in {' '.join(environments)}; do\n"
        f'        {plan} --environment "$environment"\n      done'
    )
    text = _replaced(text, plan, loop)
    text = text.replace("avactl stacks --base", "avactl stacks --all-environments --base")
    if "\npublish:\n" in text:
        matrix = f"  parallel:\n    matrix: [{{AVACTL_ENVIRONMENT: [{listed}]}}]\n"
        group = "  resource_group: avactl/rendered"
        text = _replaced(text, f"{group}\n", f"{group}-$AVACTL_ENVIRONMENT\n{matrix}")
        text = _replaced(text, "render --publish rendered --to", 'render --publish "rendered-$AVACTL_ENVIRONMENT" --to')
        text = _replaced(text, "the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
    return text


def _replaced(text: str, old: str, new: str) -> str:
    """Return the text with a part replaced wherever it is. Raises LookupError if the template lacks it."""
    if old not in text:
        raise LookupError(f"the template has no {old!r}")
    return text.replace(old, new)
