"""Pulumi runs this for each stack: `CLUSTER` holds the platform's objects, `CLUSTER.TEAM` those of a team.

Copy this directory into a spec repository; `avactl preview` and `avactl up` use the same stacks and settings.
"""

from avactl.emit.stack import run

run()
