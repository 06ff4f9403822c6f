# A 32-bit RISC-V with compressed instructions and a multiplier, bare metal on picolibc; qemu's board virt.
# Debian: gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc
CC = riscv64-unknown-elf-gcc
PROCESSOR = -march=rv32imc -mabi=ilp32 --specs=picolibc.specs
MEMORY = __flash=0x80000000 __flash_size=4M __ram=0x80400000 __ram_size=4M __stack_size=8k
LINK = --oslib=semihost --crt0=hosted $(MEMORY:%=-Wl,--defsym=%)
RUN = qemu-system-riscv32 -M virt -cpu rv32 -bios none -nographic -semihosting-config enable=on,target=native -kernel
