"""A pipeline that deploys by pull request: opened once, merged by a person, or closed."""

from __future__ import annotations

import pytest

from tests.delivery.world import PIPELINE, World
from tests.review.pulls import TOKEN, serve_pulls

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("delivery")]


def test_merged_or_declined(world: World) -> None:
    world.kubelet.instead = lambda pod: (0, '{"accuracy": 0.9}')
    credentials = world.folder / "credentials"
    credentials.mkdir()
    (credentials / "username").write_text("avactl")
    (credentials / "password").write_text(TOKEN)
    with serve_pulls("github") as fake:
        world.delivery_options = [
            "--forge",
            "github",
            "--api",
            fake.url,
            "--project",
            "acme/specs",
            "--credentials",
            str(credentials),
        ]
        world.begin(pipeline=PIPELINE.replace("by: commit", "by: pullRequest"))
        world.until(lambda: world.state().primed and world.runs() == {"1": 4})
        world.new_version("v2")
        world.until(lambda: world.ended(1))  # it publishes the version that is served
        world.new_version("v3")
        world.until(lambda: fake.pulls)
        assert fake.pulls[0]["branch"] == f"avactl/{world.team}/digits-2"
        assert "accuracy: 0.9" in fake.pulls[0]["text"]
        # Another replica opens no second one.
        world.kill("delivery")
        world.start("delivery")
        world.until(lambda: fake.requests.count("GET /repos/acme/specs/pulls") >= 4)
        assert len(fake.pulls) == 1
        world.git("fetch", "-q", "origin")
        world.git("merge", "-q", "--no-ff", "-m", "merged", f"origin/{fake.pulls[0]['branch']}")
        world.git("push", "-q", "origin", "HEAD:main")
        fake.close(merged=True)
        world.until(lambda: world.ended(2))
        assert world.state().reason == "Deployed"
        world.until(lambda: world.runs() == {"2": 4})
        world.new_version("v4")
        world.until(lambda: len(fake.pulls) == 2)
        fake.close()
        world.until(lambda: world.ended(3))
        assert world.state().reason == "Declined"
        assert world.served() == "2"
        world.new_version("v5")
        world.until(lambda: len(fake.pulls) == 3)
        world.commit({"digits.yaml": "# nothing\n"})
        world.until(lambda: fake.pulls[2]["state"] == "closed")
    assert TOKEN not in (world.folder / "delivery.log").read_text()
