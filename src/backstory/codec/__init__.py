"""A lossless codec: any file as the choices of a reader, and back, as the proof of every figure."""

from backstory.codec.codec import Compressed, compress, decompress

__all__ = ["Compressed", "compress", "decompress"]
