/* Start of a bare-metal Cortex-M program: the vector table, memory, main. Output goes through semihosting. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern uint32_t data_from, data_start, data_end, bss_start, bss_end, stack_top; /* cortex-m.ld */
extern void initialise_monitor_handles(void);
extern int main(void);

void reset(void);

static void stop(void)
{
    exit(1);
}

void reset(void)
{
#ifdef __ARM_FP /* floating point and vectors are off until they are allowed */
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20;
    __asm__ volatile("dsb\n\tisb");
#endif
    memcpy(&data_start, &data_from, (size_t)((char *)&data_end - (char *)&data_start));
    memset(&bss_start, 0, (size_t)((char *)&bss_end - (char *)&bss_start));
    initialise_monitor_handles();
    exit(main());
}

/* Initial stack, reset, then the fifteen faults and exceptions of the processor; the test uses no interrupts. */
typedef union vector {
    uint32_t *stack;
    void (*handler)(void);
} vector;

__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    {.stack = &stack_top}, {.handler = reset}, {.handler = stop}, {.handler = stop}, {.handler = stop},
    {.handler = stop},     {.handler = stop},  {.handler = stop}, {.handler = stop}, {.handler = stop},
    {.handler = stop},     {.handler = stop},  {.handler = stop}, {.handler = stop}, {.handler = stop},
    {.handler = stop},
};
