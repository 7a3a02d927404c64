"""What is shown and kept of results: JUnit, HTML, and a journal of JSON lines."""
