"""Names and values that the compiler writes and the daemons read, declared once."""
