"""The scheduling queue: pods and gangs to be tried next, and those that wait for a change."""
