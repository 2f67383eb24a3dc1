"""Parameter servers: dense parameters and sparse tables that many workers train, on several machines.

    from avactl_worker import ps

    with ps.connect() as servers:
        embedding = servers.table("embedding", 16, ps.AdaGrad(0.05), ps.normal(0.01))
        for step in servers.steps(1000):
            rows = embedding.pull(ids)
            embedding.push(rows, gradient(rows.values[rows.index]))

The servers are `python -m avactl_worker.ps`. Both sides need NumPy.
"""

from __future__ import annotations

from avactl_worker.ps.client import Dense, Rows, Servers, Table, connect, normal, uniform, zeros
from avactl_worker.ps.errors import ServerError
from avactl_worker.ps.optimizers import FTRL, SGD, AdaGrad, Adam, Momentum

__all__ = [
    "FTRL",
    "SGD",
    "AdaGrad",
    "Adam",
    "Dense",
    "Momentum",
    "Rows",
    "ServerError",
    "Servers",
    "Table",
    "connect",
    "normal",
    "uniform",
    "zeros",
]
