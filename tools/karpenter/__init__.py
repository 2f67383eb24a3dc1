"""The real Karpenter on a control plane, with its simulated cloud (kwok): it orders nodes, and kwok plays them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tools.controlplane import ControlPlane, KubeClient, process
from tools.controlplane.build import Module, build_binaries, find_module_folder

HERE = Path(__file__).parent
PATH = "sigs.k8s.io/karpenter"
MODULE = Module(HERE, "-s -w", {"karpenter": f"{PATH}/kwok"})
API, CLASS = "karpenter.sh/v1", "simulated"
_DEFINITIONS = ("pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml")


class Karpenter(process.Processes):
    """The controller, for the length of a `with` block, with its definitions.

    `machines` are the instance types of the simulated cloud: allocatable amounts by name. A node registers `delay`
    (such as `10s`) after its order. `folder` gets files; `options` are environment variables of the controller.
    Entering raises UnavailableError or BuildError without the binary.
    """

    def __init__(
        self,
        plane: ControlPlane,
        kube: KubeClient,
        folder: Path,
        machines: Mapping[str, Mapping[str, str]],
        *,
        delay: str = "0s",
        options: Mapping[str, str] = {},
    ) -> None:
        super().__init__()
        self._plane, self._kube, self._folder = plane, kube, folder
        self._machines, self._delay, self._options = machines, delay, options
        self.log = folder / "karpenter.log"

    def __enter__(self) -> Self:
        binary = build_binaries(["karpenter"], [MODULE])["karpenter"]
        source = find_module_folder("kwok", PATH, HERE)
        for path in sorted(found for pattern in _DEFINITIONS for found in source.glob(pattern)):
            definition = yaml.safe_load(path.read_text())
            self._kube.define({key: value for key, value in definition.items() if key != "status"})
        spec = {"nodeRegistrationDelay": self._delay}
        metadata = {"name": CLASS}
        self._kube.apply(
            {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": metadata, "spec": spec}
        )
        types = self._folder / "instance-types.json"
        types.write_text(json.dumps([_instance_type(*each) for each in self._machines.items()]))
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._plane.kubeconfig),
            "DISABLE_LEADER_ELECTION": "true",
            "INSTANCE_TYPES_FILE_PATH": str(types),
            "METRICS_PORT": str(process.free_port()),
            "HEALTH_PROBE_PORT": str(process.free_port()),
            "SYSTEM_NAMESPACE": "kube-system",
            **self._options,
        }
        self._processes["karpenter"] = process.spawn([str(binary)], self.log, environment, cwd=self._folder)
        return self

    def close(self) -> None:
        """End the controller."""
        self.stop("karpenter")

    def pool(self, name: str, labels: Mapping[str, str], most: int) -> None:
        """Create a NodePool of Karpenter whose nodes have these labels, with at most `most` GPUs."""
        reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": CLASS}
        template = {
            "metadata": {"labels": dict(labels)},
            "spec": {"nodeClassRef": reference, "requirements": [], "expireAfter": "Never"},
        }
        # Its nodes stay as long as they run something.
        disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}
        spec = {"template": template, "disruption": disruption, "limits": {"nvidia.com/gpu": str(most)}}
        self._kube.apply({"apiVersion": API, "kind": "NodePool", "metadata": {"name": name}, "spec": spec})

    def orders(self) -> list[dict[str, Any]]:
        """Return the NodeClaims: the machines that it has ordered, also those that are there."""
        return self._kube.list(API, "NodeClaim")


def _instance_type(name: str, amounts: Mapping[str, str]) -> dict[str, Any]:
    offering = {
        "Price": 1.0,
        "Available": True,
        "Requirements": [
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
        ],
    }
    return {
        "name": name,
        "offerings": [offering],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {**amounts, "pods": "110"},
    }
