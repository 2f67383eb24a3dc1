"""API server address and credentials, from inside a cluster or from a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(Exception):
    """There is no API server configuration, or it is not supported."""


@dataclass(frozen=True, slots=True)
class Access:
    """Address of an API server, and credentials for it."""

    url: str
    context: ssl.SSLContext | None
    token: Callable[[], str]
    """The current bearer token, or an empty string. Tokens of pods are renewed on disk every hour."""
    namespace: str = ""
    """Default namespace of a kubeconfig's context; empty if it has none."""


def in_cluster() -> Access | None:
    """Return the access of the pod's service account; None outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (_ACCOUNT / "token").exists():
        return None
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    name = f"[{host}]" if ":" in host else host
    return Access(f"https://{name}:{port}", context, _file_token(_ACCOUNT / "token"))


def find(kubeconfig: Path | None = None, context: str = "") -> Access:
    """Return the access of a kubeconfig, else of the pod, else of $KUBECONFIG or ~/.kube/config. Raises AccessError.

    `context` of the kubeconfig; empty for the current one. If it is set, the pod's own account is not used.
    """
    if kubeconfig is None and not context:
        inside = in_cluster()
        if inside is not None:
            return inside
    if kubeconfig is None:
        named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        kubeconfig = Path(named) if named else Path.home() / ".kube" / "config"
    return from_kubeconfig(kubeconfig, context)


def from_kubeconfig(path: Path, context: str = "") -> Access:
    """Return the access of a kubeconfig's context, by default the current one. Raises AccessError."""
    try:
        config = yaml.safe_load(path.read_text())
        if context and context not in (known := [entry["name"] for entry in config["contexts"]]):
            raise AccessError(
                f"{path} has no context `{context}`; its contexts: {', '.join(map(str, known)) or 'none'}"
            )
        chosen = _named(config["contexts"], context or config["current-context"])["context"]
        cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
        namespace = str(chosen.get("namespace") or "")
        user = _named(config["users"], chosen["user"])["user"] or {}
        server = str(cluster["server"]).rstrip("/")
        unsupported = [way for way in ("proxy-url", "tls-server-name") if cluster.get(way)]
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, KeyError, TypeError, StopIteration) as error:
        why = " ".join(str(error).split())
        raise AccessError(f"{path}: not a kubeconfig with a current context{why and f' ({why})'}") from None
    for way in ("exec", "auth-provider", "username"):
        if way in user:
            raise AccessError(f"{path}: users by `{way}` are not supported; use a token or a client certificate")
    if unsupported:
        raise AccessError(
            f"{path}: clusters with `{unsupported[0]}` are not supported; use the address of the API server"
        )
    if not server.startswith(("https://", "http://")):
        raise AccessError(f"{path}: server `{server}` must begin with https:// (or http://)")
    try:
        tls = _tls(cluster, user, path.parent) if server.startswith("https:") else None
        if "tokenFile" in user:
            token = _file_token(path.parent / user["tokenFile"])
            token()
            return Access(server, tls, token, namespace)
    except (OSError, ValueError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        raise AccessError(f"{path}: {why}") from None
    given = str(user.get("token", ""))
    return Access(server, tls, lambda: given, namespace)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    """Raises OSError, and ValueError for what is no certificate."""
    authority = _material(cluster, "certificate-authority", folder)
    try:
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    except (ssl.SSLError, UnicodeDecodeError):
        raise ValueError("`certificate-authority` is not a PEM certificate") from None
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = (_material(user, name, folder) for name in ("client-certificate", "client-key"))
    if certificate and key:
        # ssl reads these from files only.
        with tempfile.TemporaryDirectory() as place:
            paths = [Path(place) / "certificate", Path(place) / "key"]
            for target, content in zip(paths, (certificate, key), strict=True):
                target.touch(mode=0o600)
                target.write_bytes(content)
            try:
                context.load_cert_chain(*map(str, paths))
            except ssl.SSLError:
                raise ValueError("`client-certificate` and `client-key` are not a PEM key pair") from None
    return context


def _material(given: dict[str, Any], name: str, folder: Path) -> bytes | None:
    if given.get(f"{name}-data"):
        try:
            return base64.b64decode(given[f"{name}-data"])
        except (TypeError, ValueError):
            raise ValueError(f"`{name}-data` is not base64") from None
    return (folder / given[name]).read_bytes() if given.get(name) else None


def _file_token(path: Path) -> Callable[[], str]:
    known = ("", -1.0)

    def read() -> str:
        nonlocal known
        changed = path.stat().st_mtime
        if changed != known[1]:
            known = (path.read_text().strip(), changed)
        return known[0]

    return read
