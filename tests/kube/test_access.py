"""Kubeconfigs with something wrong: one line that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from avactl.kube.access import AccessError, from_kubeconfig

HERE = {"server": "https://h"}
NONSENSE = "aGVsbG8="


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        (HERE | {"certificate-authority": "gone.crt"}, {}, "{folder}/gone.crt: No such file or directory"),
        (HERE | {"certificate-authority-data": NONSENSE}, {}, "`certificate-authority` is not a PEM certificate"),
        (HERE | {"certificate-authority-data": "a"}, {}, "`certificate-authority-data` is not base64"),
        (HERE, {"client-certificate": "gone", "client-key": "gone"}, "{folder}/gone: No such file or directory"),
        (
            HERE,
            {"client-certificate-data": NONSENSE, "client-key-data": NONSENSE},
            "`client-certificate` and `client-key` are not a PEM key pair",
        ),
        (HERE, {"tokenFile": "gone"}, "{folder}/gone: No such file or directory"),
        (
            HERE | {"proxy-url": "socks5://u:p@p:1080"},
            {},
            "proxy `socks5://p:1080` must begin with http:// or https://",
        ),
        (HERE, {"exec": {"apiVersion": "v1", "command": ""}}, "user `u`: `exec` has no command"),
        (
            HERE,
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "aws"}},
            "user `u`: `exec` has apiVersion client.authentication.k8s.io/v1alpha1,"
            " not client.authentication.k8s.io/v1",
        ),
        (HERE, {"auth-provider": {}}, "user `u` logs in by `auth-provider`, which Kubernetes has removed"),
        ({"server": "h:6443"}, {}, "server `h:6443` must begin with https:// (or http://)"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], words: str) -> None:
    path = tmp_path / "config"
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(AccessError) as error:
        from_kubeconfig(path)
    assert str(error.value) == f"{path}: {words.format(folder=tmp_path)}"
