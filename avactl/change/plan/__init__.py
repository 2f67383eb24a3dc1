"""Predict with the scheduler's own code how a change would be scheduled, on declared capacity or on a snapshot."""
