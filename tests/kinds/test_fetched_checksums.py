"""Pods compare what they have copied with what was published: the real scripts, the real rclone, an S3 service."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from avactl.contracts.delivery import VersionLineage
from avactl.daemons.delivery import publish
from avactl.datasets.stores.opening import open_store
from avactl.program.lowering.pods import FETCH_MODEL_SCRIPT
from tests.datasets.conftest import KEYS, bucket, environment, s3  # noqa: F401 - fixtures

MODEL = {"config.pbtxt": b"name: 'ranker'", "1/weights of a model.bin": os.urandom(100_000), "1/empty": b""}


def fetched(target: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    """Run the init container's script."""
    target.mkdir(exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "SOURCE": "s3://data/published/7",
        "TARGET": str(target),
        "BACKEND": "s3",
        "RCLONE_S3_PROVIDER": "AWS",
        "RCLONE_S3_ENDPOINT": endpoint,
        "RCLONE_CONFIG": "/notfound",
        "RCLONE_S3_ACCESS_KEY_ID": KEYS["AWS_ACCESS_KEY_ID"],
        "HOME": str(target),
        "RCLONE_S3_SECRET_ACCESS_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
    }
    return subprocess.run(["sh", "-c", FETCH_MODEL_SCRIPT], env=env, capture_output=True, text=True, check=False)


@pytest.mark.needs("rclone")
def test_a_model_with_another_checksum_is_not_served(tmp_path: Path, s3: str, bucket: str) -> None:  # noqa: F811
    source, version = open_store(f"{bucket}/training/7", s3), open_store(f"{bucket}/published/7", s3)
    for name, content in MODEL.items():
        source.write(f"export/{name}", content)
    publish.stage_version(source, version, "export")
    publish.seal_version(version, VersionLineage())
    done = fetched(tmp_path / "good", s3)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "good" / "1" / "weights of a model.bin").read_bytes() == MODEL["1/weights of a model.bin"]
    # Same size, other content.
    version.write("1/weights of a model.bin", os.urandom(100_000))
    done = fetched(tmp_path / "bad", s3)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "error: s3://data/published/7: a file has another checksum than when it was published"
    assert not list((tmp_path / "bad").iterdir())
    # Once the store has the right one, the next attempt of the container succeeds.
    version.write("1/weights of a model.bin", MODEL["1/weights of a model.bin"])
    assert fetched(tmp_path / "bad", s3).returncode == 0


@pytest.mark.needs("rclone")
def test_a_missing_file_and_models_without_checksums(tmp_path: Path, s3: str, bucket: str) -> None:  # noqa: F811
    version = open_store(f"{bucket}/published/7", s3)
    version.write("model.bin", b"1")
    assert fetched(tmp_path / "plain", s3).returncode == 0
    version.write("manifest.sha256", b"%s  gone.bin\n" % (b"0" * 64))
    assert fetched(tmp_path / "missing", s3).returncode == 1
