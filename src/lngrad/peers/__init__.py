"""Doors to other people's implementations that have no Python interface."""
