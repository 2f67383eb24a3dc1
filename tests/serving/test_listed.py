"""Services with a rollout that `avactl serving status` lists."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from avactl.contracts.names import ROLLOUT
from avactl.daemons.serving.daemon import list_services
from avactl.kube.client import ApiError, Client

WEB = {"metadata": {"name": "web", "namespace": "team", "annotations": {ROLLOUT: "{}"}}}


class Api:
    """Has one Deployment, and answers for LeaderWorkerSets with an error."""

    def __init__(self, status: int) -> None:
        self._status = status

    async def page(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        if path.endswith("/leaderworkersets"):
            raise ApiError(self._status, "", "")
        return {"items": [WEB], "metadata": {}}


@pytest.mark.parametrize("namespace", ["", "team"])
def test_who_may_not_read_all_services_is_not_shown_a_part(namespace: str) -> None:
    assert asyncio.run(list_services(cast(Client, Api(404)), namespace)) == [WEB]
    with pytest.raises(ApiError):
        asyncio.run(list_services(cast(Client, Api(403)), namespace))
