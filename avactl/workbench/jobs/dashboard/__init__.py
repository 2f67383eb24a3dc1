"""The job dashboard: a read-only web page on loopback, with the rights of its caller."""
