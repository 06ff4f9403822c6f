/* Which vector instructions this x86-64 processor has and its operating system keeps: asked of the processor itself.
 * __builtin_cpu_supports asks the compiler's own library, which not every toolchain brings. */
#ifndef LEHR_PROCESSOR_H
#define LEHR_PROCESSOR_H

#include <cpuid.h>

#define LEHR_CPU_AVX2 (1u << 5) /* bits of EBX, leaf 7 */
#define LEHR_CPU_AVX512BW (1u << 30)
#define LEHR_CPU_AVX512VL (1u << 31)
#define LEHR_CPU_YMM 0x06u /* bits of XCR0: the registers that are saved when threads change */
#define LEHR_CPU_ZMM 0xe6u

/* `registers` are saved, and all of `features` are there. */
static inline int lehr_cpu_has(unsigned registers, unsigned features)
{
    unsigned a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27)) /* OSXSAVE: xgetbv may be used */
        return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & registers) != registers || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    return (b & features) == features;
}

#endif
