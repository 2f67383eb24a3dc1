"""etcd is compacted: watches and lists cannot go on from where they were, and miss nothing all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from avactl.kube.access import from_kubeconfig
from avactl.kube.client import Client
from avactl.kube.reflector import Reflector
from tests.proxy import Ask, Proxy
from tools.controlplane import ControlPlane, KubeClient
from tools.waiting import wait_until_async

API_SERVER = "kube-apiserver"


class Seen:
    """Remembers each object's data, and what was told of it."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}

    def put(self, item: dict[str, Any]) -> None:
        self.items[item["metadata"]["name"]] = item["data"]["v"]

    def remove(self, key: str) -> None:
        del self.items[key.rpartition("/")[2]]

    def keys(self) -> Iterable[str]:
        return [f"default/{name}" for name in self.items]


@pytest.fixture(scope="module")
def plane(control_plane_binaries: None) -> Iterator[ControlPlane]:
    """A plane whose API server answers watches from etcd, not from a cache of its own."""
    with ControlPlane(arguments={API_SERVER: ["--watch-cache=false"]}) as plane:
        yield plane


@pytest.fixture
def kube(plane: ControlPlane) -> Iterator[KubeClient]:
    """The administrator's client; no ConfigMap is left."""
    with plane.client() as client:
        yield client
        client.request("DELETE", "/api/v1/namespaces/default/configmaps")


@pytest.fixture
def proxy(plane: ControlPlane, tmp_path: Path) -> Iterator[Proxy]:
    """The way to the API server."""
    with Proxy(plane, tmp_path) as proxy:
        yield proxy


def write(kube: KubeClient, **values: str) -> None:
    """Create or change ConfigMaps."""
    for name, value in values.items():
        metadata = {"name": name, "namespace": "default"}
        kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"v": value}})


def compact(plane: ControlPlane) -> None:
    """Have etcd forget all revisions but the last."""
    transport = httpx.HTTPTransport(uds=str(plane.layout.folder / "etcd:1"))
    with httpx.Client(transport=transport, base_url="http://etcd") as etcd:
        head = etcd.post("/v3/kv/range", json={"key": "AA=="}).raise_for_status().json()["header"]["revision"]
        etcd.post("/v3/kv/compaction", json={"revision": head, "physical": True}).raise_for_status()


@contextlib.asynccontextmanager
async def reflector(proxy: Proxy, seen: Seen, page: int = 500) -> AsyncIterator[Reflector]:
    """Yield a reflector of the ConfigMaps, which is not yet running."""
    access = from_kubeconfig(proxy.kubeconfig)
    async with Client(access) as client:
        yield Reflector(client, "/api/v1/namespaces/default/configmaps", seen, page=page)


def test_a_watch_that_comes_back_after_a_compaction_has_missed_nothing(
    plane: ControlPlane, kube: KubeClient, proxy: Proxy
) -> None:
    seen, refused = Seen(), list[bool]()
    write(kube, stays="1", changes="1", goes="1")

    async def run() -> None:
        async with reflector(proxy, seen) as watching:
            watching.failed = lambda: refused.append(True)
            running = asyncio.ensure_future(watching.run())
            await wait_until_async(lambda: len(seen.items) == 3)
            write(kube, stays="2")
            await wait_until_async(lambda: seen.items["stays"] == "2")

            def cut(ask: Ask) -> None:
                raise ConnectionError

            proxy.before = cut
            proxy.drop_watches()
            await wait_until_async(lambda: bool(refused))
            listed = watching.since
            write(kube, changes="2", comes="1")
            kube.delete("v1", "ConfigMap", "goes", "default")
            compact(plane)
            proxy.before = lambda _: None
            await wait_until_async(lambda: seen.items == {"stays": "2", "changes": "2", "comes": "1"})
            assert watching.since > listed, "the watch could not go on"
            running.cancel()

    asyncio.run(run())


def test_a_list_whose_pages_expire_is_read_at_once(plane: ControlPlane, kube: KubeClient, proxy: Proxy) -> None:
    """However often it is begun anew: a list in pages that takes longer than the interval would never end."""
    seen = Seen()
    write(kube, **{f"n{number:02}": "1" for number in range(12)})
    lists: list[str] = []

    def before_each_page(after: Callable[[], None]) -> Callable[[Ask], None]:
        def before(ask: Ask) -> None:
            lists.append(ask.path)
            if len(lists) > 1:
                after()

        return before

    def change() -> None:
        write(kube, n00=f"changed {len(lists)}", n11=f"changed {len(lists)}")
        compact(plane)

    async def run() -> None:
        async with reflector(proxy, seen, page=5) as watching:
            proxy.before = before_each_page(change)
            await watching.load()

    asyncio.run(run())
    proxy.before = lambda _: None
    assert seen.items["n00"] == seen.items["n11"] == f"changed {len(lists)}"
    assert len(seen.items) == 12
