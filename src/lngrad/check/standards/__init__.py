"""Precision standards: by which rule a result is right."""
