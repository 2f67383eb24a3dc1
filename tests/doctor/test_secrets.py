"""Secrets that compiled objects and objects of others refer to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from avactl import compile_tree
from avactl.apply.doctor.needs import NeededClaim, claims_of
from avactl.apply.doctor.secrets import SecretReference, made_by, needed_secrets, secret_references
from avactl.base.object_identity import defined_kinds
from avactl.spec.repository.tree import DirTree
from tests.cli.running import Run, write

PLATFORM = """
kind: Cluster
metadata: {name: lab}
spec:
  pullSecrets: [registry]
  images: {avactl: "registry.example.com/avactl@sha256:%(digest)s", git: "registry.example.com/git@sha256:%(digest)s"}
  reconcile: {mode: builtin, repository: "https://git.example.com/specs.git", secret: specs-git}
---
kind: NodePool
metadata: {name: a10}
spec: {cluster: lab, machineType: a10, count: 2}
---
kind: Team
metadata: {name: vision}
---
kind: TrainingJob
metadata: {name: fold, team: vision}
spec:
  image: registry.example.com/vision/train:1.4
  command: [python, train.py]
  workers: {gpus: 1, cpu: "4", memory: 16Gi}
  code: {git: {url: "https://git.example.com/fold.git", ref: main, secret: fold-git}}
  env: {TOKEN: {secret: {name: wandb, key: api-key}}, USER_NAME: {secret: {name: wandb, key: user}}}
"""


def test_of_specs(tmp_path: Path, avactl: Run) -> None:
    write(
        tmp_path / "repo",
        avactl="include: [platform.yaml]",
        platform=(PLATFORM % {"digest": "ab" * 32}).replace("kind: ", "apiVersion: avactl.dev/v1\nkind: "),
    )
    compilation = compile_tree(DirTree(tmp_path / "repo"))
    assert compilation.ok, compilation.diagnostics
    needs = {(need.namespace, need.name): need for need in needed_secrets(compilation.manifests)}
    assert set(needs) == {
        ("avactl-system", "registry"),
        ("avactl-system", "specs-git"),
        ("vision", "fold-git"),
        ("vision", "registry"),
        ("vision", "wandb"),
    }
    token = needs["vision", "wandb"]
    assert (token.keys, token.optional, token.users) == ({"api-key", "user"}, False, {"TrainingJob vision/fold"})
    assert (token.lacks({"user"}), token.lacks({"user", "api-key", "more"})) == ("api-key", "")
    git = needs["vision", "fold-git"]
    assert (git.lacks({"ssh-privatekey"}), git.lacks({"username", "password"})) == ("", "")
    assert git.lacks({"username"}) == "ssh-privatekey or username + password"
    assert needs["avactl-system", "specs-git"].lacks({"ssh-privatekey"}) == "username + password"
    assert needs["vision", "registry"].command() == (
        "kubectl --namespace vision create secret generic registry --type=kubernetes.io/dockerconfigjson "
        "--from-file=.dockerconfigjson=FILE"
    )
    done = avactl("secrets", str(tmp_path / "repo"), "--cluster", "lap")
    assert (done.returncode, "did you mean `lab`?" in done.stderr) == (2, True)
    done = avactl("secrets", str(tmp_path / "repo"))
    assert done.stdout.startswith("cluster lab · 5 Secrets\n")
    assert "vision         wandb      api-key user" in done.stdout


def test_of_objects_in_general() -> None:
    def found(text: str) -> set[SecretReference]:
        body: dict[str, Any] = yaml.safe_load(text)
        return set(secret_references({"metadata": {"name": "x", "namespace": "n"}, **body}))

    pod = """
    kind: Pod
    spec:
      imagePullSecrets: [{name: a}]
      containers:
      - name: main
        env: [{name: B, valueFrom: {secretKeyRef: {name: b, key: k, optional: true}}}]
        envFrom: [{secretRef: {name: c}}, {secretRef: {name: d, optional: true}}]
      volumes:
      - {name: v, secret: {secretName: e, items: [{key: k, path: p}]}}
      - {name: w, projected: {sources: [{secret: {name: f}}, {configMap: {name: z}}]}}
      - {name: u, csi: {driver: d, nodePublishSecretRef: {name: g}}}
    """
    registry = SecretReference("n", "a", (".dockerconfigjson",), type="kubernetes.io/dockerconfigjson")
    assert found(pod) == {
        registry,
        SecretReference("n", "b", ("k",), optional=True),
        SecretReference("n", "c"),
        SecretReference("n", "d", optional=True),
        SecretReference("n", "e", ("k",)),
        SecretReference("n", "f"),
        SecretReference("n", "g"),
    }

    def tls(namespace: str) -> SecretReference:
        return SecretReference(namespace, "s", ("tls.crt", "tls.key"), type="kubernetes.io/tls")

    assert found("{kind: Ingress, spec: {tls: [{hosts: [h], secretName: s}]}}") == {tls("n")}
    gateway = "{kind: Gateway, spec: {listeners: [{tls: {certificateRefs: [{name: s, namespace: o}]}}]}}"
    assert found(gateway) == {tls("o")}
    juice = "{csi: {driver: csi.juicefs.com, nodePublishSecretRef: {name: s, namespace: o}}}"
    assert found(f"{{kind: PersistentVolume, spec: {juice}}}") == {SecretReference("o", "s", ("name", "metaurl"))}
    (flux,) = found("{kind: GitRepository, spec: {secretRef: {name: s}}}")
    assert flux.alternatives == (("identity", "known_hosts"), ("username", "password"))


def test_of_objects_of_any_shape() -> None:
    def found(text: str) -> set[SecretReference]:
        return set(secret_references(yaml.safe_load(text)))

    definition = "{kind: CustomResourceDefinition, metadata: {name: x}, spec: {group: g, names: {kind: K}, VERSIONS}}"
    whole = yaml.safe_load(definition.replace("VERSIONS", "versions: [{name: v1, served: true}, {name: v2}, null]"))
    assert defined_kinds(whole) == {("g/v1", "K")}
    assert defined_kinds({"spec": None}) == set()
    schema = "{properties: {containers: {type: array}, volumes: {type: array}, secretRef: {name: x}}}"
    assert found(f"{{kind: CustomResourceDefinition, metadata: {{name: x}}, spec: {schema}}}") == set()
    odd = """
    kind: Odd
    metadata: {name: x}
    spec:
      containers: [7, {volumeMounts: {a: b}}, {volumeMounts: [{mountPath: /x}, null]}]
      initContainers: null
      volumes: {secret: {secretName: s, items: [null, {path: p}]}}
      imagePullSecrets: [null]
      certificateRefs: [x]
      secretRef: text
      env: {secretKeyRef: {name: k}}
    """
    assert found(odd) == {SecretReference("", "s"), SecretReference("", "k")}
    assert list(claims_of(yaml.safe_load(odd))) == []
    claims = "{kind: A, volumeClaimTemplates: [null, {spec: {accessModes: [ReadWriteMany]}}], volumeClaimTemplate: 3}"
    assert list(claims_of(yaml.safe_load(claims))) == [NeededClaim(None, True)]


def test_secrets_that_operators_make() -> None:
    def made(kind: str, spec: str) -> str:
        return made_by(yaml.safe_load(f"{{kind: {kind}, metadata: {{name: x}}, spec: {spec}}}"))

    assert (made("Secret", "null"), made("SealedSecret", "{}"), made("ExternalSecret", "{}")) == ("x", "x", "x")
    assert made("ExternalSecret", "{target: {name: y}}") == made("Certificate", "{secretName: y}") == "y"
    assert made("ConfigMap", "{}") == made("Certificate", "null") == ""
