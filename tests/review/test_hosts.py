"""Forges and projects by the URLs of repositories, and the roots of their APIs."""

from __future__ import annotations

import pytest

from avactl.forges import FORGES, api_of, current_forge, find_forge, forge_of_host, host_and_path


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://github.com/acme/platform.git", "github.com", "acme/platform"),
        ("https://gitea.example.com:3000/acme/platform", "gitea.example.com:3000", "acme/platform"),
        ("ssh://git@example.com:2222/acme/platform/", "example.com", "acme/platform"),
        ("git@example.com:acme/platform.git", "example.com", "acme/platform"),
        ("user:word@example.com:acme/platform.git", "example.com", "acme/platform"),
        ("https://example.com/acme/p@form", "example.com", "acme/p@form"),
        ("a" * 100_000, "", ""),
        ("/srv/platform.git", "", ""),
    ],
)
def test_the_place_of_a_repository(url: str, host: str, path: str) -> None:
    assert host_and_path(url) == (host, path)


@pytest.mark.parametrize(
    ("host", "name", "api"),
    [
        ("github.com", "github", "https://api.github.com"),
        ("github.example.com", "github", "https://github.example.com/api/v3"),
        ("gitlab.example.com:8443", "gitlab", "https://gitlab.example.com:8443/api/v4"),
        ("gitea.example.com:3000", "gitea", "https://gitea.example.com:3000/api/v1"),
        ("codeberg.org", "forgejo", "https://codeberg.org/api/v1"),
    ],
)
def test_the_forge_of_a_host(host: str, name: str, api: str) -> None:
    forge = forge_of_host(host)
    assert forge is not None
    assert (forge.name, forge.api({}, host)) == (name, api)
    assert forge_of_host("git.example.com") is None


def test_runners_that_set_the_variables_of_others() -> None:
    markers = {"GITHUB_ACTIONS": "true"}
    names = []
    for marker in ("", "GITEA_ACTIONS", "FORGEJO_ACTIONS"):
        markers |= {marker: "true"} if marker else {}
        forge = current_forge(markers)
        names.append(forge.name if forge else "")
    assert names == ["github", "gitea", "forgejo"]
    assert current_forge({}) is None


@pytest.mark.parametrize("name", ["gitea", "forgejo"])
def test_no_token_goes_to_the_api_of_another_forge(name: str) -> None:
    """On a machine, GITHUB_API_URL is that of GitHub Enterprise."""
    (forge,) = (forge for forge in FORGES if forge.name == name)
    env = {"GITHUB_API_URL": "https://github.example.com/api/v3"}
    assert forge.api(env, f"{name}.example.com") == f"https://{name}.example.com/api/v1"
    assert forge.api(env, "") == ""
    assert forge.api(env | {forge.marker: "true"}, "") == "https://github.example.com/api/v3"


@pytest.mark.parametrize("marker", ["GITEA_ACTIONS", "FORGEJO_ACTIONS"])
def test_a_token_of_github_does_not_go_to_the_forge_whose_pipeline_runs(marker: str) -> None:
    env = {"GITHUB_ACTIONS": "true", marker: "true", "GITHUB_API_URL": "https://git.example.com/api/v1"}
    assert api_of(find_forge("github"), env, "github.com") == "https://api.github.com"
    del env[marker]
    assert api_of(find_forge("github"), env, "github.com") == "https://git.example.com/api/v1"
