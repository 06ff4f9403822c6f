# A Cortex-M0, M0+ or M1, bare metal; run on qemu's mps2-an385, whose Cortex-M3 knows the same instructions.
# Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
CC = arm-none-eabi-gcc
PROCESSOR = -mcpu=cortex-m0plus -mthumb
LINK = --specs=nano.specs --specs=rdimon.specs -nostartfiles -T cortex-m.ld
RUN = qemu-system-arm -M mps2-an385 -nographic -semihosting -kernel
