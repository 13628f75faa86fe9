"""The verbs of the public API: a module per family."""
