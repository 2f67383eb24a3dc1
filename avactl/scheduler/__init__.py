"""The scheduler in the cluster: watches, decides through `avactl.placement`, binds. Run as `avactl scheduler`."""
