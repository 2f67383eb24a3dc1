"""No module outside of a kind's package names the kind: what others need of it is a hook in `program.registry`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from avactl.program import registry
from avactl.program.program import name_label
from tests.test_layout import ROOT, tracked

WORKLOADS = frozenset(registry.workload_kinds())
"""Kinds that only their own package names. The others are concepts that kinds are defined by, such as Team."""
PACKAGES = {registry.get_kind(name).lower.__module__.rpartition(".")[0]: name for name in registry.kind_names()}
MODELS = {registry.get_model(name).__module__.replace(".", "/") + ".py": name for name in registry.kind_names()}
"""Module with the document of each kind."""
LABELS = {name_label(name): name for name in WORKLOADS}
_WORKLOAD = re.compile(rf"\b({'|'.join(sorted(WORKLOADS))})\b").findall

ALLOWED = {
    # The registry itself, and the classes for `from avactl.kinds import TrainingJob`.
    "avactl/program/registry.py": frozenset(registry.kind_names()),
    "avactl/kinds/__init__.py": frozenset(registry.kind_names()),
    # The concepts that other kinds are defined by; `Program` and the reference types are how all others ask for them.
    "avactl/program/program.py": frozenset(registry.kind_names()) - WORKLOADS - {"KubernetesObjects"},
    "avactl/spec/schema/values.py": {"Cluster", "MachineType", "NodePool", "Team", "CacheTier"},
    # The shipped machine types answer references of node pools, before there is a `Program`.
    "avactl/compiler/resolve.py": {"MachineType"},
    # Writes and checks machine types, without the specs around them.
    "avactl/cli/cluster/topo.py": {"MachineType"},
    # Completes the names of clusters and pools, in files that are only read.
    "avactl/cli/completion.py": {"Cluster", "NodePool"},
    # Capacity is limited by quotas.
    "avactl/change/diff/capacity.py": {"Quota"},
    # The key `code.workspace`; the homes of sessions are a hook.
    "avactl/kinds/training/mounts.py": {"Workspace"},
    "avactl/kinds/training/workload.py": {"Workspace"},
    "avactl/kinds/training/init_containers/workspace_code.py": {"Workspace"},
    # A pipeline is defined by what it trains and where it deploys: the spec of a job, and the model of a service.
    "avactl/kinds/pipeline/spec.py": {"TrainingJob", "ServingDeployment"},
    "avactl/kinds/pipeline/training.py": {"TrainingJob"},
    "avactl/kinds/pipeline/check.py": {"TrainingJob"},
    "avactl/kinds/pipeline/service.py": {"ServingDeployment"},
    # A processing is an elastic job over the objects of a version.
    "avactl/kinds/processing/__init__.py": {"TrainingJob"},
    "avactl/kinds/processing/job.py": {"TrainingJob"},
    "avactl/kinds/processing/lower.py": {"TrainingJob"},
    "avactl/kinds/processing/check.py": {"TrainingJob"},
    "avactl/kinds/processing/spec.py": {"TrainingJob"},
    "avactl/kinds/processing/workload.py": {"TrainingJob"},
    # Defaults name the team whose specs get them.
    "avactl/compiler/layers/check.py": {"Team"},
    # Patches change objects in the team's namespaces only.
    "avactl/compiler/patches/limits.py": {"Team"},
    # A plan simulates the scheduler on the machines, placement policy and prices that a cluster declares.
    "avactl/change/plan/cluster_state.py": {"Cluster", "NodePool"},
    # Remedies for keys and kinds of Kubernetes say which kind has another one.
    "avactl/program/explain/kubernetes_keys.py": WORKLOADS | {"Cluster", "Dataset", "NodePool", "Quota", "Team"},
    # The delivery daemon is of pipelines, and deploys to services; so are the commands about models.
    "avactl/daemons/delivery/pipelines.py": {"Pipeline"},
    "avactl/daemons/delivery/status.py": {"Pipeline"},
    "avactl/daemons/delivery/models.py": {"Pipeline", "ServingDeployment"},
    "avactl/daemons/delivery/commits/repository.py": {"Pipeline", "ServingDeployment"},
    "avactl/daemons/delivery/commits/promoted_values.py": {"ServingDeployment"},
    "avactl/cli/cluster/delivery.py": {"Pipeline"},
    # `avactl status` is of what these commands show.
    "avactl/cli/cluster/status.py": {"Pipeline"},
    "avactl/workbench/unsettled.py": {"Pipeline"},
    "avactl/kinds/pipeline/lower.py": {"ServingDeployment"},
    # A pipeline on one machine: its training is a job.
    "avactl/workbench/local/pipeline.py": {"Pipeline", "TrainingJob"},
    "avactl/workbench/local/selection.py": {"Pipeline"},
    # The account of pods that have no rights.
    "avactl/change/diff/rights/pods.py": {"Team"},
    # Resources that only administrators write.
    "avactl/apply/doctor/checks.py": {"Cluster"},
    # `avactl run` is about training jobs, as `avactl jobs` and `avactl logs` are.
    "avactl/workbench/jobs/branch.py": {"TrainingJob"},
    # Runs in the cluster, where no kind may be imported: badges of pods by their labels. Others are shown as `pod`.
    "avactl/scheduler/inspection/usage.py": WORKLOADS,
}
"""Module → kinds that it may name."""


class Mention(NamedTuple):
    module: str
    line: int
    kind: str


def _mentions(path: str, source: str) -> Iterator[Mention]:
    """Kinds that a module outside of their packages names, in an import or in a string that is no docstring."""
    if path.startswith("avactl/workbench/importer/"):
        return  # it writes specs of all kinds
    packages = (name for package, name in PACKAGES.items() if path.startswith(package.replace(".", "/") + "/"))
    own = MODELS.get(path) or next(packages, None)
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        found: set[str] = set()
        if isinstance(node, ast.Import):
            found = _imported(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            found = _imported([module, *(f"{module}.{alias.name}" for alias in node.names)])
            if module == "avactl.kinds":
                found |= {alias.name for alias in node.names if alias.name in registry.kind_names()}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found = set(_WORKLOAD(node.value)) | ({node.value} & set(registry.kind_names()))
            found |= {LABELS[node.value]} if node.value in LABELS else set()
        for kind in found - {own}:
            # A kind is defined by concepts (its team, its cluster), never by another workload.
            if own is None or kind in WORKLOADS:
                yield Mention(path, getattr(node, "lineno", 0), kind)


def _imported(modules: Iterator[str] | list[str]) -> set[str]:
    names = list(modules)
    return {kind for package, kind in PACKAGES.items() for name in names if f"{name}.".startswith(f"{package}.")}


def _sources() -> list[tuple[str, str]]:
    found = [(path.relative_to(ROOT).as_posix(), path) for path in tracked("*.py")]
    return [
        (name, Path(path).read_text()) for name, path in found if name.startswith(("avactl/", "components/", "stacks/"))
    ]


def test_no_module_names_a_kind_of_another_package() -> None:
    found = [each for name, source in _sources() for each in _mentions(name, source)]
    surplus = [each for each in found if each.kind not in ALLOWED.get(each.module, ())]
    assert surplus == []


def test_the_allow_list_has_nothing_that_is_not_needed() -> None:
    found = {(each.module, each.kind) for name, source in _sources() for each in _mentions(name, source)}
    assert {(module, kind) for module, kinds in ALLOWED.items() for kind in kinds} - found == set()


@pytest.mark.parametrize(
    ("path", "source", "kind"),
    [
        ("avactl/emit/x.py", 'if item.kind == "TrainingJob": pass', "TrainingJob"),
        ("avactl/emit/x.py", 'MARKS = {"Quota": 1}', "Quota"),
        ("avactl/emit/x.py", 'text = f"no ServingDeployment {name}"', "ServingDeployment"),
        ("avactl/change/plan/x.py", 'KINDS = {"trainingjob": 1}', "TrainingJob"),
        ("avactl/change/plan/x.py", "from avactl.kinds import Workspace", "Workspace"),
        ("avactl/change/plan/x.py", "def f():\n    from avactl.kinds.team.names import team_namespaces", "Team"),
        ("avactl/change/plan/x.py", "import avactl.kinds.serving.lower", "ServingDeployment"),
        ("avactl/kinds/dataset/x.py", 'program.of("Workspace")', "Workspace"),
    ],
)
def test_a_mention_is_found(path: str, source: str, kind: str) -> None:
    assert [each.kind for each in _mentions(path, source)] == [kind]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("avactl/kinds/training/x.py", 'KIND = "TrainingJob"'),
        ("avactl/kinds/training/x.py", 'program.get("Team", name)'),
        ("avactl/emit/x.py", '"""Draw a TrainingJob."""'),
        ("avactl/emit/x.py", 'text = "Quotas and a Team in a sentence"'),
    ],
)
def test_what_is_no_mention(path: str, source: str) -> None:
    assert list(_mentions(path, source)) == []
