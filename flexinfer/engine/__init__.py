"""From requests to completions: batching, sampling, graphs, chat."""
