# 64-bit Arm with Linux: a Raspberry Pi, for instance. Elsewhere cross-compiled and run in qemu.
# Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
ifneq (,$(filter aarch64 arm64,$(shell uname -m)))
CC = cc
RUN =
else
CC = aarch64-linux-gnu-gcc
LINK = -static
RUN = qemu-aarch64
endif
OPTIMISE = -O3
