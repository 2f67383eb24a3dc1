"""`avactl dataset`: commands on data and manifests."""
