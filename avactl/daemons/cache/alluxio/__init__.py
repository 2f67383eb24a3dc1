"""Alluxio 2.9 by its own gRPC services, without its Java client."""
