"""Credentials in specs: found by shape or name, refused, and printed nowhere."""

from __future__ import annotations

import pytest

from avactl.diagnostics.redaction import redact_text
from avactl.diagnostics.secrets import looks_secret
from avactl.diagnostics.text import render_text
from tests.kinds.on_base import compile_spec

KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASSWORD", "hunter2"),
        ("dbPassword", "abc12"),
        ("MYSQL_PWD", "root123"),
        ("API_TOKEN", "abcdef123456"),
        ("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567"),
        ("AWS_ACCESS_KEY_ID", "minio12"),
        ("AWS_SECRET_ACCESS_KEY", KEY),
        ("ANYTHING", KEY),
        ("ANYTHING", "AKIAIOSFODNN7EXAMPLE"),
        ("ANYTHING", "ghp_" + "a1" * 18),
        ("ANYTHING", "hf_abcdefghijklmnopqrstuvwx"),
        ("ANYTHING", "sk-" + "a1" * 20),
        ("ANYTHING", "xoxb-123456789012-abcdef"),
        ("ANYTHING", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJl"),
        ("ANYTHING", "-----BEGIN RSA PRIVATE KEY-----\nMIIE"),
        ("ANYTHING", "postgres://user:pw@host/db"),
        ("ANYTHING", "https://host/x?a=1&token=hunter2hunter2"),
        ("ANYTHING", "https://host/x?X-Amz-Signature=0123456789abcdef"),
        ("ANYTHING", "https://host/c?sv=1&sig=aGFzaGhhc2g%3D"),
        ("ANYTHING", "https://host/x.git?private_token=hunter2hunter2"),
        ("ANYTHING", "https://host/x?api_key=hunter2hunter2"),
        ("ANYTHING", "Authorization: Bearer hunter2hunter2"),
        ("ANYTHING", "Authorization: Basic dTpwYXNzd29yZDE="),
        ("ANYTHING", "machine git.example.com login robot password hunter2"),
        ("client-key-data", "LS0tLS1CRUdJTiBSU0"),
    ],
)
def test_a_credential_is_seen(name: str, value: str) -> None:
    assert looks_secret(value, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "4096"),
        ("MAX_NEW_TOKEN", "256"),
        ("PAD_TOKEN", "[PAD]"),
        ("EOS_TOKEN", "</s>"),
        ("SPECIAL_TOKEN", "<|endoftext|>"),
        ("KEY_PATH", "/etc/keys/x"),
        ("PASSWORD_FILE", "/run/secrets/password"),
        ("SSH_KEY", "/etc/ssh/id"),
        ("IMAGE_KEY", "image/encoded"),
        ("SORT_KEY", "label"),
        ("CACHE_KEY", "imagenet-v3"),
        ("GIT_COMMIT", "4fd0a1b2c3d4e5f60718293a4b5c6d7e8f901234"),
        ("IMAGE", "sha256:" + "4f" * 32),
        ("RUN_ID", "123e4567-e89b-12d3-a456-426614174000"),
        ("MODEL", "Qwen2.5-72B-Instruct-GPTQ-Int4-checkpoint-4000"),
        ("PATH", "/usr/local/bin:/usr/bin:/opt/conda/bin"),
        ("URL", "http://host:8080/path"),
        ("REMOTE", "https://user@host/x"),
        ("PASSWORD", "$(FROM_A_SECRET)"),
        ("DSN", "postgres://$(USER):$(PASSWORD)@host/x"),
        ("URL", "https://host/x?token=$(TOKEN)&a=1"),
        ("URL", "https://host/x?tokenizer=bert-base-uncased"),
        ("URL", "https://host/x?page_token=1"),
        ("TEXT", "Basic authentication, and bearer of 2 tokens"),
        ("TEXT", "login with a password"),
        ("HEADER", "Authorization: Bearer $(TOKEN)"),
        ("client-certificate-data", "LS0tLS1CRUdJTiBSU0"),
    ],
)
def test_what_is_no_credential_is_let_through(name: str, value: str) -> None:
    assert not looks_secret(value, name)


def test_a_covered_line_keeps_its_columns() -> None:
    line = f'env: {{DB_PASSWORD: "hunter2", LR: 0.1, STORE: "s3://a:b@c/d", X: {KEY}, secret: wandb}}'
    covered = redact_text(line)
    assert len(covered) == len(line)
    assert covered.startswith("env: {DB_PASSWORD: ****")
    assert covered.index("LR: 0.1") == line.index("LR: 0.1")
    for secret in ("hunter2", "a:b", KEY):
        assert secret not in covered
    assert "secret: wandb" in covered


def test_a_value_below_another_key_is_covered() -> None:
    text = "user:\n  token: hunter2\n  client-key-data: hunter2hunter2hunter2\npassword:\n  hunter2\nnext: value"
    covered = redact_text(text)
    assert "hunter2" not in covered
    assert len(covered) == len(text)
    assert covered.endswith("next: value")


JOB = """
apiVersion: avactl.dev/v1
kind: TrainingJob
metadata: {{name: net, team: vision}}
spec:
  image: train
  {spec}
"""


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("env: {DB_PASSWORD: hunter2}", "credential-literal"),
        ("args: [--db-password, hunter2]", "credential-literal"),
        ("args: [--db-password=hunter2]", "credential-literal"),
        ("servers: {command: [serve, --password=hunter2]}", "credential-literal"),
        ("args: ['https://git:hunter2@host/x']", "credential-literal"),
        ("args: ['https://host/x?token=hunter2hunter2']", "credential-literal"),
        ("args: [curl, -H, 'Authorization: Bearer hunter2hunter2']", "credential-literal"),
        ("code: {git: {url: 'https://host/x.git?private_token=hunter2hunter2', ref: v1}}", "credential-literal"),
        ("checkpoint: {path: 'https://b/x?X-Amz-Signature=hunter2hunter2'}", "invalid-value"),
        # Another problem on the line, so that the check for credentials is never reached.
        ("env: {DB_PASSWORD: hunter2, LR: 1}", "wrong-type"),
        ("image2: 'https://git:hunter2@host/x'", "unknown-key"),
        ("checkpoint: {path: 's3://key:hunter2@bucket/x'}", "invalid-value"),
    ],
)
def test_a_planted_credential_is_printed_nowhere(spec: str, code: str) -> None:
    text = JOB.format(spec=spec)
    result = compile_spec(text)
    assert code in [problem.code for problem in result.diagnostics]
    assert not result.manifests
    assert "hunter2" not in render_text(result.diagnostics, lambda path: text if path == "spec.yaml" else "")
    assert "hunter2" not in repr(result.diagnostics)
