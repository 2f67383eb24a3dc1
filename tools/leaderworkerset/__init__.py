"""The real controller of LeaderWorkerSets on a control plane, as its release installs it: account, rights, webhooks."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import yaml

from tools.controlplane import ApiError, ControlPlane, KubeClient, process
from tools.controlplane.build import Module, build_binaries
from tools.waiting import patience

HERE = Path(__file__).parent
MODULE = Module(HERE, "-s -w", {"lws-manager": "sigs.k8s.io/lws/cmd"})
NAMESPACE, ACCOUNT = "lws-system", "lws-controller-manager"
PATIENCE = 60.0  # seconds until the webhooks answer
_SUBJECT = "/CN=lws-webhook"


class LeaderWorkerSets(process.Processes):
    """The controller, for the length of a `with` block, with its definitions, role and webhooks.

    `folder` gets its files. Entering raises UnavailableError or BuildError without the binary.
    """

    def __init__(self, plane: ControlPlane, kube: KubeClient, folder: Path) -> None:
        super().__init__()
        self._plane, self._kube, self._folder = plane, kube, folder
        self.log = folder / "lws.log"
        self._port = process.free_port()

    def __enter__(self) -> Self:
        binary = build_binaries(["lws-manager"], [MODULE])["lws-manager"]
        source = Path(_source())
        self._install(source)
        config = {
            "apiVersion": "config.lws.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._folder)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"},
        }
        (self._folder / "lws.json").write_text(json.dumps(config))
        self._plane.write_kubeconfig(
            self._folder / "lws-kubeconfig", self._plane.service_account_token(NAMESPACE, ACCOUNT, 36_000)
        )
        command = [str(binary), "--config", str(self._folder / "lws.json")]
        environment = {**os.environ, "KUBECONFIG": str(self._folder / "lws-kubeconfig")}
        self._processes["lws"] = process.spawn(command, self.log, environment, cwd=self._folder)
        self._hook(source)
        return self

    def close(self) -> None:
        """End the controller."""
        self.stop("lws")

    def _install(self, source: Path) -> None:
        """Create the definitions, and the account with its role."""
        for path in sorted((source / "config/crd/bases").glob("*.yaml")):
            self._kube.define({key: value for key, value in _yaml(path)[0].items() if key != "status"})
        account = {"name": ACCOUNT, "namespace": NAMESPACE}
        (role,) = _yaml(source / "config/rbac/role.yaml")
        rbac = "rbac.authorization.k8s.io"
        reference = {"apiGroup": rbac, "kind": "ClusterRole", "name": role["metadata"]["name"]}
        for body in (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            role,
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "lws"},
                "roleRef": reference,
                "subjects": [{"kind": "ServiceAccount", **account}],
            },
        ):
            self._kube.apply(body)

    def _hook(self, source: Path) -> None:
        """Register the webhooks at the address of the process, and wait until it answers."""
        authority = base64.b64encode(_certificate(self._folder).read_bytes()).decode()
        pods = _yaml(source / "config/webhook/mutating-patch.yaml")[0]
        for body in _yaml(source / "config/webhook/manifests.yaml"):
            for hook in body["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": authority}
                if hook["name"] == "mpod.kb.io":
                    hook["objectSelector"] = pods["value"]["objectSelector"]
            body["webhooks"] = [hook for hook in body["webhooks"] if hook["name"] != "vpod.kb.io"]
            self._kube.apply(body)
        container = {"name": "main", "image": "registry.example.com/x:1"}
        trial = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "trial", "namespace": NAMESPACE},
            "spec": {"leaderWorkerTemplate": {"size": 1, "workerTemplate": {"spec": {"containers": [container]}}}},
        }
        ends = time.monotonic() + patience(PATIENCE)
        while True:
            try:
                self._kube.create(trial, dry_run=True)
                return
            except ApiError as error:
                if time.monotonic() > ends:
                    raise TimeoutError(f"{error}\n{process.tail(self.log, 20)}") from error
                time.sleep(0.2)


def _source() -> str:
    """Return the folder of the module's sources, which the build has fetched."""
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    command = ["go", "mod", "download", "-json", "sigs.k8s.io/lws"]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=True)
    folder: str = json.loads(done.stdout)["Dir"]
    return folder


def _yaml(path: Path) -> list[dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(path.read_text()) if each]
    return found[0] if isinstance(found[0], list) else found


def _certificate(folder: Path) -> Path:
    """Write a key and a certificate of its own for loopback; return the certificate."""
    key, certificate = folder / "tls.key", folder / "tls.crt"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        _SUBJECT,
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return certificate
