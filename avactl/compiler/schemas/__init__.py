"""JSON Schemas of specs, of files with parts of specs, and of settings, for editors."""
