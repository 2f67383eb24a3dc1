"""Two real nodes for Kubernetes' tests: their images, and the scheduler of their pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from avactl.contracts import names
from benchmarks.clusters import SYSTEM_NAMESPACE
from benchmarks.kubernetes_e2e.suite import MODULE, find_images
from benchmarks.scheduler_perf.comparison import ready_scheduler
from tools import image
from tools.controlplane import KubeClient
from tools.controlplane.build import build_binaries
from tools.image import Image
from tools.realnode import RealNode

_ADMISSION = "admissionregistration.k8s.io/v1"
_POLICY = "default-scheduler"
_POLICY_KINDS = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
_ZONE = "topology.kubernetes.io/zone"


@contextmanager
def test_nodes(images: Sequence[str]) -> Iterator[RealNode]:
    """Two nodes in two zones, without a scheduler, with the images that are made here under the names of upstream."""
    with RealNode(nodes=2, devices=True) as node, node.client() as kube:
        node.plane.stop("kube-scheduler")
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}})
        for name, made in _make_images().items():
            node.image(made, *find_images(images, name))
        for name in node.names:
            kube.patch({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {_ZONE: name}}})
        yield node


@contextmanager
def default_scheduler(node: RealNode, name: str) -> Iterator[None]:
    """Run one of the schedulers, which schedules the pods that name none."""
    with ready_scheduler(node.plane, name), node.client() as kube:
        if name == "kube-scheduler":
            yield
            return
        _create_policy(kube)
        try:
            yield
        finally:
            for kind in _POLICY_KINDS:
                kube.delete(_ADMISSION, kind, _POLICY)


def _make_images() -> Mapping[str, Image]:
    agnhost = build_binaries(["agnhost"], [MODULE])["agnhost"]
    proxy = Path(__file__).with_name("hostpathplugin.py")
    return {
        "pause": image.pause(),
        "busybox": image.busybox(),
        "agnhost": image.programs("agnhost", {"agnhost": agnhost}, entrypoint=["/agnhost"]),
        "hostpathplugin": image.programs("hostpathplugin", {"hostpathplugin": proxy}, "python3"),
    }


def _create_policy(kube: KubeClient) -> None:
    """Let pods of the default scheduler be avactl's, as a cluster without kube-scheduler does."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    mutation = f"Object{{spec: Object.spec{{schedulerName: '{names.SCHEDULER_NAME}'}}}}"
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "default", "expression": "object.spec.schedulerName == 'default-scheduler'"}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}],
    }
    for kind, content in zip(_POLICY_KINDS, (spec, {"policyName": _POLICY}), strict=True):
        kube.create({"apiVersion": _ADMISSION, "kind": kind, "metadata": {"name": _POLICY}, "spec": content})
