"""What a command does, without a terminal: config in, frozen report out."""
