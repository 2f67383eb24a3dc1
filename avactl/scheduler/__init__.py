"""The in-cluster scheduler: watches the API server, places pods with `avactl.hardware.placement`, binds them.

Run as `avactl scheduler`."""
