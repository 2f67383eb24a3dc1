"""Promotions of services: what each cluster gets, which rights that is, and which values are promoted."""

from __future__ import annotations

import json
from pathlib import Path

from avactl.compiler import Compilation, compile_tree
from avactl.contracts.delivery import PromotionPlan, value_digest
from avactl.contracts.document import load
from avactl.contracts.names import PROMOTED_VALUES
from avactl.program.manifest import Manifest
from avactl.spec.repository.tree import MemoryTree
from tests.kinds.compiling import codes

ROOT = Path(__file__).resolve().parent.parent.parent / "examples" / "promotion"
MODEL = 'model: {name: embed, version: "2", url: "s3://search-models/published/embed/2"}'


def example(*changes: tuple[str, str]) -> Compilation:
    """Compile `examples/promotion`, with other texts in the file of the services."""
    files = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.yaml")}
    for old, new in changes:
        assert files["teams/embed.yaml"].count(old) == 1, old
        files["teams/embed.yaml"] = files["teams/embed.yaml"].replace(old, new)
    return compile_tree(MemoryTree({name: text.encode() for name, text in files.items()}))


def find(result: Compilation, kind: str, name: str) -> Manifest:
    (found,) = (each for each in result.manifests if (each.kind, each.name) == (kind, name))
    return found


def plan_of(result: Compilation) -> PromotionPlan:
    return load(PromotionPlan, find(result, "ConfigMap", "promotion.search.embed").body["data"]["promotion.json"])


def test_each_cluster_gets_what_its_own_daemon_needs() -> None:
    result = example()
    assert codes(result) == []
    added = {
        (each.cluster, each.kind, each.namespace, each.name)
        for each in result.manifests
        if each.body["metadata"]["labels"].get("app.kubernetes.io/component") == "promotion"
        or each.name.startswith("health-report")
    }
    assert added == {
        ("production", "ConfigMap", "avactl-system", "promotion.search.embed"),
        ("production", "ConfigMap", "avactl-system", "promotion-state.search.embed"),
        ("production", "Role", "avactl-system", "promotion-state.search.embed"),
        ("production", "RoleBinding", "avactl-system", "promotion-state.search.embed"),
        ("production", "ConfigMap", "avactl-system", "health-report.search.embed.target"),
        ("staging", "ConfigMap", "avactl-system", "health-report.search.embed.source"),
    }
    assert find(result, "Role", "promotion-state.search.embed").body["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "verbs": ["patch"],
            "resourceNames": ["promotion-state.search.embed"],
        }
    ]
    plan = plan_of(result)
    assert (plan.window, plan.by, plan.rollout) == (7200, "pullRequest", True)
    assert (plan.source.cluster, plan.source.file, plan.source.document) == (
        "staging",
        "teams/embed.yaml",
        "embed-staging",
    )


def test_the_values_of_both_services_are_known_by_their_digests() -> None:
    result = example()
    found = {
        name: json.loads(find(result, "Deployment", name).body["metadata"]["annotations"][PROMOTED_VALUES])
        for name in ("embed", "embed-staging")
    }
    assert set(found["embed"]) == set(found["embed-staging"]) == set(plan_of(result).fields)
    assert [found[name]["spec.model.version"] for name in ("embed", "embed-staging")] == [
        value_digest("1"),
        value_digest("2"),
    ]
    assert found["embed"]["spec.runtime.image"] == found["embed-staging"]["spec.runtime.image"]


def test_other_values_by_their_paths() -> None:
    result = example(
        ("by: pullRequest}", "by: commit, fields: [spec.env]}"), (f"{MODEL}\n", f"{MODEL}\n  env: {{A: b}}\n")
    )
    assert codes(result) == []
    assert plan_of(result).fields == ("spec.env",)


def test_a_service_beside_the_promotion_has_no_digests() -> None:
    result = example(("  promoteFrom: {service: embed-staging, healthyFor: 2h, by: pullRequest}\n", ""))
    assert codes(result) == []
    for name in ("embed", "embed-staging"):
        assert PROMOTED_VALUES not in find(result, "Deployment", name).body["metadata"]["annotations"]


def test_one_cluster_with_both() -> None:
    result = example(("  cluster: staging\n", "  cluster: production\n"))
    assert codes(result) == []
    names = {each.name for each in result.manifests if each.name.startswith("health-report")}
    assert names == {"health-report.search.embed.source", "health-report.search.embed.target"}


def test_a_chain() -> None:
    """Canary region between the two: each but the first is promoted from the one before."""
    files = (ROOT / "teams/embed.yaml").read_text()
    staging, production = files.split("---\n")
    region = production.replace("name: embed,", "name: embed-region,", 1).replace("embed.ai", "region.ai")
    own = production.replace("service: embed-staging", "service: embed-region")
    tree = {str(path.relative_to(ROOT)): path.read_bytes() for path in ROOT.rglob("*.yaml")}
    result = compile_tree(MemoryTree({**tree, "teams/embed.yaml": "---\n".join([staging, region, own]).encode()}))
    assert [each.code for each in result.diagnostics if each.severity == "error"] == []
    plans = {each.name for each in result.manifests if each.name.startswith("promotion.")}
    assert plans == {"promotion.search.embed", "promotion.search.embed-region"}
