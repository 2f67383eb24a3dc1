"""Machine types and the topology model: sockets, PCIe switches, NVLink, NICs."""
