"""The commands of lngrad-ascend: `lngrad kernel`, `lngrad sdk` and `lngrad tiling`."""
