"""Node daemon that checks GPU machines against the machine type of their pool."""
