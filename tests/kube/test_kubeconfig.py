"""Kubeconfigs as cloud providers write them, against a real API server: who it says that we are."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from avactl.kube.access import AccessError, ClusterAccess, find
from avactl.kube.client import Client, CredentialsError, UntrustedError
from tests.cli.running import Run
from tests.kube.connect_proxy import ConnectProxy
from tools.controlplane import ControlPlane

API = "client.authentication.k8s.io/v1"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
MEMBER = "member"
PLUGIN = """#!{python}
import json, os, pathlib
folder = pathlib.Path(__file__).parent
runs = folder / "runs"
runs.write_text(runs.read_text() + os.environ["KUBERNETES_EXEC_INFO"] + chr(10) if runs.exists()
                else os.environ["KUBERNETES_EXEC_INFO"] + chr(10))
answers = json.loads((folder / "answers.json").read_text())
print(json.dumps(answers[min(len(runs.read_text().splitlines()), len(answers)) - 1]))
"""


class Pair(NamedTuple):
    """A client certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority whose clients the API server accepts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients")])
        self.certificate = self._sign(self._name, self._key, authority=True)

    def client(self, name: str) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        kept = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key), kept)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, authority: bool = False) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(authority, None), True)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def plane(
    control_plane_binaries: None, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    ca = tmp_path_factory.mktemp("authority") / "ca.crt"
    ca.write_bytes(authority.certificate)
    arguments = {"kube-apiserver": [f"--client-ca-file={ca}"]}
    with ControlPlane(users={MEMBER: ()}, arguments=arguments) as plane:
        yield plane


class Config:
    """Kubeconfigs of one test."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.cluster: dict[str, Any] = {"server": plane.url, "certificate-authority": str(plane.ca_file)}

    def write(self, name: str = "config", **parts: Any) -> Path:
        """Write a file with these parts, by default all of one context with the given user."""
        user = parts.pop("user", {})
        whole = {
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": self.cluster}],
            "users": [{"name": "u", "user": user}],
        }
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(parts or whole))
        return path

    def plugin(self, *statuses: dict[str, Any], **settings: Any) -> dict[str, Any]:
        """A user by a program that returns one status after the other; the last one again and again."""
        (self.folder / "bin").mkdir(exist_ok=True)
        program = self.folder / "bin" / "login"
        program.write_text(PLUGIN.format(python=sys.executable))
        program.chmod(0o755)
        answers = [{"apiVersion": API, "kind": "ExecCredential", "status": status} for status in statuses]
        (self.folder / "bin" / "answers.json").write_text(json.dumps(answers))
        return {"exec": {"apiVersion": API, "command": "./bin/login", "interactiveMode": "Never", **settings}}

    def runs(self) -> list[Any]:
        """What the program was asked, for each time it ran."""
        return [json.loads(line) for line in (self.folder / "bin" / "runs").read_text().splitlines()]


@pytest.fixture
def config(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in [name for name in os.environ if name.upper().endswith("_PROXY") or name == "KUBECONFIG"]:
        monkeypatch.delenv(name)
    return Config(plane, tmp_path)


def users(access: ClusterAccess, times: int = 1) -> list[str]:
    """Ask the API server who we are."""

    async def ask() -> list[str]:
        async with Client(access) as client:
            reviews = [await client.request("POST", REVIEW, {}) for _ in range(times)]
        return [review["status"]["userInfo"]["username"] for review in reviews]

    return asyncio.run(ask())


def test_a_program_returns_a_token(config: Config) -> None:
    user = config.plugin({"token": config.plane.token(MEMBER)}, provideClusterInfo=True)
    assert users(find(config.write(user=user)), 3) == [MEMBER] * 3
    (asked,) = config.runs()
    authority = base64.b64encode(config.plane.ca_file.read_bytes()).decode()
    cluster = {"server": config.plane.url, "certificate-authority-data": authority}
    spec = {"interactive": False, "cluster": cluster}
    assert asked == {"apiVersion": API, "kind": "ExecCredential", "spec": spec}


def test_a_rejected_token_is_renewed(config: Config) -> None:
    user = config.plugin({"token": "stale"}, {"token": config.plane.token(MEMBER)})
    assert users(find(config.write(user=user)), 2) == [MEMBER] * 2
    assert len(config.runs()) == 2


def test_an_expired_token_is_renewed_before_it_is_rejected(config: Config) -> None:
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds").replace("+00:00", "Z")
    first = {"token": config.plane.token(MEMBER), "expirationTimestamp": past}
    user = config.plugin(first, {"token": config.plane.token()})
    access = find(config.write(user=user))
    assert access.plugin is not None
    access.plugin.renew()
    assert users(access, 2) == ["admin"] * 2
    assert len(config.runs()) == 2


def test_a_program_returns_a_certificate(config: Config, authority: Authority) -> None:
    certificate, key = authority.client("carla")
    user = config.plugin({"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()})
    assert users(find(config.write(user=user)), 2) == ["carla"] * 2
    assert len(config.runs()) == 1


def test_a_program_that_fails_is_named(config: Config, avactl: Run) -> None:
    user = config.plugin()
    path = config.write(user=user)
    access = find(path)
    with pytest.raises(CredentialsError, match=r"`.*/bin/login` failed with status 1: IndexError"):
        users(access)
    config.write(user={"exec": {"apiVersion": API, "command": "gke-login", "installHint": "install\nthe SDK"}})
    done = avactl("top", "--kubeconfig", str(path))
    assert (done.returncode, done.stderr.splitlines()) == (
        3,
        [
            f"avactl: {path}: user `u` logs in with the program `gke-login`, which is not on PATH",
            "        install the SDK",
        ],
    )


def test_client_certificates(config: Config, authority: Authority) -> None:
    certificate, key = authority.client("dora")
    data = {"client-certificate-data": certificate, "client-key-data": key}
    user = {name: base64.b64encode(value).decode() for name, value in data.items()}
    assert users(find(config.write(user=user))) == ["dora"]
    (config.folder / "dora.crt").write_bytes(certificate)
    (config.folder / "dora.key").write_bytes(key)
    assert users(find(config.write(user={"client-certificate": "dora.crt", "client-key": "dora.key"}))) == ["dora"]


def test_several_files_are_merged(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file wins, and relative paths start in the directory of their file."""
    (config.folder / "sub").mkdir()
    (config.folder / "sub" / "token").write_text(config.plane.token(MEMBER) + "\n")
    first = config.write("first", contexts=[{"name": "a", "context": {"cluster": "c", "user": "u", "namespace": "n"}}])
    second = config.write(
        "sub/second",
        **{"current-context": "a"},
        users=[{"name": "u", "user": {"tokenFile": "token"}}],
        contexts=[{"name": "a", "context": {"cluster": "other"}}, {"name": "b", "context": {"cluster": "c"}}],
    )
    third = config.write("third", clusters=[{"name": "c", "cluster": config.cluster}], **{"current-context": "b"})
    gone = config.folder / "gone"
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", *map(str, (gone, first, second, third))]))
    access = find()
    assert (access.namespace, users(access)) == ("n", [MEMBER])
    other = find(context="b")
    assert other.token() == ""
    with pytest.raises(AccessError, match="has no context `z`; its contexts: a, b"):
        find(context="z")


def test_without_a_kubeconfig(avactl: Run, tmp_path: Path) -> None:
    done = avactl("top", KUBECONFIG="")
    assert done.returncode == 3
    first = f"avactl: no kubeconfig: there is no file {tmp_path}/.kube/config"
    assert done.stderr.splitlines()[0] == first
    done = avactl("top", KUBECONFIG="a:b")
    assert done.returncode == 3
    assert done.stderr.startswith("avactl: no kubeconfig: there is no file a or b, which $KUBECONFIG names\n")


def test_impersonation(config: Config) -> None:
    user = {"token": config.plane.token(), "as": "erin", "as-groups": ["g1", "g2"]}
    assert users(find(config.write(user=user))) == ["erin"]


def test_certificates_of_the_server(config: Config) -> None:
    user = {"token": config.plane.token()}
    config.cluster["tls-server-name"] = "elsewhere.example.com"
    with pytest.raises(UntrustedError):
        users(find(config.write(user=user)))
    config.cluster["tls-server-name"] = "kubernetes.default"
    assert users(find(config.write(user=user))) == ["admin"]
    del config.cluster["certificate-authority"], config.cluster["tls-server-name"]
    with pytest.raises(UntrustedError):
        users(find(config.write(user=user)))
    config.cluster["insecure-skip-tls-verify"] = True
    assert users(find(config.write(user=user))) == ["admin"]


def test_proxies(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    user = {"token": config.plane.token()}
    with ConnectProxy() as proxy:
        users(find(config.write(user=user)))
        assert proxy.targets == []
        config.cluster["proxy-url"] = proxy.url
        assert users(find(config.write(user=user)), 2) == ["admin"] * 2
        assert proxy.targets == [config.plane.url.removeprefix("https://")]
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example.com:3128")
    config.cluster = {"server": "https://api.example.com:6443"}
    path = config.write(user=user)
    assert find(path).proxy == "http://proxy.example.com:3128"
    for exempt in (".example.com", "api.example.com", "*", "10.0.0.0/8,example.com"):
        monkeypatch.setenv("NO_PROXY", exempt)
        assert find(path).proxy == ""
    config.cluster = {"server": "https://10.1.2.3:6443"}
    config.write(user=user)
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    assert find(path).proxy == ""
    monkeypatch.setenv("NO_PROXY", "192.168.0.0/16,10.1.2.4")
    assert find(path).proxy == "http://proxy.example.com:3128"
    config.cluster = {"server": "https://127.0.0.1:6443"}
    assert find(config.write(user=user)).proxy == ""
