"""What C can be exported for: a `Target` is a processor, the instruction set that runs there and the files it needs.

    host                    this computer: portable C, and vectors where the processor has them
    cortex-m4, cortex-m0    32-bit Arm microcontrollers, bare metal, with and without DSP instructions
    cortex-m55              one with Helium vectors
    rv32                    a 32-bit RISC-V microcontroller
    aarch64                 64-bit Arm with Linux, a Raspberry Pi for instance

runtime/targets/ has a folder for each: compiler, flags and emulator in target.mk, start-up code, linker script.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lehr.deploy.build import RUNTIME


@dataclass(frozen=True)
class Target:
    """A processor to export C for.

    Args:
        name: of the target and of its folder in runtime/targets
        instruction_set: what its weights are laid out for and its routines are built for
        stack: bytes of stack that a run takes at most; tests measure it
        shared: folders of runtime/targets that it shares with others
    """

    name: str
    instruction_set: str = "scalar"
    stack: int = 4096
    shared: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """The build files that only this target needs."""
        folders = (self.name, *self.shared)
        return [path for folder in folders for path in sorted((RUNTIME / "targets" / folder).iterdir())]


HOST = Target("host")
DEVICES = {
    target.name: target
    for target in (
        Target("cortex-m4", "small", 512, shared=("cortex-m",)),
        Target("cortex-m0", "small", 512, shared=("cortex-m",)),
        Target("cortex-m55", "vector", 2048, shared=("cortex-m",)),
        Target("rv32", "small", 512),
        Target("aarch64", "vector", 2048),
    )
}
TARGETS = {HOST.name: HOST, **DEVICES}
