"""Parts of a service's spec, which the modules that lower and check them read beside the spec itself."""
