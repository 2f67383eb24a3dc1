"""Fixtures for tests against real Alluxio processes, and the object store in front of which they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tools.alluxio import build_jars
from tools.controlplane import UnavailableError
from tools.objectstore import ObjectStore


@pytest.fixture(scope="session")
def alluxio_jars(request: pytest.FixtureRequest) -> None:
    """Fetch Alluxio's jars. Without Java or Maven: skip, also in CI. A failed fetch is always an error."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with ExitStack() as stack:
        if capture is not None:
            # The first fetch takes minutes: its progress must not wait for the end of the test.
            stack.enter_context(capture.global_and_fixture_disabled())
        try:
            build_jars()
        except UnavailableError as reason:
            pytest.skip(str(reason))


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """The session's S3 endpoint. Tests make buckets of their own, and put `faults` back."""
    with ObjectStore() as store:
        yield store
