"""Forges: the services that host repositories and their pull requests. Each is a package here with a `Forge` as
`FORGE`; no module outside of it names the forge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from avactl.base.terminal import join_words
from avactl.forges.forge import Environ, Forge, PipelineRun
from avactl.forges.forgejo import FORGE as FORGEJO
from avactl.forges.gitea import FORGE as GITEA
from avactl.forges.github import FORGE as GITHUB
from avactl.forges.gitlab import FORGE as GITLAB

FORGES: tuple[Forge, ...] = (GITHUB, GITLAB, GITEA, FORGEJO)
"""All forges. One whose runner also sets the `marker` of another one stands behind that one."""


def forge_names() -> list[str]:
    """Return the names of all forges."""
    return [forge.name for forge in FORGES]


def find_forge(name: str) -> Forge:
    """Return a forge by name. Raises KeyError."""
    return {forge.name: forge for forge in FORGES}[name]


def current_forge(env: Environ) -> Forge | None:
    """Return the forge in whose pipeline this process runs; None outside of pipelines."""
    return next((forge for forge in reversed(FORGES) if env.get(forge.marker)), None)


def current_run(env: Environ, name: str | None = None, number: int | None = None) -> PipelineRun | None:
    """Return the current pipeline run; None outside of pipelines. Raises EnvironmentProblem.

    `name`: the forge, if it is given; `number`: of the pull request, if it is given.
    """
    forge = find_forge(name) if name else current_forge(env)
    if forge is None:
        return None
    run = forge.run(env)
    return run if number is None else run._replace(number=number)


def host_and_path(url: str) -> tuple[str, str]:
    """Return the host, with the port of its API, and the path of a repository's URL, as git takes it.

    Both are "" for a path without a host.
    """
    scheme, found, place = url.partition("://")
    if found:
        authority, _, path = place.partition("/")
    else:  # `user@host:path`
        before, slash, after = url.partition("/")
        authority, colon, first = before.rpartition(":")
        path = first + slash + after if colon else ""
    host = authority.rpartition("@")[2]
    # The port of any other protocol is not that of the API.
    return host if scheme in ("http", "https") else host.partition(":")[0], path.strip("/").removesuffix(".git")


def api_of(forge: Forge, env: Environ, host: str) -> str:
    """Return the root of a forge's API for a host; "" if it is unknown.

    In another forge's pipeline the variables do not count: its runner may set the same ones, for its own API.
    """
    current = current_forge(env)
    return forge.api(env if current in (None, forge) else {}, host)


def forge_of_host(host: str) -> Forge | None:
    """Return the forge that the name of a host tells; None if it tells none."""
    return next((forge for forge in FORGES if any(word in host for word in forge.hosts)), None)


def join_hints(hint: Callable[[Forge], str]) -> str:
    """Return a hint for each forge: `X` on A and B, `Y` on C."""
    titles: dict[str, list[str]] = {}
    for forge in FORGES:
        titles.setdefault(hint(forge), []).append(forge.title)
    return ", ".join(f"{text} on {join_words(names)}" for text, names in titles.items())


def pipeline_paths() -> Iterator[str]:
    """Yield the files and directories (with a final slash) that define pipelines on any forge."""
    for forge in FORGES:
        yield from forge.pipeline_paths
