/* Another processor's answers to CPUID for the process this is preloaded into: see processor.py. Linux on x86-64.
 *
 * The kernel lets CPUID fault; the handler asks the processor itself, changes the answer and goes on behind it. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

static int avx2_only, with_tiles;

static int let_cpuid_fault(int faults) /* 0: done */
{
    return (int)syscall(SYS_arch_prctl, ARCH_SET_CPUID, !faults);
}

static void answer(unsigned leaf, unsigned subleaf, unsigned r[4]) /* eax, ebx, ecx, edx */
{
    __cpuid_count(leaf, subleaf, r[0], r[1], r[2], r[3]);
    if (avx2_only && leaf == 7 && subleaf == 0) {
        r[1] &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31); /* AVX-512 */
        r[2] &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);                                    /* and its VNNI */
        r[3] &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);               /* AMX, FP16 */
    }
    if (avx2_only && leaf == 7 && subleaf == 1)
        r[0] = r[3] = 0; /* AVX-VNNI, bfloat16, AVX10 */
    if (avx2_only && (leaf == 0x1d || leaf == 0x1e || leaf == 0x24))
        memset(r, 0, 4 * sizeof *r);
    if (with_tiles && leaf == 0x1d) { /* palette 1: 8 tiles of 16 rows of 64 bytes */
        r[0] = subleaf == 0 ? 1 : 8192u | 1024u << 16;
        r[1] = subleaf == 0 ? 0 : 64u | 8u << 16;
        r[2] = subleaf == 0 ? 0 : 16;
        r[3] = 0;
    }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *at = (const unsigned char *)registers[REG_RIP];
    (void)info;
    if (at[0] != 0x0f || at[1] != 0xa2) { /* a fault of its own: let it happen again */
        signal(number, SIG_DFL);
        return;
    }
    unsigned r[4];
    let_cpuid_fault(0);
    answer((unsigned)registers[REG_RAX], (unsigned)registers[REG_RCX], r);
    let_cpuid_fault(1);
    registers[REG_RAX] = r[0];
    registers[REG_RBX] = r[1];
    registers[REG_RCX] = r[2];
    registers[REG_RDX] = r[3];
    registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void)
{
    const char *which = getenv("LEHR_PROCESSOR");
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (strncmp(program_invocation_short_name, "python", 6) != 0)
        return; /* a compiler, say, which has a handler of its own */
    avx2_only = which != NULL && strcmp(which, "avx2") == 0;
    with_tiles = which != NULL && strcmp(which, "tiles") == 0;
    sigaction(SIGSEGV, &action, NULL);
    if (let_cpuid_fault(1) != 0) {
        fputs("this processor or kernel does not let CPUID fault\n", stderr);
        exit(1);
    }
}
