"""Benchmarks: every performance figure of avactl, measured beside its peers. `python -m benchmarks` runs all."""
