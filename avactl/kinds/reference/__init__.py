"""Reference of the kinds: `avactl explain`, introspection of models, JSON Schema."""
