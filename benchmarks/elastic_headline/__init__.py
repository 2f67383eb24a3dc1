"""Elastic jobs against gangs on 24 CPUs, and beside a service: `python -m benchmarks.elastic_headline --help`."""
