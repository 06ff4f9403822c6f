"""A network for a microcontroller: how much flash and memory it takes, and a run on an emulated Cortex-M4.

The emulation needs arm-none-eabi-gcc, newlib and qemu-system-arm (Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi
qemu-system-arm); without them the C is written and not run.
"""

import re
import shutil
import subprocess
from pathlib import Path

import torch
from torch import nn

import lehr
import lehr.data

torch.manual_seed(0)
train, _, test = lehr.data.load("digits")
model = nn.Sequential(  # strides instead of pools, few channels: the largest activation is what takes memory
    lehr.models.Input(mean=train.mean, std=train.std, bits=8),
    *(nn.Conv2d(1, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(128, 10, bias=False), nn.BatchNorm1d(10)),
)
lehr.quantize_(model)

EPOCHS = 20
annealer = lehr.Annealer(model, lehr.annealing.Hierarchical(duration=4), epochs=EPOCHS)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train.images)).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train.images[batch]), train.labels[batch]).backward()
        optimizer.step()
    annealer.step()

net = lehr.freeze(model.eval(), test.images, classes=test.classes)
accuracy = (net.predict(test.images) == test.labels).double().mean().item()
print(f"{accuracy:.1%} of the test images")

folder = Path("digits-cortex-m4")
lehr.deploy.to_c(net, folder, images=test.images[:6], target="cortex-m4")
header = (folder / "model.h").read_text()
sizes = dict(re.findall(r"#define MODEL_(MEMORY|STACK|CONSTANTS) (\d+)", header))
print(f"RAM: {sizes['MEMORY']} bytes for a run, {sizes['STACK']} of stack; flash: {sizes['CONSTANTS']} of constants")
print(f"{folder} has start-up code and a linker script; its README.md shows the call")

if shutil.which("arm-none-eabi-gcc") and shutil.which("qemu-system-arm"):
    make = ["make", "--no-print-directory", "-C", str(folder)]
    done = subprocess.run(make, capture_output=True, text=True, check=True)
    print("emulated Cortex-M4:", done.stdout.splitlines()[-1])
else:
    print(f"with the Arm tools installed, `make -C {folder}` runs it in an emulator")
