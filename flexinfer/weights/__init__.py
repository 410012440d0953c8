"""From a name to a loaded model: hub, folder, GGUF or dummy; packing and digests."""
