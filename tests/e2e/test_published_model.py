"""Published models in real pods: one with another checksum does not come up, and the condition says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avactl.daemons.delivery import publish
from avactl.datasets.stores.opening import open_store
from avactl.datasets.stores.store import Store
from tests.cluster_fixtures import building
from tests.e2e.platform import Repository
from tests.e2e.pods import is_ready
from tests.e2e.test_canary import TEAM, TRAINER, server_image
from tests.e2e.test_serving import TIMEOUT, text
from tools import image
from tools.controlplane import KubeClient
from tools.frameworks.build import build_digits
from tools.objectstore import ObjectStore
from tools.objectstore.store import ACCESS_KEY, SECRET_KEY
from tools.realnode import RealNode

pytestmark = pytest.mark.e2e
__all__ = ["server_image"]  # fixture
BUCKET, SECRET, MODEL = "models", "models-s3", "model.joblib"
SPECS = f"""\
apiVersion: avactl.dev/v1
kind: ServingDeployment
metadata: {{name: published, team: {TEAM}}}
spec:
  model: {{name: digits, version: "VERSION", url: "s3://{BUCKET}/digits/VERSION", secret: {SECRET}}}
  runtime:
    name: custom
    image: "IMAGE"
    port: 8080
    command: [python, /server.py, /models/digits, 0.0.0.0, "8080"]
  probes:
    startup: {{path: /health, timeout: 2s, period: 2s, failures: 60}}
    readiness: {{path: /health}}
  env: {{OMP_NUM_THREADS: "1", OPENBLAS_NUM_THREADS: "1"}}
  resources: {{cpu: 100m, memory: 512Mi}}
  replicas: 1
  drain: 1s
  rollout: {{blueGreen: {{keep: 1s}}}}
"""


@pytest.fixture
def fetching(node: RealNode, repository: Repository, request: pytest.FixtureRequest) -> Iterator[None]:
    """A Cluster with an image that copies models."""
    with building(request):
        rclone = node.image(image.shell("rclone"))
    before = (repository.path / "platform.yaml").read_text()
    repository.write("platform.yaml", before.replace("images: {", f'images: {{fetch: "{rclone}", ', 1))
    yield
    repository.write("platform.yaml", before)


@pytest.fixture
def store(node: RealNode, kube: KubeClient, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an S3 service with an empty bucket, which pods reach by the team's Secret."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with ObjectStore() as store:
        store.client().create_bucket(Bucket=BUCKET)
        endpoint = f"http://{node.expose(int(store.origin.rpartition(':')[2]))}"
        data = {"accessKeyId": ACCESS_KEY, "secretAccessKey": SECRET_KEY, "endpoint": endpoint}
        metadata = {"name": SECRET, "namespace": TEAM}
        kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data})
        yield store.origin
        kube.delete("v1", "Secret", SECRET, TEAM)


class Published:
    """The service, and the versions of its model."""

    def __init__(self, repository: Repository, kube: KubeClient, image: str, models: Path, store: str) -> None:
        self._repository, self._kube, self._image, self._models, self._store = repository, kube, image, models, store

    def specs(self, version: int) -> str:
        return SPECS.replace("VERSION", str(version)).replace("IMAGE", self._image)

    def publish(self, version: int) -> None:
        publish.stage_version(open_store(str(self._models / str(version))), self._version(version))

    def model(self, version: int) -> bytes:
        return (self._models / str(version) / MODEL).read_bytes()

    def write(self, version: int, content: bytes) -> None:
        self._version(version).write(MODEL, content)

    def _version(self, version: int) -> Store:
        return open_store(f"s3://{BUCKET}/digits/{version}", self._store)

    def ready(self) -> set[str]:
        """UIDs of the ready pods."""
        found = self._kube.list("v1", "Pod", TEAM, label_selector="app.kubernetes.io/instance=published")
        return {pod["metadata"]["uid"] for pod in found if is_ready(pod)}

    def replaced(self, old: set[str]) -> None:
        """Wait until other pods than the old ones are ready."""

        def done(_: dict[str, Any]) -> bool:
            ready = self.ready()
            return bool(ready) and not ready & old

        self._kube.wait_for("apps/v1", "Deployment", "published", TEAM, until=done, timeout=TIMEOUT)

    def told(self, pattern: str) -> str:
        """Wait until the condition's reason and message match, and return them."""
        return text(
            self._kube.wait_for(
                "apps/v1",
                "Deployment",
                "published",
                TEAM,
                timeout=TIMEOUT,
                until=lambda deployment: re.search(pattern, text(deployment)) is not None,
            )
        )


@pytest.fixture
def service(
    repository: Repository, kube: KubeClient, server_image: str, fetching: None, store: str
) -> Iterator[Published]:
    """The service with version 1; version 2 is published, too."""
    made = Published(repository, kube, server_image, build_digits(TRAINER)[1], store)
    for version in (1, 2):
        made.publish(version)
    repository.write("published.yaml", made.specs(1))
    made.told("^Stable|^Promoted")
    yield made
    repository.remove("published.yaml")


def test_a_model_with_another_checksum_does_not_come_up(service: Published, repository: Repository) -> None:
    live = service.ready()
    assert len(live) == 1

    good = service.model(2)
    service.write(2, bytes(len(good)))
    repository.change("published.yaml", service.specs(2))
    why = service.told("has another checksum than when it was published$")
    print(why)
    assert why.startswith("Starting: 0 of 1 pods are ready: model ended with exit code 1")
    assert service.ready() == live

    # The next attempt of the same pod finds what was published.
    service.write(2, good)
    service.told("^Stable|^Promoted")
    service.replaced(live)
