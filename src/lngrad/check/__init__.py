"""Whether somebody's gradients are right, and if not, which mistake they look like. The command is in cli/check.py."""
