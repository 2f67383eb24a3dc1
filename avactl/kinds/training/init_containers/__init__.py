"""Init containers of the pods of a TrainingJob: what happens before its program starts."""
