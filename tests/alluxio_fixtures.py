"""Fixtures for tests against real Alluxio processes, and the object store in front of which they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import building
from tools.alluxio import build_jars
from tools.objectstore import ObjectStore


@pytest.fixture(scope="session")
def alluxio_jars(request: pytest.FixtureRequest) -> None:
    """Fetch Alluxio's jars. Without Java or Maven, tests are skipped; a failed fetch is always an error."""
    with building(request):
        build_jars()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """The session's S3 endpoint. Tests make buckets of their own, and put `faults` back."""
    with ObjectStore() as store:
        yield store
