"""What the machine and the process grant: threads, huge pages, caches and a folder for files."""
