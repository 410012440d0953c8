"""What a completion is worth: the built-in rewards, and those a user brings as module:function."""
