"""Fixtures for tests against a real Kubernetes control plane.

`control_plane` is one plane for the whole session (with pytest-xdist: one per worker, about 0.5 GB each), so tests
keep to their own `namespace`, and leave no cluster-scoped objects. What breaks a plane takes its own: `new_plane`.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tools.controlplane import ControlPlane, KubeClient, build_binaries

FIXTURES = frozenset({"control_plane_binaries", "control_plane", "kube", "namespace", "new_plane"})


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "controlplane: needs a real Kubernetes control plane (set by its fixtures)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses one of these fixtures, so that `-m 'not controlplane'` leaves them out."""
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("controlplane")


@contextmanager
def building(request: pytest.FixtureRequest) -> Iterator[None]:
    """Show the progress of a build: the first one takes minutes, and must not wait for the end of the test."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with ExitStack() as stack:
        if capture is not None:
            stack.enter_context(capture.global_and_fixture_disabled())
        yield


@pytest.fixture(scope="session")
def control_plane_binaries(request: pytest.FixtureRequest) -> None:
    """Build the binaries. Without them and Go, tests are skipped; a failed build is always an error."""
    with building(request):
        build_binaries()


@pytest.fixture(scope="session")
def control_plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    """The session's plane: API server, etcd, and the controller manager; no scheduler and no nodes."""
    with ControlPlane(controller_manager=True) as plane:
        yield plane


@pytest.fixture(scope="session")
def kube(control_plane: ControlPlane) -> Iterator[KubeClient]:
    """The administrator's client of the session's plane."""
    with control_plane.client() as client:
        yield client


@pytest.fixture
def namespace(kube: KubeClient) -> Iterator[str]:
    """A namespace of the test's own, ready for pods; deleted afterwards, without waiting for its end."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Pods are refused until their service account is there, and the controller that makes it comes later.
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}})
    yield name
    kube.delete("v1", "Namespace", name)


@pytest.fixture
def new_plane(control_plane_binaries: None) -> Iterator[Callable[..., ControlPlane]]:
    """Start planes of the test's own: call it with the arguments of ControlPlane; closed after the test."""
    with ExitStack() as stack:

        def start(**options: Any) -> ControlPlane:
            return stack.enter_context(ControlPlane(**options))

        yield start
