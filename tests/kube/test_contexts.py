"""The choice of a context, and what a cluster may say of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.base.kubeconfig import KubeconfigError, choose_context, current_context
from avactl.kube import access
from avactl.kube.client import JSON, ApiError
from avactl.kube.identity import IdentityTarget, read_cluster


def write(path: Path, *names: str, current: str = "") -> Path:
    """A kubeconfig with contexts of these names, each of the server https://NAME."""
    data = {
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": name}} for name in names],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}} for name in names],
    }
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the account of a pod."""
    account = access.ClusterAccess("https://pod", None, lambda: "")
    monkeypatch.setattr(access, "in_cluster", lambda: account)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.mark.parametrize(
    ("context", "cluster", "server"),
    [
        ("", "", "alpha"),
        ("", "beta", "beta"),
        ("gamma", "beta", "gamma"),
        ("", "no-such-context", "alpha"),
        ("beta", "", "beta"),
    ],
)
def test_the_context_of_a_cluster(tmp_path: Path, context: str, cluster: str, server: str) -> None:
    path = write(tmp_path / "kubeconfig", "alpha", "beta", "gamma", current="alpha")
    found = access.find(path, context, cluster)
    assert (found.url, found.name) == (f"https://{server}", server)


def test_a_context_that_is_named_and_missing_is_no_other_one(tmp_path: Path) -> None:
    path = write(tmp_path / "kubeconfig", "alpha", "beta", current="alpha")
    with pytest.raises(KubeconfigError, match="has no context `gone`"):
        access.find(path, "gone", "beta")


def test_contexts_of_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file with a current context decides; the name of a Cluster is looked for in all of them."""
    first, second = write(tmp_path / "a", "alpha", current="alpha"), write(tmp_path / "b", "beta", current="beta")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'missing'}:{second}")
    assert current_context(None) == "alpha"
    assert choose_context(None, "beta") == "beta"
    assert choose_context(None, "gone") == ""
    assert access.find(cluster="beta").url == "https://beta"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert (current_context(None), choose_context(None, "beta")) == ("", "")


@pytest.mark.usefixtures("pod")
def test_in_a_pod_a_kubeconfig_that_is_named_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CI job in a pod deploys to another cluster than its own."""
    assert access.find().url == "https://pod"
    assert access.find(cluster="beta").url == "https://pod"
    path = write(tmp_path / "kubeconfig", "alpha", "beta", current="alpha")
    assert access.find(path).url == "https://alpha"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert access.find().url == "https://alpha"
    assert access.find(cluster="beta").url == "https://beta"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert access.find().url == "https://pod"


class _Answer:
    """An API server with one ConfigMap."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def request(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, accept: str = JSON
    ) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "name", "reason"),
    [
        ({"data": {"policy.json": '{"cluster": "alpha"}'}}, "alpha", ""),
        ({"data": {"policy.json": '{"cluster": "al\\u0007pha"}'}}, "", "names no Cluster"),
        ({"data": {"policy.json": '{"cluster": "%s"}' % ("a" * 300)}}, "", "names no Cluster"),
        ({"data": {"policy.json": '{"cluster": ["alpha"]}'}}, "", "names no Cluster"),
        ({"data": {"policy.json": '{"cluster": "alpha", "x": "%s"}' % ("x" * 70_000)}}, "", "names no Cluster"),
        ({"data": {"policy.json": "["}}, "", "names no Cluster"),
        ({"data": None}, "", "names no Cluster"),
        ([], "", "names no Cluster"),
        (ApiError(404, "NotFound", ""), "", "no ConfigMap system/avactl-policy"),
        (ApiError(403, "Forbidden", ""), "", "this account may not read ConfigMap system/avactl-policy"),
    ],
)
def test_what_a_cluster_says_of_itself_is_bounded(answer: Any, name: str, reason: str) -> None:
    found, why = asyncio.run(read_cluster(_Answer(answer), "system"))
    assert found == name
    assert reason in why


def test_a_target_says_what_is_not_verified() -> None:
    assert str(IdentityTarget("prod", "alpha")) == "context prod · cluster alpha"
    assert str(IdentityTarget("", "alpha")) == "the pod's own cluster · cluster alpha"
    assert (
        str(IdentityTarget("prod", "", "no ConfigMap")) == "context prod · cluster unknown (not verified: no ConfigMap)"
    )
