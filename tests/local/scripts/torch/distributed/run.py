"""Stand-in for torchrun: reads the PET_* variables that torchrun reads, and starts one process per node.

Static rendezvous: the node's rank is given. c10d: the node with `is_host=1` holds the rendezvous at the endpoint, and
each node gets its rank from there. As torchrun's, its store listens on all addresses.
Source: torch/distributed/run.py, torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time


def connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def host_store(port: int, nodes: int, own: str) -> dict[str, str]:
    """Collect the addresses of all nodes, and tell each of them its rank; return the first one's."""
    with socket.create_server(("", port)) as server:
        peers = [server.accept()[0].makefile("rw") for _ in range(nodes - 1)]
    addresses = [peer.readline().strip() for peer in peers]
    order = [own, *sorted(addresses)]
    for peer, address in zip(peers, addresses, strict=True):
        peer.write(json.dumps([order.index(address), order[0]]) + "\n")
        peer.flush()
    return {"RANK": "0", "MASTER_ADDR": own}


def join_store(host: str, port: int, own: str) -> dict[str, str]:
    peer = connect(host, port).makefile("rw")
    peer.write(own + "\n")
    peer.flush()
    rank, master = json.loads(peer.readline())
    return {"RANK": str(rank), "MASTER_ADDR": master}


def main() -> None:
    env = os.environ
    least, _, most = env["PET_NNODES"].partition(":")
    assert env["PET_NPROC_PER_NODE"] == "1"
    if env.get("PET_RDZV_BACKEND") != "c10d":
        assert not most
        found = {
            "RANK": env["PET_NODE_RANK"], "WORLD_SIZE": least,
            "MASTER_ADDR": env["PET_MASTER_ADDR"], "MASTER_PORT": env["PET_MASTER_PORT"],
        }  # fmt: skip
    else:
        # torchrun waits for a while for more nodes than the minimum; here, the test says how many come.
        nodes = int(env["TEST_NODES"])
        assert int(least) <= nodes <= int(most)
        host, port = env["PET_RDZV_ENDPOINT"].split(":")
        own = env["PET_LOCAL_ADDR"]
        is_host = {"is_host=1": True, "is_host=0": False}[env["PET_RDZV_CONF"]]
        assert is_host == (host == own)
        found = host_store(int(port), nodes, own) if is_host else join_store(host, int(port), own)
        found |= {"WORLD_SIZE": str(nodes), "MASTER_PORT": str(int(port) + 1)}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**env, **found})


if __name__ == "__main__":
    main()
