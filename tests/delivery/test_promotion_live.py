"""A service on `staging` and one on `production`: two control planes that have only git in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from avactl.contracts.delivery import PromotionState
from avactl.daemons.delivery.promotions import read_promotion_state
from tests.delivery.conftest import run_world
from tests.delivery.world import PLATFORM, SERVICE, World
from tests.review.pulls import TOKEN, serve_pulls
from tests.serving.world import node
from tools.controlplane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]
NO_STORE = "http://127.0.0.1:9"
CLUSTER, TEAM = PLATFORM.split("---\n")
FROM = "spec:\n  cluster: production\n  promoteFrom: {service: try, healthyFor: 3s}\n"
FILES = {
    "staging.yaml": CLUSTER.replace("name: main", "name: staging"),
    "production.yaml": CLUSTER.replace("name: main", "name: production"),
    "team.yaml": TEAM,
    "try.yaml": SERVICE.replace("name: web", "name: try").replace("spec:\n", "spec:\n  cluster: staging\n", 1),
    "web.yaml": SERVICE.replace("spec:\n", FROM, 1),
}


@pytest.fixture(scope="module")
def other_plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    """A plane beside that of the other tests."""
    with ControlPlane(controller_manager=True, scheduler=True, kwok=True, users={"member": ("tenants",)}) as plane:
        with plane.client() as kube:
            node(kube, "node-0")
        yield plane


@pytest.fixture
def world(delivery_plane: ControlPlane, tmp_path: Path) -> Iterator[World]:
    """Production. No pod reads a store: kwok simulates them."""
    yield from run_world(delivery_plane, tmp_path, NO_STORE)


@pytest.fixture
def staging(world: World, other_plane: ControlPlane, tmp_path: Path) -> Iterator[World]:
    """The cluster that tries new versions."""
    (tmp_path / "staging").mkdir()
    with other_plane.client() as kube:
        made = World(other_plane, kube, world.team, tmp_path / "staging", NO_STORE, "staging", world.remote)
        yield made
        made.stop()


def state(world: World) -> PromotionState:
    """Return what the daemon tells users."""
    found = world.kube.find("v1", "ConfigMap", f"promotion-state.{world.team}.web", "avactl-system")
    return read_promotion_state(((found or {}).get("data") or {}).get("state.json"))


def deploy(staging: World, version: str) -> None:
    """Commit a version of the model to staging."""
    staging.git("pull", "-q", "--rebase", "origin", "main")
    text = (staging.work / "try.yaml").read_text()
    line = next(each for each in text.splitlines() if each.startswith("  model:"))
    new = f'  model: {{name: digits, version: "{version}", url: "s3://data/published/digits/{version}"}}'
    staging.commit({"try.yaml": text.replace(line, new)}, f"try {version}")


def merge(world: World, pull: dict[str, Any]) -> None:
    world.git("fetch", "-q", "origin")
    world.git("checkout", "-q", "-B", "merging", "origin/main")
    world.git("merge", "-q", "--no-ff", "-m", "merged", f"origin/{pull['branch']}")
    world.git("push", "-q", "origin", "HEAD:main")


def test_from_staging_to_production(world: World, staging: World) -> None:
    world.cluster = "production"
    credentials = world.folder / "credentials"
    credentials.mkdir()
    (credentials / "username").write_text("avactl")
    (credentials / "password").write_text(TOKEN)
    with serve_pulls("github") as fake:
        world.delivery_options = ["--forge", "github", "--api", fake.url, "--project", "acme/specs"]
        world.delivery_options += ["--credentials", str(credentials)]
        staging.commit(FILES)
        world.launch("serving", "delivery")
        staging.launch("serving", "delivery")
        world.until(lambda: world.runs() == {"1": 4} and staging.runs() == {"1": 4})
        world.until(lambda: state(world).phase == "current")
        deploy(staging, "2")
        world.until(lambda: fake.pulls)
        pull = fake.pulls[0]
        assert pull["title"] == "web: promote version 2 from try"
        assert "spec.model.version: 1 → 2" in pull["text"]
        assert world.served() == "1"
        world.until(lambda: state(world).phase == "proposed" and state(world).url.endswith("/pull/1"))
        # Killed and started again, it opens no second one.
        world.kill("delivery")
        world.start("delivery")
        # Another version on staging: what the first one proposed is not what is tried any more.
        deploy(staging, "3")
        world.until(lambda: pull["state"] == "closed")
        assert pull["title"].startswith("Withdrawn: ")
        world.until(lambda: len(fake.pulls) == 2)
        merge(world, fake.pulls[1])
        fake.close(merged=True)
        world.until(lambda: world.runs() == {"3": 4})
        world.until(lambda: state(world).phase == "current")
        # Somebody takes it back on production: it stays so.
        world.git("revert", "--no-edit", "-m", "1", "HEAD")
        world.git("push", "-q", "origin", "HEAD:main")
        world.until(lambda: state(world).phase == "held" and "has undone it" in state(world).message)
        assert len(fake.pulls) == 2
    assert TOKEN not in (world.folder / "delivery.log").read_text()
    assert world.kube.list("apps/v1", "Deployment", world.team)[0]["metadata"]["name"] == "web"
    assert staging.kube.list("apps/v1", "Deployment", world.team)[0]["metadata"]["name"] == "try"
