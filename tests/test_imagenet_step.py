"""A training step of the full-size networks at batch 8 runs within a small machine's memory."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "imagenet.py"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(("network", "megabytes"), [("AlexNet", 1900), ("MobileNetV2", 1400)])
def test_two_quantized_steps_stay_within_memory(network, megabytes):
    command = [sys.executable, str(BENCHMARK), "--peak", network, "ANA"]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)
    assert peak < megabytes  # measured: 1501 and 1019
