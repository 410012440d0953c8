"""The embedded model `tiny-gemma4`: trained weights, tokenizer, and the scripts that made them."""
