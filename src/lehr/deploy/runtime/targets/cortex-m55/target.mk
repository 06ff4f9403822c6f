# A Cortex-M55 with Helium vectors, bare metal; qemu's board mps3-an547.
# Debian: gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
CC = arm-none-eabi-gcc
# gcc 12 writes a conditional conversion that its assembler takes for another instruction: hence no conversion of ifs.
PROCESSOR = -mcpu=cortex-m55 -mthumb -mfloat-abi=hard -fno-if-conversion2
LINK = --specs=nano.specs --specs=rdimon.specs -nostartfiles -T cortex-m.ld
RUN = qemu-system-arm -M mps3-an547 -nographic -semihosting -kernel
OPTIMISE = -O3
