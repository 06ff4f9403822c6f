"""The newest opset that the installed onnxruntime reads: `make test-lowest` has one that does not read opset 25."""

from __future__ import annotations

import onnxruntime
from packaging.version import Version

READS_INT2 = Version(onnxruntime.__version__) >= Version("1.24")
NEWEST = 25 if READS_INT2 else 21
