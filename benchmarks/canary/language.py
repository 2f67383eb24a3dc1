"""A service of a language model's runtime, which the model of digits plays."""

from __future__ import annotations

from contextlib import ExitStack

from avactl.program.manifest import Manifest, templates_of
from benchmarks.canary.stage import DIGEST, ERRORS, HOSTS, PLATFORM, PODS, SERVICE, TEAM, Pace, Stage, compile_specs

_MACHINES = """\
---
apiVersion: avactl.dev/v1
kind: MachineType
metadata: {name: gpu}
spec: {gpus: {model: A10, count: 16, memory: 24Gi}, cpu: 64, memory: 512Gi}
---
apiVersion: avactl.dev/v1
kind: NodePool
metadata: {name: gpu}
spec: {cluster: main, machineType: gpu, count: 1}
"""


class LanguageStage(Stage):
    """One service of four replicas with a GPU each. A subclass says what else its spec has."""

    protocols = ("http",)
    platform = PLATFORM
    llm: str
    """`spec.llm` of the service."""
    names: tuple[str, ...] = (SERVICE,)
    """Objects whose pods serve the model."""
    expose = f"{{host: {HOSTS['http']}}}"

    def __init__(self, pace: Pace, stack: ExitStack, *, analysed: bool = False) -> None:
        super().__init__(pace, stack, analysed=analysed)
        labels = {"avactl.dev/pool": "gpu", "avactl.dev/gpu": "A10"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": labels}}
        self.kube.patch(node)
        amounts = {"nvidia.com/gpu": "16"}
        self.kube.patch({**node, "status": {"capacity": amounts, "allocatable": amounts}}, subresource="/status")

    def deploy(self, version: int, *, in_place: bool = False) -> None:
        """Apply the platform, and the service with this version of its model."""
        for manifest in self.compile(version):
            self.kube.apply(manifest.body, field_manager="avactl")

    def compile(self, version: int) -> list[Manifest]:
        """Return the objects of the platform and of the service with this version of its model."""
        found = compile_specs(self.platform.replace("URL", self._measures) + _MACHINES + self._service(version, False))
        for manifest in found:
            if manifest.kind == self.kind[1] and manifest.name in self.names:
                for _, template in templates_of(manifest.body):
                    (container,) = template["spec"]["containers"]
                    container.setdefault("env", []).append({"name": "AVACTL_MODEL_VERSION", "value": str(version)})
        return found

    def _service(self, version: int, in_place: bool) -> str:
        pace = self.pace
        steps = ", ".join(f"{{percent: {percent}, pause: {pace.pause:g}s}}" for percent in pace.steps)
        return f"""---
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: {SERVICE}, team: {TEAM}}}
spec:
  model: {{name: digits, version: "{version}", path: /opt/digits-{version}}}
  runtime: {{name: vllm, image: "registry.example.com/digits{DIGEST}"}}
  resources: {{cpu: 1, memory: 1Gi, gpus: 1}}
  llm: {self.llm}
  replicas: {PODS}
  drain: {pace.drain}s
  expose: {self.expose}
  rollout:
    canary:
      steps: [{steps}]{self.analysis(f"{{name: errors, max: 0.01, promql: '{ERRORS}'}}")}
"""
