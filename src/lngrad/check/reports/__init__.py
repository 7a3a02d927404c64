"""What is shown and kept of results: terminal, JUnit, HTML, and a journal of JSON lines."""
