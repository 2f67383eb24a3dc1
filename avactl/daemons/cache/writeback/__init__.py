"""Write-back of a tier's data to the object store, and its release."""
