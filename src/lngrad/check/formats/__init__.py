"""Case files: TTK, ATK, folders of dumps and our own YAML, each read into the same cases."""
