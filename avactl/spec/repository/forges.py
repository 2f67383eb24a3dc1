"""The forge of a repository, by its URL."""

from __future__ import annotations


def forge_of(url: str, forge: str = "") -> tuple[str, str, str]:
    """Return the forge of a repository (by its host, unless it is given), the root of its API, and the project's path.

    `url`: as git takes it; "" where the forge is unknown.
    """
    place = url.partition("://")[2] or url.replace(":", "/", 1)
    host, _, project = place.rpartition("@")[2].partition("/")
    host = host.partition(":")[0]
    forge = forge or ("github" if "github" in host else "gitlab" if "gitlab" in host else "")
    api = {
        "github": "https://api.github.com" if host == "github.com" else f"https://{host}/api/v3",
        "gitlab": f"https://{host}/api/v4",
    }.get(forge, "")
    return forge, api, project.strip("/").removesuffix(".git")
