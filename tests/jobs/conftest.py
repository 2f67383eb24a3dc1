"""The platform that tests of training jobs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.lab import Lab, started
from tools.controlplane import ControlPlane


@pytest.fixture(scope="package")
def lab(control_plane_binaries: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from started(ControlPlane, tmp_path_factory.mktemp("lab"))
