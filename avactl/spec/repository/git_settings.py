"""Settings of git in the environment, for this process and for containers.

Apart from `git.py`, which starts programs: kinds use these, and Python spec files, which may not, import kinds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping


def settings_variables(settings: Mapping[str, str], known: int = 0) -> dict[str, str]:
    """Return the variables by which git gets settings, besides the `known` ones that it gets by variables already."""
    variables: dict[str, str] = {}
    for number, (key, value) in enumerate(settings.items(), known):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**variables, "GIT_CONFIG_COUNT": str(known + len(settings))}


def credential_settings(directory: str, url: str) -> dict[str, str]:
    """Return the settings by which git reads the files `username` and `password` of a directory for a repository.

    git reads them for each request, so a changed Secret needs no restart.
    """
    place = shlex.quote(directory)
    both = f'"$(cat {place}/username)" "$(cat {place}/password)"'
    key = credential_key(url)
    return {key: f'!f() {{ printf "username=%s\\npassword=%s\\n" {both}; }}; f'} if key else {}


def credential_key(url: str) -> str:
    """Return the setting of a credential helper for the scheme, host and port of a URL; "" if it takes no password.

    With `credential.helper`, git would ask for, and send, a password also to hosts that this one redirects to, and
    git-lfs to the one that a file of the repository names.
    """
    origin = re.match(r"(https?)://(?:[^/]*@)?([^/@?#]+)", url)
    return f"credential.{origin[1]}://{origin[2]}.helper" if origin else ""
