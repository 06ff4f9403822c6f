# A Cortex-M4 or M7, bare metal; qemu's board mps2-an386. Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
CC = arm-none-eabi-gcc
PROCESSOR = -mcpu=cortex-m4 -mthumb
LINK = --specs=nano.specs --specs=rdimon.specs -nostartfiles -T cortex-m.ld
RUN = qemu-system-arm -M mps2-an386 -nographic -semihosting -kernel
