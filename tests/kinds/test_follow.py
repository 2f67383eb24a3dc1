"""What makes GitOps engines follow a repository. The objects were applied to the engines' own CRDs with strict
validation; here is what must hold whatever those look like."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from avactl.apply.files.paths import object_path
from avactl.apply.pulumi.engine import stack_names
from avactl.compiler import Compilation, compile_tree
from avactl.spec.repository.tree import DirTree, MemoryTree
from tests.conftest import ROOT
from tests.kinds.compiling import body, compiled
from tests.kinds.test_cluster import BUILTIN, DAEMONS

GIT = "repository: https://git.example.com/platform/specs.git"


def ava(reconcile: str) -> Compilation:
    """examples/ava whose clusters are applied in this way."""
    root = ROOT / "examples" / "ava"
    files = {path: DirTree(root).read(path).decode() for path in [*DirTree(root).paths(), "avactl.yaml"]}
    files = {
        path: text.replace("reconcile: {mode: pulumi}", f"reconcile: {{{reconcile}}}") for path, text in files.items()
    }
    compilation = compile_tree(MemoryTree(files))
    assert compilation.ok, compilation.diagnostics
    return compilation


def specs(compilation: Compilation, kind: str, cluster: str = "train") -> dict[str, Any]:
    return {m.name: m.body["spec"] for m in compilation.manifests if m.kind == kind and m.cluster == cluster}


def directories(compilation: Compilation, cluster: str) -> set[str]:
    """What the rendered files of a cluster stand in: the platform's directory and one for each team."""
    return {str(Path(object_path(m)).parents[1]) for m in compilation.manifests if m.cluster == cluster}


@pytest.mark.parametrize("cluster", ["train", "serve"])
def test_every_rendered_directory_is_followed_and_no_other(cluster: str) -> None:
    flux = specs(ava(f"mode: flux, {GIT}, path: deploy/"), "Kustomization", cluster)
    wanted = {f"./deploy/{path}" for path in directories(ava("mode: files"), cluster)}
    assert {spec["path"] for spec in flux.values()} == wanted
    argo = ava(f"mode: argocd, {GIT}")
    (root,) = specs(argo, "Application", cluster).values()
    (teams,) = specs(argo, "ApplicationSet", cluster).values()
    elements = teams["generators"][0]["list"]["elements"]
    assert {root["source"]["path"], *(e["path"] for e in elements)} == directories(ava("mode: files"), cluster)
    operator = ava(f"mode: pulumiOperator, {GIT}, serviceAccount: pulumi")
    stacks = {spec["stack"] for spec in specs(operator, "Stack", cluster).values()}
    assert stacks == {str(name) for name in stack_names(operator) if name.cluster == cluster}


def test_teams_come_after_the_platform() -> None:
    flux = specs(ava(f"mode: flux, {GIT}"), "Kustomization")
    assert "dependsOn" not in flux["train"]
    teams = {name: spec.get("dependsOn") for name, spec in flux.items() if name != "train"}
    assert teams == {f"train-{team}": [{"name": "train"}] for team in ("ads", "students", "video", "vision")}
    stacks = specs(ava(f"mode: pulumiOperator, {GIT}, serviceAccount: pulumi"), "Stack")
    assert "prerequisites" not in stacks["train"]
    assert stacks["train-vision"]["prerequisites"] == [{"name": "train"}]


@pytest.mark.parametrize(
    ("reconcile", "kinds", "mark"),
    [
        (f"mode: flux, {GIT}", ("GitRepository",), ("kustomize.toolkit.fluxcd.io/prune", "disabled")),
        (
            f"mode: argocd, {GIT}",
            ("Application", "ApplicationSet"),
            ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
        ),
    ],
)
def test_an_engine_never_prunes_what_it_is_driven_by(
    reconcile: str, kinds: tuple[str, ...], mark: tuple[str, str]
) -> None:
    found = [m for m in ava(reconcile).manifests if m.kind in kinds or (m.kind, m.name) == ("Kustomization", "train")]
    assert len(found) >= 2
    assert all(m.body["metadata"]["annotations"][mark[0]] == mark[1] for m in found)


def test_a_change_never_replaces_jobs_that_did_not_change() -> None:
    """Jobs carry Argo CD's Replace=true; a sync of the whole application would restart every run."""
    compilation = ava(f"mode: argocd, {GIT}")
    (teams,) = specs(compilation, "ApplicationSet").values()
    (platform,) = specs(compilation, "Application").values()
    for spec in (teams["template"]["spec"], platform):
        assert "ApplyOutOfSyncOnly=true" in spec["syncPolicy"]["syncOptions"]


def test_a_team_is_followed_from_its_first_spec_on() -> None:
    team = "apiVersion: avactl.dev/v1\nkind: Team\nmetadata: {name: audio}\nspec: {members: {users: [eve]}}\n"
    quota = "apiVersion: avactl.dev/v1\nkind: Quota\nmetadata: {name: gpus, team: audio}\nspec: {cpu: 8}\n"
    cluster = "apiVersion: avactl.dev/v1\nkind: Cluster\nmetadata: {name: main}\n"
    cluster += f"spec: {{reconcile: {{mode: flux, {GIT}}}}}\n"
    followed = []
    for files in ({"c.yaml": cluster, "t.yaml": team}, {"c.yaml": cluster, "t.yaml": f"{team}---\n{quota}"}):
        compilation = compile_tree(MemoryTree(files))
        assert compilation.ok, compilation.diagnostics
        followed.append(set(specs(compilation, "Kustomization", "main")))
    assert followed == [{"main"}, {"main", "main-audio"}]


def test_without_a_repository_the_engine_is_only_marked_for() -> None:
    compilation = ava("mode: flux")
    assert not specs(compilation, "Kustomization")
    claim = next(m for m in compilation.manifests if m.kind == "PersistentVolumeClaim" and m.holds_data)
    assert claim.body["metadata"]["annotations"]["kustomize.toolkit.fluxcd.io/prune"] == "disabled"


def test_secrets_are_named_never_held() -> None:
    ssh = ava("mode: pulumiOperator, repository: 'ssh://git@git.example.com/specs.git', serviceAccount: p, secret: key")
    assert specs(ssh, "Stack")["train"]["gitAuth"] == {
        "sshAuth": {"sshPrivateKey": {"type": "Secret", "secret": {"name": "key", "key": "sshPrivateKey"}}}
    }
    flux = ava(f"mode: flux, {GIT}, secret: key, interval: 1d")
    assert specs(flux, "GitRepository")["train"]["secretRef"] == {"name": "key"}
    assert specs(flux, "GitRepository")["train"]["interval"] == "86400s"


def test_the_reconciler_reads_the_branch_with_what_the_secret_holds(tmp_path: Path) -> None:
    """As git itself asks: username and password come out of the files of the Secret, as they are at that moment."""
    pod = body(compiled(DAEMONS + BUILTIN), "Deployment", "avactl-reconcile", "avactl-system")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    env = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "git")
    env["GIT_CONFIG_VALUE_0"] = env["GIT_CONFIG_VALUE_0"].replace(mount["mountPath"], str(tmp_path))
    for token in ("old", "n=w $(id) %s"):
        (tmp_path / "username").write_text("robot")
        (tmp_path / "password").write_text(token + "\n")
        asked, other = (
            subprocess.run(
                ["git", "credential", "fill"],
                input=f"protocol=https\nhost={host}\n\n",
                text=True,
                env={
                    "PATH": os.environ["PATH"],
                    "HOME": str(tmp_path),
                    "GIT_TERMINAL_PROMPT": "0",
                    **{k: v for k, v in env.items() if "GIT" in k},
                },
                capture_output=True,
                check=False,
            ).stdout
            for host in ("git.example.com", "git.example.com.example.net")
        )
        assert other == ""
        assert asked.splitlines()[-2:] == ["username=robot", f"password={token}"]
