"""Tokenizers and vocabularies: text to ids and back."""
