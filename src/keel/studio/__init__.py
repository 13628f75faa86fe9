"""The studio: a local web application to try models, look inside them, and follow and compare training runs."""
