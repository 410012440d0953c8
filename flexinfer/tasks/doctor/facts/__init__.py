"""What checks look up and reckon: versions, shapes, memory, what the driver and torch say."""
