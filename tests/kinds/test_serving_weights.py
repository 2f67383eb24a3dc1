"""ServingDeployment with `balance: headless`: the ConfigMap of first weights, for the serving daemon."""

from __future__ import annotations

import json

import pytest

from avactl.contracts.names import WEIGHTS
from tests.kinds.compiling import DIGEST, body, compiled, names

SPECS = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{serving: DAEMON}}
  systemNamespace: platform
---
kind: MachineType
metadata: {{name: fast}}
spec: {{gpus: {{model: A10, count: 1, memory: 24Gi}}, cpu: 64, memory: 512Gi, speed: 2.5}}
---
kind: NodePool
metadata: {{name: old}}
spec: {{cluster: main, machineType: a10, count: 1}}
---
kind: NodePool
metadata: {{name: new}}
spec: {{cluster: main, machineType: fast, count: 1}}
---
kind: Team
metadata: {{name: vision}}
---
kind: ServingDeployment
metadata: {{name: web, team: vision}}
spec:
  model: {{name: digits, version: "1"}}
  runtime: {{name: custom, image: "registry.example.com/server{DIGEST}", port: 8080}}
  probe: {{path: /health}}
  balance: BALANCE
"""


def specs(balance: str = "headless", daemon: str = "true") -> str:
    return SPECS.replace("BALANCE", balance).replace("DAEMON", daemon)


def test_the_daemon_knows_the_pools_and_may_write_the_config_map() -> None:
    result = compiled(specs())
    notes = body(result, "Service", "web-headless", "vision")["metadata"]["annotations"]
    assert json.loads(notes[WEIGHTS]) == {"new": 2.5}
    assert "data" not in body(result, "ConfigMap", "web-weights", "vision")
    (manifest,) = [each for each in result.manifests if (each.kind, each.name) == ("ConfigMap", "web-weights")]
    assert manifest.owned == ("data",)
    assert body(result, "Role", "web-weights", "vision")["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"], "resourceNames": ["web-weights"]}
    ]
    (subject,) = body(result, "RoleBinding", "web-weights", "vision")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "avactl-serving", "namespace": "platform"}


@pytest.mark.parametrize(("balance", "daemon"), [("service", "true"), ("headless", "false")])
def test_other_services_have_none(balance: str, daemon: str) -> None:
    result = compiled(specs(balance, daemon))
    assert "web-weights" not in [*names(result, "ConfigMap"), *names(result, "Role")]
    assert WEIGHTS not in str([each.body for each in result.manifests])
