"""File formats of models and vectors, read and written."""
