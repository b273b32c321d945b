"""Models of others: Hugging Face models read and examined here, and ours read there."""
