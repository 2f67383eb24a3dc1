"""When a job starts: after other jobs, or by a schedule."""
