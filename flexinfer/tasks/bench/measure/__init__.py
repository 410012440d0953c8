"""One row: rounds of one back end at one batch size, and what they say."""
