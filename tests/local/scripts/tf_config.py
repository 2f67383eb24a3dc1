"""The example's parameter servers, with the addresses of TF_CONFIG: the chief is the first worker."""

from __future__ import annotations

import json
import os

import parameter_server


def main() -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    every = [address for addresses in cluster.values() for address in addresses]
    assert len(every) == len({address.split(":")[0] for address in every}) == len({a.split(":")[1] for a in every})
    workers = [*cluster["chief"], *cluster["worker"]]
    if task["type"] == "ps":
        parameter_server.serve(task["index"], cluster["ps"], len(workers))
    else:
        index = task["index"] + len(cluster["chief"]) * (task["type"] == "worker")
        parameter_server.train(index, cluster["ps"], len(workers))


if __name__ == "__main__":
    main()
