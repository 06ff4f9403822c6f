"""The ImageNet road, measured: reading, colours on the device, a training step of both networks.

    python benchmarks/imagenet.py [read] [colour] [step] [--images DIR] [--threads N] [--repetitions N] [--compile]

read    images a second, decoded and augmented: a plain Pillow loop, the same loop in two processes, and two readers
        with colours on the device (goal: at least 1.5 times the loop on 2 cores). DIR holds class folders of JPEGs;
        without it drawn images of ImageNet's usual 500 x 375 pixels are read.
colour  `Colour` beside a training step of MobileNetV2 at batch 8 (goal: at most 10 % of it).
step    forward, backward and Adam at batch 8, quantized by ANA against full precision (goal: at most 1.10 times the
        time); variants alternate in one process, the minimum of each counts; peak memory each in a process of its own.

Reading is timed by the clock, on as many cores as there are; the others by processor time, with one thread unless told,
so that other work on the machine disturbs them least.

Exits with 1 where a goal is missed by more than 10 %, as less may be noise.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from lehr.algorithms import ANA
from lehr.data import Colour, ImageFiles, RandomCrop, StreamedBatches, read_folder
from lehr.data.augment import EIGENVALUES, EIGENVECTORS
from lehr.data.shapes import FIGURES, draw
from lehr.models import AlexNet, MobileNetV2, quantized_part
from lehr.training.machine import keep_freed_memory

SIZE, BATCH = 224, 8
SLACK = 1.1


def plain(path: Path, crop: RandomCrop, draws: random.Random) -> Tensor:
    """What a straightforward script does for each image, with the same random choices."""
    image = Image.open(path).convert("RGB")
    left, top, right, bottom, mirrored = crop.box(*image.size, draws)
    image = image.crop((int(left), int(top), int(right), int(bottom))).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = change(image).enhance(draws.uniform(0.6, 1.4))
    multiples = np.array([draws.gauss(0, 0.1) for _ in range(3)]) * EIGENVALUES
    pixels = np.asarray(image, dtype=np.float32) + 255 * (np.array(EIGENVECTORS) @ multiples).astype(np.float32)
    return torch.from_numpy(pixels.round().clip(0, 255).astype(np.uint8).transpose(2, 0, 1).copy())


class Plain(torch.utils.data.Dataset):
    """The plain loop as torch's loader takes it."""

    def __init__(self, files: ImageFiles) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return plain(self.files.path(index), RandomCrop(SIZE), random.Random(index))


def read(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as drawn:
        files = read_folder(options.images or write_drawn(Path(drawn)), size=SIZE)
        count = max(256, len(files))
        files = files.take(torch.arange(count) % len(files))

        def loop() -> int:
            batches = [
                torch.stack([plain(files.path(at), RandomCrop(SIZE), random.Random(at)) for at in range(i, i + 32)])
                for i in range(0, count - 31, 32)
            ]
            return 32 * len(batches)

        torch_loader = torch.utils.data.DataLoader(Plain(files), 32, num_workers=2, persistent_workers=True)
        ours = StreamedBatches(files, 32, crop=RandomCrop(SIZE), augment=Colour(), shuffle=True, workers=2)
        variants: dict[str, Callable[[], int]] = {
            "plain loop": loop,
            "plain loop in 2 processes": lambda: sum(len(images) for images in torch_loader),
            "2 readers": lambda: sum(len(labels) for _, labels in ours),
        }
        rates = dict.fromkeys(variants, 0.0)
        for _ in range(options.repetitions):
            for name, variant in variants.items():
                start = time.perf_counter()
                images = variant()
                rates[name] = max(rates[name], images / (time.perf_counter() - start))
    ratio = rates["2 readers"] / rates["plain loop"]
    shown = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    print(f"read: images/s: {shown}; {ratio:.2f} times the plain loop (goal: at least 1.5)")
    return ratio * SLACK >= 1.5


def write_drawn(root: Path) -> Path:
    for at in range(48):
        name = sorted(FIGURES)[at % len(FIGURES)]
        (root / name).mkdir(exist_ok=True)
        grain = Image.effect_noise((500, 375), 40).convert("RGB")
        image = Image.blend(draw(name, random.Random(at)).resize((500, 375)), grain, 0.4)
        image.save(root / name / f"{at}.JPEG", quality=90)
    return root


def training_step(network: str, quantized: bool, compiled: bool = False) -> Callable[[], float]:
    torch.manual_seed(0)
    size = 227 if network == "AlexNet" else SIZE
    model = AlexNet() if network == "AlexNet" else MobileNetV2()
    if quantized:
        ANA().convert_(quantized_part(model))
    model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    images = torch.randint(256, (BATCH, 3, size, size)).to(torch.uint8)
    labels = torch.randint(1000, (BATCH,))
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        start = time.process_time()
        nn.functional.cross_entropy(run(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - start

    return step


def colour(options: argparse.Namespace) -> bool:
    step, change = training_step("MobileNetV2", quantized=False), Colour()
    images = torch.randint(256, (BATCH, 3, SIZE, SIZE)).to(torch.uint8).contiguous(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(0)
    steps, changes = [], []
    for _ in range(options.repetitions):
        steps.append(step())
        start = time.process_time()
        change(images, generator)
        changes.append(time.process_time() - start)
    ratio = min(changes) / min(steps)
    print(
        f"colour: {min(changes) * 1e3:.1f} ms, {ratio:.1%} of MobileNetV2's step of {min(steps) * 1e3:.0f} ms "
        "(goal: at most 10 %)"
    )
    return ratio <= 0.10 * SLACK


def step(options: argparse.Namespace) -> bool:
    good = True
    for network in ("AlexNet", "MobileNetV2"):
        steps = {kind: training_step(network, kind == "ANA", options.compile) for kind in ("fp32", "ANA")}
        times: dict[str, list[float]] = {kind: [] for kind in steps}
        for _ in range(options.repetitions + 1):
            for kind, run in steps.items():
                times[kind].append(run())
        fp32, ana = (min(times[kind][1:]) for kind in ("fp32", "ANA"))
        medians = statistics.median(times["ANA"][1:]) / statistics.median(times["fp32"][1:])
        del steps
        memory = {kind: peak(network, kind, options.threads) for kind in ("fp32", "ANA")}
        print(
            f"step: {network}, batch {BATCH}: fp32 {fp32 * 1e3:.0f} ms, {memory['fp32']} MB; ANA {ana * 1e3:.0f} ms, "
            f"{memory['ANA']} MB; {ana / fp32:.2f} times the time (by the medians {medians:.2f}; goal: at most 1.10), "
            f"{memory['ANA'] / memory['fp32']:.2f} times the memory"
        )
        good &= ana / fp32 <= 1.10 * SLACK
    return good


def peak(network: str, kind: str, threads: int) -> int:
    command = [sys.executable, __file__, "--peak", network, kind, "--threads", str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_memory() -> int:
    """Megabytes this process has had at most; `getrusage` would count those of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description="the ImageNet road, measured")
    parser.add_argument("parts", nargs="*", choices=["read", "colour", "step", []], default=[])
    parser.add_argument("--images", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="steps through torch.compile, both variants")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)  # a process of its own: memory of two steps in MB
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `lehr train` does
    if options.peak:
        run = training_step(options.peak[0], quantized=options.peak[1] == "ANA")
        for _ in range(2):
            run()
        print(peak_memory())
        return 0
    parts = {"read": read, "colour": colour, "step": step}
    results = [parts[part](options) for part in options.parts or parts]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
