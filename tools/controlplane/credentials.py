"""Tokens, the signing key of service account tokens, and kubeconfig files: all local, created per plane."""

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

# SEC1 (RFC 5915) around a private scalar of 32 bytes on P-256; the public point is optional there, and Go derives it.
_EC_KEY_HEAD = bytes.fromhex("30310201010420")
_EC_KEY_TAIL = bytes.fromhex("a00a06082a8648ce3d030107")


def new_token() -> str:
    """Return an unguessable bearer token."""
    return secrets.token_hex(16)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(text)


def write_signing_key(path: Path) -> None:
    """Write a new P-256 private key as PEM, without a cryptography library or an openssl command."""
    # 31 random bytes: always below the order of the curve, and ample for a key that lives as long as a test.
    scalar = (secrets.randbits(248) | 1).to_bytes(32, "big")
    body = base64.b64encode(_EC_KEY_HEAD + scalar + _EC_KEY_TAIL).decode()
    write_private(path, f"-----BEGIN EC PRIVATE KEY-----\n{body}\n-----END EC PRIVATE KEY-----\n")


def write_tokens(path: Path, users: Mapping[str, tuple[str, Sequence[str]]]) -> None:
    """Write the API server's token file from each user's token and groups."""
    lines = [f'{token},{user},{user},"{",".join(groups)}"\n' for user, (token, groups) in users.items()]
    write_private(path, "".join(lines))


def write_kubeconfig(path: Path, url: str, ca_file: Path, token: str) -> None:
    """Write a self-contained kubeconfig (as JSON, which is valid YAML)."""
    ca = base64.b64encode(ca_file.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "avactl", "cluster": {"server": url, "certificate-authority-data": ca}}],
        "users": [{"name": "avactl", "user": {"token": token}}],
        "contexts": [{"name": "avactl", "context": {"cluster": "avactl", "user": "avactl"}}],
        "current-context": "avactl",
    }
    write_private(path, json.dumps(config, indent=2) + "\n")
