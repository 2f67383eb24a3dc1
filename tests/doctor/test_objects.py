"""ConfigMaps and claims that pods name: found in compiled objects, looked for in a cluster, and linted."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avactl import compile_tree
from avactl.apply.doctor.checks import check
from avactl.apply.doctor.live import Live
from avactl.apply.doctor.needs import ProgramNeeds
from avactl.apply.doctor.objects import ObjectNeed, needed_objects
from avactl.program.references import CLAIM, CONFIG_MAP, PodReference, find_references
from avactl.spec.repository.tree import DirTree
from tests.cli.running import Run, write
from tools.controlplane import ControlPlane, build_binaries

SPECS = """
kind: Cluster
metadata: {name: lab}
spec:
  images: {avactl: "registry.example.com/avactl@sha256:DIGEST", git: "registry.example.com/git@sha256:DIGEST"}
---
kind: NodePool
metadata: {name: a10}
spec: {cluster: lab, machineType: a10, count: 2}
---
kind: Team
metadata: {name: vision}
---
kind: KubernetesObjects
metadata: {name: settings, team: vision}
spec:
  objects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: made}, data: {a: b}}
  - apiVersion: apps/v1
    kind: StatefulSet
    metadata: {name: db}
    spec:
      selector: {matchLabels: {app: db}}
      serviceName: db
      template:
        metadata: {labels: {app: db}}
        spec:
          serviceAccountName: avactl-run
          automountServiceAccountToken: false
          securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
          volumes: [{name: roots, configMap: {name: kube-root-ca.crt}}]
          containers:
          - name: main
            image: registry.example.com/db:1
            resources: {requests: {cpu: "1", memory: 1Gi}, limits: {cpu: "1", memory: 1Gi}}
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      volumeClaimTemplates:
      - metadata: {name: data}
        spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
kind: TrainingJob
metadata: {name: fold, team: vision}
spec:
  image: registry.example.com/vision/train:1.4
  command: [python, train.py]
  workers: {gpus: 1, cpu: "4", memory: 16Gi}
  env: {MODE: {configMap: {name: modes, key: train}}}
  pod:
    envFrom: [{prefix: A_, configMapRef: {name: made}}, {prefix: B_, configMapRef: {name: proxy, optional: true}}]
    volumes:
    - {name: scans, mountPath: /scans, persistentVolumeClaim: {claimName: scans}}
    - {name: first, mountPath: /db, persistentVolumeClaim: {claimName: data-db-0}}
    - {name: none, mountPath: /none, persistentVolumeClaim: {claimName: data-db-x}}
    - {name: modes, mountPath: /modes, configMap: {name: modes, items: [{key: eval, path: eval}]}}
"""


def repository(folder: Path) -> Path:
    text = SPECS.replace("DIGEST", "ab" * 32)
    return write(folder, platform=re.sub("^kind: ", "apiVersion: avactl.dev/v1\nkind: ", text, flags=re.MULTILINE))


def test_those_that_no_object_makes(tmp_path: Path) -> None:
    compilation = compile_tree(DirTree(repository(tmp_path)))
    assert compilation.ok, compilation.diagnostics
    user = {"TrainingJob vision/fold"}
    assert needed_objects(compilation.manifests) == [
        ObjectNeed(CONFIG_MAP, "vision", "modes", {"train", "eval"}, False, user),
        ObjectNeed(CONFIG_MAP, "vision", "proxy", set(), True, user),
        ObjectNeed(CLAIM, "vision", "data-db-x", set(), False, user),
        ObjectNeed(CLAIM, "vision", "scans", set(), False, user),
    ]


def test_references_in_values_of_any_shape() -> None:
    assert list(find_references([None, 3, {"configMap": None, "persistentVolumeClaim": "x", "items": [[{}]]}])) == []
    value: Any = {"configMap": {"name": "a", "items": [None, {"key": 3}, {"key": "k"}], "key": 1}}
    assert list(find_references(value, ("x",))) == [
        PodReference(CONFIG_MAP, "a", ("x", "configMap", "name"), (("k", ("x", "configMap", "items", 2, "key")),))
    ]


def test_what_an_account_may_not_read_is_unknown() -> None:
    needs = ProgramNeeds("c", "1.36", objects=[ObjectNeed(CLAIM, "n", "a", optional=False, users={"A"})])
    found = check(needs, Live("1.36.0", objects={(CLAIM, "n", "a"): None}), rights=False)
    assert [(each.check, each.state.value) for each in found][1:] == [("claims", "unknown")]


def test_remedies_lead_to_a_cluster_that_has_them(
    new_plane: Callable[..., ControlPlane], avactl: Run, tmp_path: Path
) -> None:
    plane = new_plane()
    kube, folder = plane.client(), repository(tmp_path / "repo")
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vision"}})

    def rows() -> list[tuple[str, str, str, str]]:
        done = avactl("doctor", str(folder), "--format", "json", "--kubeconfig", str(plane.kubeconfig))
        assert done.returncode == 5, done.stderr  # the nodes and devices are not there
        found = [tuple(each.values()) for each in json.loads(done.stdout)["findings"]]
        return [each for each in found if each[0] in ("claims", "configmaps")]

    claim, other, modes, proxy = rows()
    message = "no PersistentVolumeClaim vision/data-db-x; needed by TrainingJob vision/fold"
    assert claim[:3] == ("claims", "missing", message)
    assert other[2:] == (
        "no PersistentVolumeClaim vision/scans; needed by TrainingJob vision/fold",
        "create it in namespace vision, or declare it in a KubernetesObjects spec",
    )
    assert modes[:3] == ("configmaps", "missing", "no ConfigMap vision/modes; needed by TrainingJob vision/fold")
    assert proxy[:3] == ("configmaps", "warning", "no ConfigMap vision/proxy; used by TrainingJob vision/fold")
    (tmp_path / "value").write_text("x")
    kubectl = [str(build_binaries(["kubectl"])["kubectl"]), "--kubeconfig", str(plane.kubeconfig)]
    for row in (modes, proxy):
        words = [word.replace("=FILE", f"={tmp_path / 'value'}") for word in shlex.split(row[3].strip("`"))]
        subprocess.run([*kubectl, *words[1:]], check=True, capture_output=True)
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    for name in ("scans", "data-db-x"):
        kube.create({**body, "metadata": {"name": name, "namespace": "vision"}})
    assert [row[:3] for row in rows()] == [
        ("claims", "ok", "2 of 2 exist"),
        ("configmaps", "ok", "2 of 2 exist with their keys"),
    ]
    kube.delete("v1", "ConfigMap", "modes", "vision")
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "modes", "namespace": "vision"},
            "data": {"train": "x"},
        }
    )
    assert ("configmaps", "missing", "ConfigMap vision/modes has no key eval; needed by TrainingJob vision/fold") in [
        row[:3] for row in rows()
    ]
