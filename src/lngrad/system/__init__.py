"""What the machine and the process grant: threads, huge pages, caches, memory for machine code and a folder for files."""
