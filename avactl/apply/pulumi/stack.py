"""The Pulumi program of a stack, for `pulumi up` by hand; `stacks/__main__.py` runs it.

Settings of a stack (`pulumi config set NAME VALUE`), all optional in a repository with a `stacks` directory:
`path`: the spec repository relative to the project's directory, default `..`. `cluster` and `team`: the contents of
the stack, default from its name, `CLUSTER` or `CLUSTER.TEAM`. `context` and `kubeconfig`: access to the cluster;
default of the context: the one with the cluster's name, and in a repository with a single cluster the current one.
`adopt`: take over existing objects. `base`: the last applied git revision, so that renamed specs keep their
objects.
"""

from __future__ import annotations

from pathlib import Path

import pulumi

from avactl.apply.pulumi import aliases as pulumi_aliases
from avactl.apply.pulumi.engine import WrongUseError, find_context, stack_names
from avactl.apply.pulumi.resource_plan import of_stack
from avactl.apply.pulumi.resources import register_stack
from avactl.base.kubeconfig import AccessError, KubeconfigError, locate_kubeconfig
from avactl.compiler import Compilation, compile_tree
from avactl.compiler.config import base_in_environment
from avactl.diagnostics.text import render_problems
from avactl.spec.repository.checkout import open_tree
from avactl.spec.repository.git import GitError
from avactl.spec.repository.git_tree import GitTree
from avactl.spec.repository.tree import Tree


def run() -> None:
    """Compile the repository and register the objects of the running update's stack."""
    config = pulumi.Config()
    root = Path(config.get("path") or "..")
    cluster, _, team = pulumi.get_stack().partition(".")
    cluster, owner = config.get("cluster") or cluster, config.get("team") or team or None
    compilation = _compile_tree(open_tree(root))
    manifests = of_stack(compilation, cluster, owner)
    if cluster not in {stack.cluster for stack in stack_names(compilation)}:
        raise pulumi.RunError(
            f"{root} has no cluster `{cluster}` that Pulumi applies (`reconcile.mode`): name the stack CLUSTER or "
            "CLUSTER.TEAM"
        )
    former = pulumi_aliases.Aliases()
    if base := config.get("base"):
        try:
            before = of_stack(_compile_tree(base_in_environment(GitTree(root, base))), cluster, owner)
        except GitError as error:
            raise pulumi.RunError(f"avactl:base: {error}") from error
        stack = pulumi.get_stack()
        former = pulumi_aliases.former_urns(pulumi_aliases.from_manifests(before, stack), manifests, stack)
    register_stack(
        compilation,
        cluster,
        owner,
        context=_kubeconfig_context(compilation, cluster, config),
        kubeconfig=config.get("kubeconfig"),
        adopt=config.get_bool("adopt") or False,
        former=former,
    )


def _kubeconfig_context(compilation: Compilation, cluster: str, config: pulumi.Config) -> str | None:
    """Return the context of the cluster, as `avactl up` chooses it; None in the operator's pod, without a kubeconfig.

    Raises pulumi.RunError.
    """
    kubeconfig = config.get("kubeconfig")
    path = Path(kubeconfig) if kubeconfig else None
    try:
        locate_kubeconfig(path)
    except AccessError:
        return config.get("context")
    try:
        return find_context(compilation, cluster, path, config.get("context"))
    except KubeconfigError as error:
        raise pulumi.RunError(str(error)) from error
    except WrongUseError as error:
        raise pulumi.RunError(f"{error}: `pulumi config set context NAME`, or name the context `{cluster}`") from error


def _compile_tree(tree: Tree) -> Compilation:
    compilation = compile_tree(tree)
    if not compilation.ok:
        raise pulumi.RunError(render_problems(compilation.diagnostics, compilation.program.read_file))
    return compilation
