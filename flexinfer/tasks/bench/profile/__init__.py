"""Where the time of a decode step and of a whole call goes."""
