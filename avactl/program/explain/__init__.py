"""Reference for the kinds: `avactl explain`, model introspection, JSON Schema."""
