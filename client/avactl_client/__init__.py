"""Client-side load balancing of gRPC calls for services of avactl with `balance: headless`.

    import avactl_client

    channel = avactl_client.channel("classify-headless.vision:8500")
    stub = PredictionServiceStub(channel)
    stub.Predict(request, timeout=1.0)

Each call goes to the server that suits best by measured latency; servers that fail get no calls for a time.
"""

from __future__ import annotations

from avactl_client.channel import Channel, channel
from avactl_client.ledger import NoServerError
from avactl_client.names import TargetError

__all__ = ["Channel", "NoServerError", "TargetError", "channel"]

__version__ = "0.1.0"
