# %% [markdown]
# # A CNN, from PyTorch to C
#
# A convolutional network of your own is quantized, trained, frozen into integers and written as C. The last cell
# needs a C compiler and `make`.

# %%
import shutil
import subprocess

import torch
from torch import nn

import lehr
import lehr.data

torch.manual_seed(0)
train, _, test = lehr.data.load("digits")  # 8x8 pixels, uint8; replace it by your own

# %% [markdown]
# The first module takes pixels. BatchNorm and ReLU behind a layer become thresholds of integers later.

# %%
model = nn.Sequential(
    lehr.models.Input(mean=train.mean, std=train.std, bits=8),
    *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(512, 10, bias=False), nn.BatchNorm1d(10)),
)
print(lehr.quantize_(model))  # ternary weights and activations, in place

# %% [markdown]
# An ordinary loop with one line more: after each epoch there is a little less noise.

# %%
EPOCHS = 10
annealer = lehr.Annealer(model, lehr.annealing.Hierarchical(duration=2), epochs=EPOCHS)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(EPOCHS):
    for batch in torch.randperm(len(train.images)).split(64):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train.images[batch]), train.labels[batch])
        loss.backward()
        optimizer.step()
    annealer.step()

# %% [markdown]
# `freeze` makes integers of the trained network. They are the same in C, ONNX and the CPU engine, and, if `net.exact`,
# the same as in torch.

# %%
net = lehr.freeze(model.eval(), test.images, classes=test.classes)
print(net.summary())
accuracy = (net.predict(test.images) == test.labels).double().mean().item()
print(f"{accuracy:.1%} of the test images; the same integers as torch: {net.exact}")
net.save("digits.lehr")
lehr.deploy.to_c(net, "digits-c", images=test.images[:8])

# %% [markdown]
# The C comes with a test: it classifies the eight images and compares the scores.

# %%
if shutil.which("make") and shutil.which("cc"):
    make = ["make", "--no-print-directory", "-C", "digits-c", "check"]
    print(subprocess.run(make, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
