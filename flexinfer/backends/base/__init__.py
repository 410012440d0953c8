"""What all back ends share: the protocol, options, a loaded model, a call on its way."""
