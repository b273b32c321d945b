"""Hugging Face: models of others in, ours out; `import backstory.interop` makes ours known to transformers, if it is there."""

from importlib.util import find_spec

if find_spec("transformers") is not None:
    from backstory.interop import modeling  # noqa: F401
