"""What is asked of an engine and what comes back: requests, limits, seeds, results, chats."""
