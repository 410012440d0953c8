"""What a user types: the options of all commands, in the groups that help shows."""
