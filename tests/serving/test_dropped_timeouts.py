"""An API server that does not know `timeouts` of routes drops them: the rollout says so, and does not try for ever."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest

from avactl.contracts.document import DocumentError
from avactl.contracts.serving import RolloutState
from avactl.daemons.serving.actions import Actor
from avactl.daemons.serving.view import Weigh
from tests.serving.test_decide import HTTP, by_gateway

WEIGHTS = (("old", 75), ("new", 25))


class _OldApiServer:
    def __init__(self, drops: bool) -> None:
        self._drops = drops
        self.conditions: list[Any] = []

    async def request(self, method: str, path: str, body: Any, **_: Any) -> Mapping[str, Any]:
        if path.endswith("/status"):
            self.conditions += body["status"]["conditions"]
            return {}
        stored: dict[str, Any] = copy.deepcopy(body)
        for rule in stored["spec"]["rules"] if self._drops else ():
            rule.pop("timeouts", None)
        return stored


@pytest.mark.parametrize("drops", [False, True])
def test_timeouts_that_are_not_stored(drops: bool) -> None:
    view = by_gateway(RolloutState(stable="old", canary="new"), {"old": 100, "new": 0}, None)
    notes = view.routes[HTTP]["metadata"]["annotations"]
    (rule,) = json.loads(notes["avactl.dev/rollout-route"])
    notes["avactl.dev/rollout-route"] = json.dumps([{**rule, "timeouts": {"request": "1h"}}])
    server: Any = _OldApiServer(drops)
    view.deployment["metadata"].setdefault("namespace", "vision")
    view.routes[HTTP]["metadata"]["resourceVersion"] = "1"
    actor = Actor(server, lambda body: None)
    if not drops:
        asyncio.run(actor.act(view, Weigh(WEIGHTS)))
        assert server.conditions == []
        return
    with pytest.raises(DocumentError, match="write `gateway"):
        asyncio.run(actor.act(view, Weigh(WEIGHTS)))
    (condition,) = server.conditions
    assert (condition["status"], condition["reason"]) == ("False", "TimeoutsDropped")
    assert "install Gateway API 1.2" in condition["message"]
