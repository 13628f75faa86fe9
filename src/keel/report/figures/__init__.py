"""Diagrams of networks, tasks and inputs, from the configurations of systems and models."""
