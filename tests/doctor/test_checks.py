"""Findings about clusters that tests cannot have: other versions, storage and device plug-ins."""

from __future__ import annotations

from avactl import compile_tree
from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live, LiveResource
from avactl.apply.doctor.model import CheckState
from avactl.apply.doctor.needs import NeededClaim, NeededNodes, ProgramNeeds, needs_of
from avactl.spec.repository.tree import DirTree
from tests.conftest import ROOT


def _messages(needs: ProgramNeeds, live: Live, state: CheckState = CheckState.FAILED) -> list[tuple[str, str]]:
    found = check(needs, live, rights=False)
    assert all(each.remedy for each in found if each.state is not CheckState.OK)
    return [(each.message, each.remedy) for each in found if each.state is state]


def test_versions() -> None:
    assert _messages(ProgramNeeds("c", "1.36"), Live("1.36.3")) == []
    assert _messages(ProgramNeeds("c", "1.36"), Live("1.36.3-eks-1a2b3c")) == []
    assert _messages(ProgramNeeds("c", "1.3"), Live("1.36.3")) == [
        ("Kubernetes 1.36.3; the specs declare 1.3", 'set `kubernetesVersion: "1.36"` in Cluster c')
    ]
    assert len(_messages(ProgramNeeds("c", "1.36.4"), Live("1.36.3"))) == 1


def test_storage() -> None:
    needs = ProgramNeeds("c", "1.36", provisioners={"rbd": "rbd.csi.ceph.com"})
    needs.claims = {
        NeededClaim(None, False): {"A"},
        NeededClaim("rbd", True): {"B"},
        NeededClaim("gone", False): {"C", "D"},
    }
    live = Live("1.36.0", classes={"rbd": {"metadata": {"name": "rbd"}, "provisioner": "ebs.csi.aws.com"}})
    assert [message for message, _ in _messages(needs, live)] == [
        "storage class rbd has provisioner ebs.csi.aws.com; the specs declare rbd.csi.ceph.com",
        "no default storage class; needed by A",
        "no storage class gone; needed by C, D",
        "storage class rbd (ebs.csi.aws.com) offers no ReadWriteMany; needed by B",
    ]
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    live.classes = {"fs": {"metadata": default, "provisioner": "cephfs.csi.ceph.com"}}
    needs = ProgramNeeds("c", "1.36", claims={NeededClaim(None, True): {"A"}})
    assert _messages(needs, live) == []


def test_gates() -> None:
    needs = ProgramNeeds("c", "1.36", gates={"DRAConsumableCapacity": {"A"}})
    assert _messages(needs, Live("1.36.0", gates={"DRAConsumableCapacity": True})) == []
    ((message, _),) = _messages(needs, Live("1.36.0", gates={"DRAConsumableCapacity": False}))
    assert message == "feature gate DRAConsumableCapacity is off; needed by A"
    assert len(_messages(needs, Live("1.36.0"), CheckState.UNKNOWN)) == 1


def test_nodes_and_device_plugins() -> None:
    labels = {"avactl.dev/pool": "p"}
    pool = NeededNodes("p", labels, (), 2, 8, "", {"nvidia.com/gpu": 8}, "pools.yaml:3")
    needs = ProgramNeeds("c", "1.36", pools=[pool, pool._replace(name="q", nodes=("a", "z"), least=2)])

    def node(gpus: object) -> dict[str, object]:
        return {"metadata": {"labels": dict(labels)}, "status": {"allocatable": {"nvidia.com/gpu": gpus}}}

    live = Live("1.36.0", nodes={"a": node("8"), "b": node("7"), "c": {"metadata": {}}, "d": node("x" * 99)})
    assert [message for message, _ in _messages(needs, live)] == [
        "pool q: no node z",
        "pool p: 2 of 3 nodes offer fewer than 8 nvidia.com/gpu",
    ]
    live.nodes = {"a": node("8")}
    (message, remedy), _ = _messages(needs, live)
    assert message == "pool p: 1 of 2 nodes have the labels avactl.dev/pool=p"
    assert remedy == "`kubectl label node NODE avactl.dev/pool=p`, or correct the number (pools.yaml:3)"


def test_images() -> None:
    needs = ProgramNeeds("c", "1.36", images={"a@sha256:1": {"A"}, "b:1": {"B"}})
    ((message, _),) = _messages(needs, Live("1.36.0"), CheckState.WARNING)
    assert message == "b:1 of B has no digest"


def test_kinds_that_the_specs_define_are_not_missing() -> None:
    needs = ProgramNeeds("c", "1.36", kinds={("g/v1", "K"): {""}, ("h/v1", "L"): {""}}, defined={("g/v1", "K")})
    needs.users = {("g/v1", "K"): {"A"}, ("h/v1", "L"): {"B"}}
    ((message, _),) = _messages(needs, Live("1.36.0"))
    assert message == "L of h/v1 is not served; needed by B"
    found = [message for message, _ in _messages(needs, Live("1.36.0"), CheckState.OK)]
    assert "1 of 2 kinds are served, 1 of them once the specs are applied" in found


def test_kinds_that_endpoint_pickers_watch() -> None:
    needs = ProgramNeeds("c", "1.36", watched={"ServingDeployment vision/chat"})
    served = Live("1.36.0")
    ((message, remedy),) = _messages(needs, served, CheckState.WARNING)
    assert message == (
        "InferenceModelRewrite, InferenceObjective of inference.networking.x-k8s.io not served: older endpoint pickers "
        "do not start, newer ones ignore priorities and names of models; watched by ServingDeployment vision/chat"
    )
    assert "llm-d-router" in remedy
    served.served["llm-d.ai/v1alpha2", "InferenceObjective"] = LiveResource("llm-d.ai", "inferenceobjectives", True)
    ((message, _),) = _messages(needs, served, CheckState.WARNING)
    assert message.startswith("InferenceModelRewrite of ")
    group = "inference.networking.x-k8s.io"
    served.served[f"{group}/v1alpha2", "InferenceModelRewrite"] = LiveResource(group, "inferencemodelrewrites", True)
    assert not _messages(needs, served, CheckState.WARNING)


def test_which_services_have_pickers_that_watch() -> None:
    compiled = compile_tree(DirTree(ROOT / "examples" / "serving"))
    needs = needs_of(compiled, "dc1")
    assert needs.watched == {"ServingDeployment language/answer", "ServingDeployment language/complete"}
    assert "language" in needs.tenants


def test_pod_groups() -> None:
    """API servers before Kubernetes 1.37 have them as versions that the scheduler does not read."""
    needs = ProgramNeeds("c", "1.36")
    for versions in (None, {"v1"}, {"v1", "v1beta1"}, {"v1", "v1alpha3", "v1beta1"}):
        live = Live("1.36.0", scheduling=None if versions is None else frozenset(versions))
        assert _messages(needs, live, CheckState.WARNING) == []
    ((message, remedy),) = _messages(
        needs, Live("1.36.0", scheduling=frozenset(("v1", "v1alpha2"))), CheckState.WARNING
    )
    assert message == "PodGroups of scheduling.k8s.io are served as v1alpha2, and the scheduler reads v1beta1"
    assert "1.37" in remedy
