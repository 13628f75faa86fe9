"""How any writer writes text."""
