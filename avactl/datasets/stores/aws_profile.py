"""Static credentials of a profile: the part of the standard chain that the store's library does not read.

Source: AWS SDKs and Tools reference, "Shared config and credentials files".
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path

from avactl.datasets.errors import ArgumentError

_CREDENTIAL_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}
_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
"""Variables with credentials that come before those of a profile."""


def read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials of AWS_PROFILE or of the profile `default`; {} if the environment has its own.

    Raises ArgumentError if the named profile has none.
    """
    if any(environment.get(name) for name in _OTHER_CREDENTIALS):
        return {}
    name = environment.get("AWS_PROFILE", "")
    files = (
        environment.get("AWS_CONFIG_FILE", "~/.aws/config"),
        environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    parser = configparser.RawConfigParser()
    try:
        parser.read([Path(file).expanduser() for file in files], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        raise ArgumentError("the files in ~/.aws cannot be read", "correct them, or set AWS_ACCESS_KEY_ID") from None
    found: dict[str, str] = {}
    for section in (f"profile {name or 'default'}", name or "default"):
        if parser.has_section(section):
            found |= {
                new: value for key, new in _CREDENTIAL_KEYS.items() if (value := parser.get(section, key, fallback=""))
            }
    if name and "access_key_id" not in found:
        raise ArgumentError(
            f"profile `{name}` has no aws_access_key_id", "other kinds of profiles need their variables"
        )
    return found
