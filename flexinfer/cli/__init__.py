"""The command line: parse, call a task, print."""
