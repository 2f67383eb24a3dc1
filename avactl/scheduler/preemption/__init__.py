"""Preemption: choose victims, reserve the capacity they free, and start the preemptor."""
