"""`avactl doctor` and `avactl secrets` on a real control plane: remedies are carried out until nothing is missing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from avactl import compile_tree
from avactl.spec.repository.tree import DirTree
from tests.cli.running import Run
from tests.conftest import ROOT
from tests.definitions import define_monitoring, define_routes
from tools.controlplane import ControlPlane, KubeClient, build_binaries
from tools.controlplane.build import KUBERNETES_MINOR, KUBERNETES_VERSION

MODERN = ROOT / "examples" / "modern"
OUTPUT = ROOT / "tests" / "golden" / "doctor"


class Platform:
    """A cluster for examples/modern, and commands about it."""

    def __init__(self, plane: ControlPlane, kube: KubeClient, avactl: Run, folder: Path) -> None:
        self.plane, self.kube, self.avactl, self.folder = plane, kube, avactl, folder
        self.specs = folder / "modern"
        shutil.copytree(MODERN, self.specs)
        platform = self.specs / "platform.yaml"
        # The version of the control plane, which both specs and doctor name.
        text = platform.read_text()
        platform.write_text(text.replace('kubernetesVersion: "1.36"', f'kubernetesVersion: "{KUBERNETES_MINOR}"'))

    def run(self, *words: str, kubeconfig: Path | None = None) -> tuple[int, str]:
        config = str(kubeconfig or self.plane.kubeconfig)
        done = self.avactl(*words, str(self.specs), *(("--kubeconfig", config) if words[0] == "doctor" else ()))
        text = (done.stdout + done.stderr).replace(self.plane.url, "https://dc1.example.com")
        return done.returncode, text.replace(f"Kubernetes {KUBERNETES_VERSION[1:]}", "Kubernetes 1.36.3")

    def findings(self, *words: str, kubeconfig: Path | None = None) -> dict[tuple[str, str], list[str]]:
        """The messages by check and state."""
        code, text = self.run("doctor", "--format", "json", *words, kubeconfig=kubeconfig)
        found: dict[tuple[str, str], list[str]] = {}
        for each in json.loads(text)["findings"]:
            found.setdefault((each["check"], each["state"]), []).append(each["message"])
        assert code == (5 if any(state == "missing" for _, state in found) else 0)
        return found

    def create_secrets(self) -> None:
        """Run the commands that `avactl secrets` prints."""
        value = self.folder / "value"
        value.write_text("planted-value")
        kubectl = str(build_binaries(["kubectl"])["kubectl"])
        commands = re.findall(r"^  kubectl (.*)$", self.run("secrets")[1], re.MULTILINE)
        assert len(commands) == 3
        for command in commands:
            words = [word.replace("=FILE", f"={value}") for word in shlex.split(command)]
            whole = [kubectl, "--kubeconfig", str(self.plane.kubeconfig), *words]
            subprocess.run(whole, check=True, capture_output=True)

    def add_nodes(self, pool: str, gpu: str, count: int, driver: str) -> None:
        """Nodes as they register, with a slice of the DRA driver each."""
        for index in range(count):
            name = f"{pool}-{index}"
            labels = {"avactl.dev/pool": pool, "avactl.dev/gpu": gpu}
            self.kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            self.kube.patch({**node, "status": {"allocatable": {"rdma/hca": "8"}}}, subresource="/status")
            spec = {
                "driver": driver,
                "nodeName": name,
                "devices": [{"name": "gpu-0"}],
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            }
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
            self.kube.create({**kind, "metadata": {"name": name}, "spec": spec})


@pytest.fixture
def platform(new_plane: Callable[..., ControlPlane], avactl: Run, tmp_path: Path) -> Platform:
    plane = new_plane(users={"viewer": ()})
    return Platform(plane, plane.client(), avactl, tmp_path)


def test_remedies_lead_to_a_cluster_that_lacks_nothing(platform: Platform, golden: Callable[[Path, str], None]) -> None:
    code, text = platform.run("doctor")
    golden(OUTPUT / "empty.txt", text)
    assert code == 5
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "computedomains.resource.nvidia.com"},
        "spec": {
            "group": "resource.nvidia.com",
            "scope": "Namespaced",
            "names": {"kind": "ComputeDomain", "plural": "computedomains"},
            "versions": [
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    platform.kube.define(definition)
    define_routes(platform.kube)
    define_monitoring(platform.kube)
    storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "topolvm.io"}
    platform.kube.create({**storage, "metadata": {"name": "nvme"}})
    for namespace in ("avactl-cache", "product", "foundation"):
        platform.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    platform.create_secrets()
    pools = compile_tree(DirTree(MODERN)).program.pools()
    for pool in pools:
        model = "GB200" if pool.name == "gb200" else "H100"
        platform.add_nodes(pool.name, model, pool.spec.count or 0, "gpu.nvidia.com")
    code, text = platform.run("doctor")
    golden(OUTPUT / "ready.txt", text)
    assert code == 0
    assert "planted-value" not in text


def test_what_an_account_may_not_see_is_unknown_and_what_it_may_not_do_is_missing(platform: Platform) -> None:
    config = platform.folder / "viewer"
    platform.plane.write_kubeconfig(config, platform.plane.token("viewer"))
    found = platform.findings(kubeconfig=config)
    assert "this account may not read nodes" in found["nodes", "unknown"]
    assert "this account may not read storage classes" in found["storage", "unknown"]
    assert len(found["secrets", "unknown"]) == 3
    assert ("rights", "missing") not in found  # Argo CD applies
    found = platform.findings("--as", "viewer")
    denied = [message.partition(": ") for message in found["rights", "missing"]]
    jobs = {words for words, _, resources in denied if "jobs.batch" in resources.split(", ")}
    assert jobs == {"this account may not create, delete, get or patch in avactl-cache, foundation, product"}
    assert ["nodes" in resources.split(", ") for _, _, resources in denied].count(True) == 0  # the pools name none
    assert ("nodes", "unknown") not in found


def test_a_secret_with_other_keys(platform: Platform) -> None:
    platform.kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "avactl-cache"}})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "corpus-s3", "namespace": "avactl-cache"}}
    platform.kube.create({**secret, "stringData": {"accessKeyId": "x"}})
    found = platform.findings()
    assert (
        "Secret avactl-cache/corpus-s3 has no key secretAccessKey; needed by CacheTier corpus"
        in (found["secrets", "missing"])
    )


def test_which_cluster_is_meant(platform: Platform) -> None:
    assert platform.run("doctor", "--cluster", "dc2") == (
        2,
        "avactl: cluster dc2 is not declared in the specs\n        did you mean `dc1`?\n",
    )
