"""The command line: options in, one call down, text out."""
