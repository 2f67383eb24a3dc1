"""Dynamic Resource Allocation: ResourceSlices, ResourceClaims, and the allocator between them."""
