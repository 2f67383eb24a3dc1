"""Field types that several kinds share: quantities, images, GPUs, credentials, and their validation."""
