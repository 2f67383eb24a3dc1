"""Credentials from a program that a kubeconfig names, as of EKS, GKE and AKS.

https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from avactl.base.kubeconfig import AccessError, KubeconfigError, KubeconfigSection
from avactl.base.terminal import shorten_middle, visible_text

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_CLUSTER_CONFIG = "client.authentication.k8s.io/exec"
_TIMEOUT = 300.0
"""Seconds until a program is stopped: a person may have to log in."""
_LARGEST = 1 << 20
_EARLY = timedelta(seconds=10)
_SHOWN = 300


class Credential(NamedTuple):
    """Credentials that a program returned: a token, or PEM texts."""

    token: str
    certificate: str
    key: str
    expires: datetime | None


class ExecPlugin:
    """Runs the program when it is first needed, when its credential expires and when the API server rejects it."""

    def __init__(
        self, user: KubeconfigSection, cluster: KubeconfigSection, accept: Callable[[Credential], None]
    ) -> None:
        """`accept` takes every new credential with a certificate. Raises KubeconfigError if the entry is invalid."""
        given = user.values["exec"]
        self._where = f"{user.file}: user `{user.name}`"
        if not isinstance(given, Mapping) or not isinstance(given.get("command"), str) or not given["command"]:
            raise KubeconfigError(f"{self._where}: `exec` has no command")
        self._version = str(given.get("apiVersion"))
        if self._version not in VERSIONS:
            hint = "write the entry anew with your provider's command, such as `aws eks update-kubeconfig`"
            raise KubeconfigError(f"{self._where}: `exec` has apiVersion {self._version}, not {VERSIONS[0]}", hint)
        self._program = given["command"]
        if os.sep in self._program:
            self._program = str(user.file.parent.absolute() / self._program)
        try:
            self._arguments = [str(word) for word in given.get("args") or ()]
            self._environment = {str(entry["name"]): str(entry["value"]) for entry in given.get("env") or ()}
        except (KeyError, TypeError):
            raise KubeconfigError(f"{self._where}: `args` or `env` of `exec` is not a list") from None
        self._mode = str(given.get("interactiveMode") or "IfAvailable")
        self._hint = shorten_middle(" ".join(str(given.get("installHint") or "").split()), _SHOWN)
        self._cluster = _cluster_info(cluster) if given.get("provideClusterInfo") else None
        self._accept = accept
        self._lock = threading.Lock()
        self._known: Credential | None = None

    def token(self) -> str:
        """Return the current token; empty if the program returned a certificate, or was not run yet."""
        return self._known.token if self._known else ""

    def expired(self) -> bool:
        """True if `renew` has to run before the next request."""
        if self._known is None:
            return True
        return self._known.expires is not None and datetime.now(UTC) >= self._known.expires - _EARLY

    def renew(self, rejected: str | None = None) -> None:
        """Run the program if the credential expired, or if the `rejected` token is still the current one.

        Blocks, until a person has logged in if need be. Raises AccessError.
        """
        with self._lock:
            if self.expired() or (rejected is not None and rejected == self.token()):
                found = self._parsed(self._output())
                if found.certificate:
                    self._accept(found)
                self._known = found

    def _output(self) -> bytes:
        terminal = sys.stdin is not None and sys.stdin.isatty()
        interactive = terminal and self._mode != "Never"
        if self._mode == "Always" and not terminal:
            raise AccessError(f"{self._where}: `{self._program}` needs a terminal to log in")
        program = shutil.which(self._program)
        if program is None:
            where = "does not exist" if os.sep in self._program else "is not on PATH"
            what = f"{self._where} logs in with the program `{self._program}`, which {where}"
            raise AccessError(what, self._hint or "install it, or select another context with `--context`")
        spec: dict[str, Any] = {"interactive": interactive}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        asked = json.dumps({"apiVersion": self._version, "kind": "ExecCredential", "spec": spec})
        try:
            done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it, as for kubectl
                [program, *self._arguments],
                env={**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": asked},
                stdin=None if interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if interactive else subprocess.PIPE,
                timeout=_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AccessError(f"{self._where}: `{self._program}` did not end in {_TIMEOUT:g} s") from None
        except OSError as error:
            raise AccessError(f"{self._where}: `{self._program}`: {error.strerror}") from None
        if done.returncode != 0:
            said = (done.stderr or b"").decode(errors="replace").strip().rpartition("\n")[2]
            why = f": {visible_text(shorten_middle(said, _SHOWN))}" if said else ""
            raise AccessError(f"{self._where}: `{self._program}` failed with status {done.returncode}{why}")
        return done.stdout

    def _parsed(self, output: bytes) -> Credential:
        what = f"{self._where}: `{self._program}`"
        try:
            answer: Any = json.loads(output) if len(output) <= _LARGEST else None
            status = answer["status"]
            version, expires = answer.get("apiVersion"), status.get("expirationTimestamp")
            token, certificate, key = (
                str(status.get(name) or "") for name in ("token", "clientCertificateData", "clientKeyData")
            )
            until = datetime.fromisoformat(expires) if expires else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AccessError(f"{what} did not print an ExecCredential") from None
        if version != self._version:
            raise AccessError(f"{what} printed apiVersion {visible_text(str(version))}, not {self._version}")
        if not token and not (certificate and key):
            raise AccessError(f"{what} printed neither a token nor a certificate with its key")
        if not token.isascii() or not token.isprintable():
            raise AccessError(f"{what} printed a token with characters that no HTTP header may have")
        if until is not None and until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return Credential(token, certificate, key, until)


def _cluster_info(cluster: KubeconfigSection) -> dict[str, Any]:
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    found = {name: cluster.values[name] for name in names if cluster.values.get(name)}
    for extension in cluster.values.get("extensions") or ():
        if isinstance(extension, Mapping) and extension.get("name") == _CLUSTER_CONFIG:
            found["config"] = extension.get("extension")
    if "certificate-authority-data" not in found and cluster.values.get("certificate-authority"):
        import base64

        found["certificate-authority-data"] = base64.b64encode(_content(cluster.path("certificate-authority"))).decode()
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from None
