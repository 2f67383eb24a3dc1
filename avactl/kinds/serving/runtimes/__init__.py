"""The serving runtimes, one module each; the folder is the list of them (`runtime_facts.py`)."""
