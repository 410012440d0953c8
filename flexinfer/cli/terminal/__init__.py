"""What a user sees, and how a command ends: console, progress, output, errors, signals."""
