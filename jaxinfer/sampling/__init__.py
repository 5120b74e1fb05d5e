"""DEV. Logits to tokens, on the device."""
