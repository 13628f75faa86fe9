"""The verbs of the public API, one module per family."""
