"""Plans as text, Markdown and JSON."""
