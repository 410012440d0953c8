"""`verify-drift`: proof that an engine rolls out with the trainer's weights and spares them."""
