"""What the delivery daemon needs to commit a roll-back: where the spec is, a digest of each version, few rights."""

from __future__ import annotations

import json

import pytest

from avactl.contracts.names import TEMPLATE_DIGEST
from avactl.program.lowering.k8s import short_digest
from tests.kinds.compiling import DIGEST, body, codes, compiled, names, unchecked
from tests.kinds.test_cluster import documented

PLATFORM = f"""
kind: Cluster
metadata: {{name: main}}
spec:
  images: {{avactl: registry.example.com/avactl{DIGEST}}}
  daemons: {{serving: true, delivery: true}}
  delivery: {{repository: "https://git.example.com/specs.git", secret: bot}}
---
kind: Team
metadata: {{name: vision}}
spec: {{members: {{groups: [vision]}}}}
---
kind: ServingDeployment
metadata: {{name: web, team: vision}}
spec:
  model: {{name: digits, version: "1"}}
  runtime: {{name: custom, image: "registry.example.com/server{DIGEST}", port: 8080}}
  probe: {{path: /health}}
  replicas: 4
  rollout: {{canary: {{traffic: replicas, steps: [{{percent: 25, pause: 1s}}]}}}}
"""
NEVER = PLATFORM.replace("secret: bot", "secret: bot, rollback: never")


def test_the_plan_and_the_rights() -> None:
    result = compiled(PLATFORM)
    plan = json.loads(body(result, "ConfigMap", "rollback.vision.web", "avactl-system")["data"]["service.json"])
    assert plan == {
        "cluster": "main",
        "namespace": "vision",
        "name": "web",
        "team": "vision",
        "file": "platform.yaml",
        "document": "web",
        "by": "commit",
    }
    rules = body(result, "Role", "web-rollback", "vision")["rules"]
    assert [(each["resources"], each["verbs"], each.get("resourceNames")) for each in rules] == [
        (["deployments"], ["get"], ["web"]),
        (["replicasets"], ["list"], None),
        (["events"], ["create", "patch"], None),
    ]
    triples = {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    assert triples == documented("`NAME-rollback`, in the namespaces of teams")
    deployment = body(result, "Deployment", "web", "vision")
    assert deployment["metadata"]["annotations"][TEMPLATE_DIGEST] == short_digest(deployment["spec"]["template"], 16)


def test_a_patch_is_part_of_the_digest() -> None:
    merge = "{spec: {template: {spec: {hostname: a}}}}"
    patched = f"{PLATFORM}patches: [{{target: {{kind: Deployment, name: web}}, merge: {merge}}}]\n"
    found = [
        body(compiled(text), "Deployment", "web", "vision")["metadata"]["annotations"][TEMPLATE_DIGEST]
        for text in (PLATFORM, patched)
    ]
    assert found[0] != found[1]


@pytest.mark.parametrize("text", [NEVER, PLATFORM.replace(", delivery: true", "").replace("  delivery: {", "  # {")])
def test_without_commits(text: str) -> None:
    result = compiled(text)
    assert not [name for name in names(result, "ConfigMap") if "rollback" in name]
    assert not [name for name in names(result, "Role") if "rollback" in name]


def test_a_rolling_service_has_nothing_to_roll_back() -> None:
    result = compiled(PLATFORM[: PLATFORM.index("  rollout")])
    assert not [name for name in names(result, "ConfigMap") if "rollback" in name]
    assert TEMPLATE_DIGEST not in body(result, "Deployment", "web", "vision")["metadata"].get("annotations", {})


def test_no_credentials() -> None:
    result = unchecked(PLATFORM.replace(", secret: bot", ""))
    assert [(each.code, each.severity) for each in result.diagnostics] == [("missing-key", "warning")]
    assert codes(unchecked(PLATFORM.replace(", secret: bot", ", rollback: never"))) == []


def test_pull_requests_need_a_known_forge() -> None:
    result = unchecked(PLATFORM.replace("secret: bot", "secret: bot, rollback: pullRequest"))
    assert [each.message for each in result.diagnostics] == [
        "the forge of https://git.example.com/specs.git is unknown, and roll-backs are proposed by pull requests"
    ]
    compiled(PLATFORM.replace("secret: bot", "secret: bot, rollback: pullRequest, forge: gitlab"))
