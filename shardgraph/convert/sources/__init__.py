"""The built-in sources: one raw format a file."""
