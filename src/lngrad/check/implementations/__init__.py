"""What is checked, by name: backends of lngrad, other libraries, Ascend's doors, functions and programs of the user's."""

from lngrad.check.implementations.interface import Implementation, NotApplicable
from lngrad.check.implementations.names import find, names

__all__ = ["Implementation", "NotApplicable", "find", "names"]
