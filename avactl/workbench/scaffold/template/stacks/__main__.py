"""Pulumi program of all stacks: `CLUSTER` contains the platform's objects, `CLUSTER.TEAM` those of a team.

`avactl preview` and `avactl up` use the same stacks and settings.
"""

from avactl.apply.pulumi.stack import run

run()
