"""Services whose prompts are read by pods of their own: prefill/decode disaggregation."""
