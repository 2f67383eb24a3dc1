"""Environments of a new repository: their clusters and overlays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from avactl.base.templates import substitute

_CONFIG_COMMENT = """# Environments: `avactl validate` checks all, other commands take `--environment NAME`.
environments:
"""
_ENVIRONMENT_ENTRY = """  {name}:
    include: [clusters/{name}]     # its clusters and pools
    overlays: [overlays/{name}]    # what it changes of the specs in teams/
"""
_OVERLAY_COMMENT = """# What {name} changes: the spec that it names, and the keys that differ.
apiVersion: avactl.dev/v1
{kind}
metadata: {{name: hello, team: vision, labels: {{environment: {name}}}}}
"""
_PLACED_EXAMPLE = """spec: {{cluster: {cluster}}}
---
apiVersion: avactl.dev/v1
kind: Quota
metadata: {{name: gpus, team: vision}}
spec: {{cluster: {cluster}}}
"""


def in_environments(files: Mapping[str, str], environments: Sequence[str]) -> dict[str, str]:
    """Return the files of a repository with environments, each with all clusters under names of its own."""
    found: dict[str, str] = {}
    for path, text in files.items():
        if path.startswith("clusters/"):
            for name in environments:
                cluster = path.removeprefix("clusters/").removesuffix(".yaml")
                found[f"clusters/{name}/{cluster}.yaml"] = _of_cluster(text, cluster, name)
        else:
            found[path] = _adapt_file(path, text, environments)
    clusters = [path[len("clusters/") : -len(".yaml")] for path in files if path.startswith("clusters/")]
    for name in environments:
        placed = _PLACED_EXAMPLE.format(cluster=f"{name}-{clusters[0]}") if len(clusters) > 1 else ""
        kind = re.findall(r"(?m)^kind: \w+$", files["teams/vision/hello.yaml"])[0]
        found[f"overlays/{name}/vision.yaml"] = _OVERLAY_COMMENT.format(name=name, kind=kind) + placed
    return found


def _of_cluster(text: str, cluster: str, environment: str) -> str:
    return re.sub(rf"(name: |cluster: ){re.escape(cluster)}\b", rf"\g<1>{environment}-{cluster}", text).replace(
        "{name: a10}", f"{{name: {environment}-a10}}"
    )


def _adapt_file(path: str, text: str, environments: Sequence[str]) -> str:
    if path == "avactl.yaml":
        text = substitute(text, "include: [clusters, teams]", "include: [teams]")
        made = "".join(_ENVIRONMENT_ENTRY.format(name=each) for each in environments)
        return substitute(text, "# Who may declare", f"{_CONFIG_COMMENT}{made}# Who may declare")
    if path == "README.md":
        chosen = f"export AVACTL_ENVIRONMENT={environments[0]}   # or {', '.join(environments[1:]) or 'another'}\n"
        text = substitute(text, "avactl diff  ", f"{chosen}avactl diff  ")
        text = text.replace("the branch `rendered`", "the branches `rendered-ENVIRONMENT`")
        text = text.replace("`avactl reconcile --watch`", "`avactl reconcile --watch --environment NAME`")
        text = text.replace("avactl render -o out && kubectl", "avactl render --environment NAME -o out && kubectl")
        return substitute(
            text,
            "`clusters/` contains clusters and node pools,",
            "`clusters/` contains the clusters and node pools of each environment, `overlays/` what it changes,",
        )
    return text
