"""API server address and credentials, from inside a cluster or from kubeconfig files.

The loaders of Kubernetes client libraries configure HTTP clients of their own, which every command would import; this
client needs a TLS context, a proxy and a callback for tokens.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from avactl.base.kubeconfig import (
    AccessError,
    ContextSelection,
    KubeconfigError,
    KubeconfigSection,
    locate_kubeconfig,
    select,
)
from avactl.kube.exec_plugin import Credential, ExecPlugin

__all__ = ["AccessError", "ClusterAccess", "KubeconfigError", "find", "from_kubeconfig", "in_cluster"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PROXIES = ("http", "https")
_bypass: Callable[[str, dict[str, str]], bool] = vars(urllib.request)["proxy_bypass_environment"]  # not in typeshed


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Address of an API server, and credentials for it."""

    url: str
    context: ssl.SSLContext | None
    token: Callable[[], str]
    """The current bearer token, or an empty string. Tokens of pods are renewed on disk every hour."""
    namespace: str = ""
    """Default namespace of a kubeconfig's context; empty if it has none."""
    proxy: str = ""
    """URL of the proxy to the API server; empty for none."""
    server_name: str = ""
    """Name in the server's certificate if it is not that of the URL."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers: whom to impersonate."""
    plugin: ExecPlugin | None = None
    """Program that renews the credentials."""
    name: str = ""
    """Name of the kubeconfig's context; empty in a pod."""


def in_cluster() -> ClusterAccess | None:
    """Return the access of the pod's service account; None outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (_ACCOUNT / "token").exists():
        return None
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    name = f"[{host}]" if ":" in host else host
    return ClusterAccess(f"https://{name}:{port}", context, _file_token(_ACCOUNT / "token"))


def find(kubeconfig: Path | None = None, context: str = "", cluster: str = "") -> ClusterAccess:
    """Return the access of a kubeconfig, else of $KUBECONFIG, the pod, or ~/.kube/config. Raises AccessError.

    `context` of the kubeconfig; by default the one with the name of the `cluster`, else the current one. As with
    kubectl, the account of the pod is used only if no kubeconfig is named: a CI job in a pod means another cluster.
    """
    named = any(Path(part).exists() for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part)
    if kubeconfig is None and not context and not named:
        inside = in_cluster()
        if inside is not None:
            return inside
    return _access(select(locate_kubeconfig(kubeconfig), context, cluster))


def from_kubeconfig(path: Path, context: str = "") -> ClusterAccess:
    """Return the access of a kubeconfig's context, by default the current one. Raises AccessError."""
    return _access(select([path], context))


def _access(chosen: ContextSelection) -> ClusterAccess:
    cluster, user = chosen.cluster, chosen.user
    server = str(cluster.values["server"]).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise KubeconfigError(f"{cluster.file}: server `{server}` must begin with https:// (or http://)")
    for way in ("auth-provider", "username"):
        if way in user.values:
            what = f"{user.file}: user `{user.name}` logs in by `{way}`, which Kubernetes has removed"
            raise KubeconfigError(what, "write the entry anew with your provider's command: `exec`, or a certificate")
    proxy = str(cluster.values.get("proxy-url") or "") or _environment_proxy(server)
    if proxy and urlsplit(proxy).scheme not in _PROXIES:
        shown = urlsplit(proxy)._replace(netloc=urlsplit(proxy).netloc.rpartition("@")[2]).geturl()
        raise KubeconfigError(f"{cluster.file}: proxy `{shown}` must begin with http:// or https://")
    tls = _tls(cluster, user) if server.startswith("https:") else None
    plugin, token = None, _token(user)
    if user.values.get("exec") is not None and not {"token", "tokenFile"} & user.values.keys():

        def accept(credential: Credential) -> None:
            if tls is not None:
                _use_certificate(tls, credential.certificate.encode(), credential.key.encode(), user.name)

        plugin = ExecPlugin(user, cluster, accept)
        token = plugin.token
    return ClusterAccess(
        server,
        tls,
        token,
        str(chosen.context.values.get("namespace") or ""),
        proxy,
        str(cluster.values.get("tls-server-name") or ""),
        _impersonation(user),
        plugin,
        chosen.context.name,
    )


def _token(user: KubeconfigSection) -> Callable[[], str]:
    if not user.values.get("tokenFile"):
        given = str(user.values.get("token") or "")
        return lambda: given
    token = _file_token(user.path("tokenFile"))
    try:
        token()
    except (OSError, ValueError) as error:
        raise AccessError(f"{user.file}: {_reason(error)}") from None
    return token


def _impersonation(user: KubeconfigSection) -> tuple[tuple[str, str], ...]:
    found = [
        (header, str(user.values[key]))
        for key, header in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid"))
        if user.values.get(key)
    ]
    found += [("Impersonate-Group", str(group)) for group in user.values.get("as-groups") or ()]
    extra = user.values.get("as-user-extra") or {}
    found += [(f"Impersonate-Extra-{key}", str(value)) for key, values in extra.items() for value in values]
    return tuple(found)


def _environment_proxy(server: str) -> str:
    """Return the proxy of $HTTPS_PROXY, $HTTP_PROXY and $NO_PROXY, read as Go programs read them."""
    parts = urlsplit(server)
    host, proxies = parts.hostname or "", urllib.request.getproxies_environment()
    proxy = proxies.get(parts.scheme, "")
    if not proxy or host == "localhost" or _bypass(parts.netloc, proxies):
        return ""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_loopback:
            return ""
        for entry in proxies.get("no", "").split(","):
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip()):
                    return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _tls(cluster: KubeconfigSection, user: KubeconfigSection) -> ssl.SSLContext:
    """Raises AccessError."""
    try:
        authority = _material(cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    except (ssl.SSLError, UnicodeDecodeError):
        raise KubeconfigError(f"{cluster.file}: `certificate-authority` is not a PEM certificate") from None
    if cluster.values.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = (_material(user, name) for name in ("client-certificate", "client-key"))
    if certificate and key:
        _use_certificate(context, certificate, key, str(user.file))
    return context


def _use_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes, where: str) -> None:
    """Use a client certificate for new connections. Raises KubeconfigError if it is not a PEM key pair."""
    # ssl reads these from files only.
    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place) / "certificate", Path(place) / "key"]
        for target, content in zip(paths, (certificate, key), strict=True):
            target.touch(mode=0o600)
            target.write_bytes(content)
        try:
            context.load_cert_chain(*map(str, paths))
        except ssl.SSLError:
            raise KubeconfigError(f"{where}: `client-certificate` and `client-key` are not a PEM key pair") from None


def _material(section: KubeconfigSection, name: str) -> bytes | None:
    values: Mapping[str, Any] = section.values
    try:
        if values.get(f"{name}-data"):
            return base64.b64decode(values[f"{name}-data"])
        return section.path(name).read_bytes() if values.get(name) else None
    except OSError as error:
        raise AccessError(f"{section.file}: {_reason(error)}") from None
    except (TypeError, ValueError):
        raise KubeconfigError(f"{section.file}: `{name}-data` is not base64") from None


def _reason(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def _file_token(path: Path) -> Callable[[], str]:
    known = ("", -1.0)

    def read() -> str:
        nonlocal known
        changed = path.stat().st_mtime
        if changed != known[1]:
            known = (path.read_text().strip(), changed)
        return known[0]

    return read
