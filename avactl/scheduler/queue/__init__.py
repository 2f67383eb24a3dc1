"""The scheduling queue: active pods and gangs, and unschedulable ones that wait for a change."""
