"""Two real nodes for the tests of this folder, which end after the last one, and the images that their pods run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster_fixtures import building
from tests.e2e.platform import Repository
from tests.e2e.pods import Cluster
from tools import image
from tools.controlplane import KubeClient, build_binaries
from tools.controlplane.build import NODE_BINARIES
from tools.fuse import require_fuse
from tools.realnode import RealNode, check


@pytest.fixture(scope="package")
def node(request: pytest.FixtureRequest) -> Iterator[RealNode]:
    """Two nodes. Each counts all cores of the machine as its own."""
    with building(request):
        check()
        build_binaries()
        build_binaries(NODE_BINARIES)
        image.pause()
    with RealNode(nodes=2) as node:
        yield node


@pytest.fixture(scope="package")
def kube(node: RealNode) -> Iterator[KubeClient]:
    """The administrator's client; `namespace` makes its namespaces with it."""
    with node.client() as client:
        yield client


@pytest.fixture(scope="package")
def busybox(node: RealNode, request: pytest.FixtureRequest) -> str:
    """Reference of an image with a shell."""
    with building(request):
        return node.image(image.busybox())


@pytest.fixture(scope="package")
def fuse_python(node: RealNode, request: pytest.FixtureRequest) -> str:
    """Reference of an image with Python and fusepy."""
    require_fuse()
    with building(request):
        return node.image(image.python("python3-fusepy", "libfuse2", "fuse3"))


@pytest.fixture(scope="package")
def avactl_image(node: RealNode, request: pytest.FixtureRequest) -> str:
    """Reference of the image of avactl itself."""
    with building(request):
        return node.image(image.avactl())


@pytest.fixture(scope="package")
def repository(
    node: RealNode, avactl_image: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Repository:
    """Specs of the platform, applied: avactl's scheduler runs."""
    with building(request):
        kubectl = node.image(image.kubectl())
    made = Repository(tmp_path_factory.mktemp("platform") / "specs", node)
    made.create(avactl_image, kubectl)
    return made


@pytest.fixture
def cluster(node: RealNode, kube: KubeClient, namespace: str) -> Cluster:
    """Pods in a namespace of the test's own."""
    return Cluster(node, kube, namespace)
