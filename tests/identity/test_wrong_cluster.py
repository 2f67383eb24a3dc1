"""The specs of one cluster reach no other: the context by the Cluster's name, and the check before the first write."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from avactl.apply.pulumi.engine import StackName
from avactl.apply.reconcile import command
from avactl.apply.reconcile.reconciler import reconcile_once
from avactl.apply.reconcile.reporting.report import StepResult
from avactl.compiler import compile_tree
from avactl.kube import access
from avactl.kube.client import Client
from avactl.kube.identity import WrongClusterError
from avactl.spec.repository.tree import DirTree
from tests.identity.conftest import CLUSTER, TEAM, Clusters, merged
from tools.controlplane import ApiError, KubeClient

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("identity")]
SYSTEM = "avactl-system"

COMMANDS = {
    "diff": ("diff", "--live"),
    "doctor": ("doctor",),
    "status": ("status",),
    "snapshot": ("snapshot",),
    "why": ("why", "nlp/train"),
    "run": ("run", "job.yaml", "--now"),
    "jobs": ("jobs",),
    "logs": ("logs", "nlp/train"),
    "wait": ("wait", "nlp/train"),
    "dashboard": ("dashboard", "--listen", "127.0.0.1:0"),
    "top": ("top", "--once"),
    "pool": ("pool",),
    "defrag": ("defrag", "nlp/train", "--yes"),
    "cache status": ("cache", "status", "--once"),
    "cache flush": ("cache", "flush", "tier:/x"),
    "serving status": ("serving", "status", "--once"),
    "delivery status": ("delivery", "status"),
    "import": ("import", "--live", "--adopt", "-o", "imported"),
    "reconcile": ("reconcile", "--once"),
    "reconcile --watch": ("reconcile", "--watch"),
    "reconcile --dry-run": ("reconcile", "--dry-run"),
}
"""Every command that talks to a cluster and has `--context`, but for those of Pulumi."""
_OWN_CLUSTER = ("run",)
"""Commands whose Cluster is that of the spec."""


@pytest.fixture(params=["alpha", "beta"])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The Cluster that is asked for, and another."""
    return request.param, {"alpha": "beta", "beta": "alpha"}[request.param]


@pytest.mark.parametrize("name", COMMANDS)
def test_another_cluster_is_refused_and_nothing_is_written(clusters: Clusters, name: str) -> None:
    before = clusters.objects("alpha")
    asked = () if name in _OWN_CLUSTER else ("--cluster", "beta")
    done = clusters.run(*COMMANDS[name], *asked, "--context", "alpha")
    told = " ".join((done.stdout + done.stderr).split())
    assert done.returncode in (2, 5), told
    assert re.search(r"the Kubernetes cluster of context alpha carries cluster alpha( \([^)]*\))?, not beta", told), (
        told
    )
    assert "`--context beta`" in told
    assert clusters.objects("alpha") == before


def test_the_table_has_all_commands() -> None:
    """A command that gets a context is tested here, and has `--cluster` if its specs do not say the cluster."""
    from avactl.cli.app import COMMANDS as NAMES
    from avactl.cli.app import load_command

    found: dict[str, set[str]] = {}
    for name in NAMES:
        loaded = load_command(name)
        for child, each in (getattr(loaded, "commands", None) or {"": loaded}).items():
            options = {option for parameter in each.params for option in parameter.opts}
            if "--context" in options and name not in ("up", "preview"):
                found[f"{name} {child}".strip()] = options
    assert set(found) == {name for name in COMMANDS if not name.startswith("reconcile -")}
    assert [name for name, options in found.items() if "--cluster" not in options] == list(_OWN_CLUSTER)


def test_both_ways(clusters: Clusters, pair: tuple[str, str]) -> None:
    asked, other = pair
    before = clusters.objects(other)
    done = clusters.run("reconcile", "--once", "--no-wait", "--cluster", asked, "--context", other, "--format", "json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["cluster"], data["context"], data["carries"]) == (5, asked, other, [other])
    assert data["objects"] == []
    assert f"`--carries {other}` applies {asked} beside it" in data["problem"]
    assert clusters.objects(other) == before


def test_a_kubeconfig_with_one_context_is_checked_too(clusters: Clusters, tmp_path: Path) -> None:
    only = merged(tmp_path / "kubeconfig", {"prod": clusters.planes["alpha"]}, "prod")
    for words in (("reconcile", "--once"), ("doctor",), ("jobs",)):
        done = clusters.run(*words, "--cluster", "beta", kubeconfig=only)
        assert "context prod carries cluster alpha" in done.stdout + done.stderr
        assert done.returncode in (2, 5)
    done = clusters.run("doctor", "--cluster", "alpha", kubeconfig=only)
    assert done.stdout.startswith("context prod · cluster alpha · https://")


def test_the_context_with_the_name_of_the_cluster_is_used(clusters: Clusters) -> None:
    """The current context is alpha."""
    done = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta")
    assert done.stdout.startswith("cluster beta · context beta\n"), done.stdout + done.stderr
    assert done.returncode == 0
    assert clusters.run("reconcile", "--dry-run", "--context", "beta").stdout.startswith("cluster beta · context beta ")
    assert clusters.run("reconcile", "--dry-run").stdout.startswith("cluster alpha · context alpha · ")
    assert clusters.run("diff", "--live", "--cluster", "beta").stdout.startswith("cluster beta · context beta ")
    assert clusters.run("doctor", "--cluster", "beta").stdout.startswith("context beta · cluster beta · https://")
    assert clusters.run("doctor", "--context", "beta").stdout.startswith("context beta · cluster beta · https://")
    for words in (("jobs",), ("cache", "status"), ("serving", "status"), ("delivery", "status"), ("top", "--once")):
        done = clusters.run(*words, "--cluster", "beta")
        assert done.stdout.startswith("context beta · cluster beta"), done.stdout + done.stderr
        data = json.loads(clusters.run(*words, "--cluster", "beta", "--format", "json").stdout)
        assert (data["context"], data["cluster"]) == ("beta", "beta")
    assert clusters.run("jobs").stdout.startswith("context alpha · cluster alpha · ")
    done = clusters.run("why", "nlp/train", "--cluster", "beta")
    assert done.stderr.startswith("context beta · cluster beta\n")


def test_an_experiment_goes_to_the_cluster_of_its_spec(clusters: Clusters) -> None:
    with clusters.kube("beta") as kube:
        _want_account(kube, "nlp")
        done = clusters.run("run", "job.yaml", "--now")
        assert done.stderr.startswith("context beta · cluster beta\n"), done.stderr
        assert done.returncode == 0
        (job,) = kube.list("batch/v1", "Job", "nlp", label_selector="avactl.dev/experiment")
        kube.delete("batch/v1", "Job", job["metadata"]["name"], "nlp")


def test_members_may_ask_for_the_name_and_for_nothing_else(clusters: Clusters, tmp_path: Path) -> None:
    member = merged(tmp_path / "kubeconfig", clusters.planes, "alpha", "member")
    done = clusters.run("run", "job.yaml", "--now", "--context", "alpha", kubeconfig=member)
    assert "carries cluster alpha, not beta" in done.stderr
    done = clusters.run("jobs", "-n", "nlp", "--cluster", "beta", kubeconfig=member)
    assert done.stdout.startswith("context beta · cluster beta · namespace nlp · "), done.stderr
    with clusters.planes["alpha"].client(clusters.planes["alpha"].token("member")) as kube:
        assert kube.get("v1", "ConfigMap", "avactl-policy", SYSTEM)
        for name in ("avactl-inventory-alpha", "kube-root-ca.crt"):
            with pytest.raises(ApiError, match="forbidden"):
                kube.get("v1", "ConfigMap", name, SYSTEM)


def test_members_cannot_forge_an_identity(clusters: Clusters) -> None:
    """What they write in their own namespaces does not count."""
    token = clusters.planes["beta"].token("member")
    labels = {"app.kubernetes.io/managed-by": "avactl", "app.kubernetes.io/name": "reconcile"}
    state = {"repository": "evil", "cluster": "evil", "commit": "", "complete": True, "kinds": []}
    forged = {
        "avactl-policy": {"policy.json": '{"cluster": "evil"}'},
        "avactl-inventory-evil": {"inventory.json": json.dumps(state)},
    }
    with clusters.planes["beta"].client(token) as kube:
        for name, data in forged.items():
            metadata = {"name": name, "namespace": "nlp", "labels": labels}
            kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        try:
            done = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta", "--format", "json")
            data = json.loads(done.stdout)
            assert (done.returncode, data["carries"], data["problem"]) == (0, [], "")
            refused = clusters.run("reconcile", "--once", "--cluster", "alpha", "--context", "beta")
            assert "carries cluster beta (" in refused.stdout
            assert "evil" not in refused.stdout
        finally:
            for name in forged:
                kube.delete("v1", "ConfigMap", name, "nlp")


def test_a_cluster_without_identity_is_told(clusters: Clusters) -> None:
    with clusters.kube("beta") as kube:
        policy = kube.get("v1", "ConfigMap", "avactl-policy", SYSTEM)
        kube.delete("v1", "ConfigMap", "avactl-policy", SYSTEM)
        try:
            done = clusters.run("jobs", "--cluster", "beta")
            head = "context beta · cluster beta (not verified: no ConfigMap avactl-system/avactl-policy) · "
            assert done.stdout.startswith(head), done.stderr
            # The inventory still tells.
            refused = clusters.run("reconcile", "--once", "--cluster", "alpha", "--context", "beta")
            assert "carries cluster beta (ConfigMap avactl-system/avactl-inventory-beta), not alpha" in refused.stdout
        finally:
            _create(kube, policy)


def test_stacks_are_checked_before_the_engine_starts(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """`avactl up` and `preview` ask the cluster of the context that the engine would use."""
    from avactl.cli.changes.preview import identify_stack

    compilation = compile_tree(DirTree(clusters.repository))

    def stack(cluster: str, context: str | None) -> Any:
        return SimpleNamespace(name=StackName(cluster), context=context, compilation=compilation)

    monkeypatch.delenv("KUBECONFIG", raising=False)
    for apply in (True, False):
        ask = partial(identify_stack, kubeconfig=clusters.kubeconfig, apply=apply)
        assert str(ask(stack("beta", "beta"), carries=None)) == "context beta · cluster beta"
        for context in ("alpha", None):  # the current context
            with pytest.raises(WrongClusterError, match="context alpha carries cluster alpha, not beta") as refused:
                ask(stack("beta", context), carries=None)
            assert "`--context beta`" in refused.value.hint
            assert "`--carries alpha`" in refused.value.hint
            assert ask(stack("beta", context), carries=["alpha"]).context == "alpha"


def test_a_scheduler_with_the_policy_of_another_cluster(clusters: Clusters, tmp_path: Path) -> None:
    only = merged(tmp_path / "kubeconfig", {"prod": clusters.planes["alpha"]}, "prod")
    with clusters.kube("beta") as kube:
        policy = kube.get("v1", "ConfigMap", "avactl-policy", SYSTEM)["data"]["policy.json"]
    (tmp_path / "policy.json").write_text(policy)
    done = clusters.run("scheduler", "--config", str(tmp_path / "policy.json"), kubeconfig=only)
    assert (done.returncode, "context prod carries cluster alpha, not beta" in done.stderr) == (2, True), done.stderr


# -- claims ---------------------------------------------------------------------------------------------------------


_MORE = ("gamma", "epsilon", "zeta")


@pytest.fixture
def more(clusters: Clusters, tmp_path: Path) -> Iterator[Path]:
    """A repository with more Clusters, each with a system namespace of its own; their inventories go afterwards."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "avactl.yaml").write_text("include: [.]\n")
    for name in _MORE:
        spec = CLUSTER.replace("NAME", name).replace("{reconcile", f"{{systemNamespace: {name}-system, reconcile")
        (folder / f"{name}.yaml").write_text(spec)
        (folder / f"team-{name}.yaml").write_text(TEAM.replace("NAME", f"of-{name}").replace("CLUSTER", name))
    yield folder
    with clusters.kube("alpha") as kube:
        for name in _MORE:
            for config in ("avactl-policy", f"avactl-inventory-{name}"):
                if kube.find("v1", "ConfigMap", config, f"{name}-system") is not None:
                    kube.delete("v1", "ConfigMap", config, f"{name}-system")


def _request(clusters: Clusters, path: Path, cluster: str, **options: Any) -> command.ReconcileRequest:
    connect = partial(access.find, clusters.kubeconfig, "alpha")
    return command.ReconcileRequest(path=path, connect=connect, cluster=cluster, wait=False, **options)


async def _reconcile(request: command.ReconcileRequest) -> StepResult:
    declared = command.compile_revision(request, command.source_of(request).newest())
    assert declared.ok
    async with Client(request.connect("")) as client:
        return (await reconcile_once(client, declared.options, declared.wanted))[0]


def test_several_clusters_on_one_kubernetes_cluster(clusters: Clusters, more: Path) -> None:
    asked = asyncio.run(_reconcile(_request(clusters, more, "gamma")))
    assert "carries cluster alpha (" in asked.problem
    result = asyncio.run(_reconcile(_request(clusters, more, "gamma", carries=("alpha",))))
    assert (result.claimed, result.carries) == (True, ("alpha",)), result.problem
    # Both are known now: no further option.
    result = asyncio.run(_reconcile(_request(clusters, more, "gamma")))
    assert (result.problem, result.claimed, result.carries) == ("", False, ("alpha",))
    done = clusters.run("reconcile", "--dry-run", "--cluster", "alpha")
    assert "· also carries gamma" in done.stdout.splitlines()[0]
    # Another inventory of the same Cluster, as of a second repository.
    result = asyncio.run(_reconcile(_request(clusters, more, "gamma", inventory="second", dry_run=True)))
    assert result.problem == ""


def test_two_first_claims_never_both_apply(clusters: Clusters, more: Path) -> None:
    async def both() -> list[StepResult]:
        requests = [_request(clusters, more, name, carries=("alpha",)) for name in ("epsilon", "zeta")]
        return list(await asyncio.gather(*map(_reconcile, requests)))

    results = asyncio.run(both())
    claimed = [result.cluster for result in results if result.claimed]
    assert len(claimed) <= 1, results
    with clusters.kube("alpha") as kube:
        for result in results:
            there = kube.find("v1", "ConfigMap", f"avactl-inventory-{result.cluster}", f"{result.cluster}-system")
            assert (there is not None) == result.claimed
            if not result.claimed:
                assert "at the same time" in result.problem or "carries cluster" in result.problem
                assert result.steps == []
                assert kube.find("v1", "Namespace", f"of-{result.cluster}") is None


def test_a_restored_inventory_is_not_taken_for_this_cluster(clusters: Clusters) -> None:
    with clusters.kube("beta") as kube:
        live = kube.get("v1", "ConfigMap", "avactl-inventory-beta", SYSTEM)
        state = json.loads(live["data"]["inventory.json"])
        assert state["clusterUid"] == kube.get("v1", "Namespace", "kube-system")["metadata"]["uid"]
        state["clusterUid"] = "11111111-2222-3333-4444-555555555555"
        live["data"]["inventory.json"] = json.dumps(state)
        kube.replace(live)
        done = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta")
        assert done.returncode == 5
        assert "was it restored from a backup, or copied? --take-over adopts it here" in done.stdout
        done = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta", "--take-over")
        assert done.returncode == 0, done.stdout
        assert clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta").returncode == 0


def test_an_inventory_from_before_gets_the_uid(clusters: Clusters) -> None:
    with clusters.kube("beta") as kube:
        live = kube.get("v1", "ConfigMap", "avactl-inventory-beta", SYSTEM)
        state = json.loads(live["data"]["inventory.json"])
        del state["clusterUid"]
        live["data"]["inventory.json"] = json.dumps(state)
        kube.replace(live)
        done = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta")
        assert done.returncode == 0, done.stdout
        live = kube.get("v1", "ConfigMap", "avactl-inventory-beta", SYSTEM)
        assert json.loads(live["data"]["inventory.json"])["clusterUid"]


def test_a_renamed_cluster_takes_the_place_of_the_old_one(clusters: Clusters, tmp_path: Path) -> None:
    """`--take-over` is explicit, and the old name is refused from then on."""
    for name in ("beta.yaml", "beta-pool.yaml", "nlp.yaml", "avactl.yaml"):
        text = (clusters.repository / name).read_text()
        (tmp_path / name).write_text(re.sub(r"\bbeta\b", "omega", text))
    words = ("reconcile", str(tmp_path), "--once", "--no-wait", "--context", "beta")
    refused = clusters.run(*words)
    assert "carries cluster beta" in refused.stdout
    assert "--take-over replaces it by omega, as after a rename" in refused.stdout
    done = clusters.run(*words, "--take-over")
    assert done.returncode == 0, done.stdout
    assert "this Kubernetes cluster carries cluster omega from now on" in done.stdout
    old = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta")
    assert old.returncode == 5
    assert "belongs to cluster omega, not to beta" in old.stdout
    assert clusters.run("jobs", "--context", "beta").stdout.startswith("context beta · cluster omega · ")
    # And back, for the tests after this one.
    back = clusters.run("reconcile", "--once", "--no-wait", "--cluster", "beta", "--take-over")
    assert back.returncode == 0, back.stdout
    with clusters.kube("beta") as kube:
        kube.delete("v1", "ConfigMap", "avactl-inventory-omega", SYSTEM)


def _want_account(kube: KubeClient, namespace: str) -> None:
    """Without a controller manager, nobody creates it."""
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}})


def _create(kube: KubeClient, body: dict[str, Any]) -> None:
    metadata = body["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    kube.create({**body, "metadata": kept})
