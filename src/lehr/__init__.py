"""lehr anneals float neural networks into quantized ones (Additive Noise Annealing, arXiv 1905.10452)."""

__version__ = "0.1.0"
