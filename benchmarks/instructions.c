/* A plugin of qemu that counts the instructions a program executes from one function to another.
 *
 *     qemu-... -plugin instructions.so,from=0xADDRESS,to=0xADDRESS -d plugin
 *
 * prints, for each time that `to` is reached after `from`, "instructions N". Functions are entered by a jump, so each begins
 * a block of translated code, and blocks are counted when they are entered. The few declarations stand here since
 * distributions do not install qemu-plugin.h. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef void (*translation_callback)(qemu_plugin_id_t, void *block);
typedef void (*execution_callback)(unsigned processor, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, translation_callback callback);
void qemu_plugin_register_vcpu_tb_exec_cb(void *block, execution_callback callback, int flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(void *instruction, execution_callback callback, int flags, void *data);
size_t qemu_plugin_tb_n_insns(const void *block);
void *qemu_plugin_tb_get_insn(const void *block, size_t index);
uint64_t qemu_plugin_insn_vaddr(const void *instruction);
void qemu_plugin_outs(const char *text);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t from, to, executed, start;
static int counting;

static void enter_block(unsigned processor, void *instructions)
{
    (void)processor;
    executed += (uintptr_t)instructions;
}

static void begin(unsigned processor, void *data)
{
    (void)processor;
    (void)data;
    start = executed;
    counting = 1;
}

static void end(unsigned processor, void *data)
{
    char text[64];
    (void)processor;
    (void)data;
    if (!counting)
        return;
    counting = 0;
    snprintf(text, sizeof text, "instructions %" PRIu64 "\n", executed - start);
    qemu_plugin_outs(text);
}

static void translate(qemu_plugin_id_t id, void *block)
{
    const size_t count = qemu_plugin_tb_n_insns(block);
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, enter_block, 0, (void *)(uintptr_t)count);
    for (size_t i = 0; i < count; i++) {
        void *instruction = qemu_plugin_tb_get_insn(block, i);
        const uint64_t address = qemu_plugin_insn_vaddr(instruction);
        if (address == from)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, begin, 0, NULL);
        if (address == to)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, end, 0, NULL);
    }
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int count,
                                                               char **arguments)
{
    (void)info;
    for (int i = 0; i < count; i++) {
        if (strncmp(arguments[i], "from=", 5) == 0)
            from = strtoull(arguments[i] + 5, NULL, 0);
        if (strncmp(arguments[i], "to=", 3) == 0)
            to = strtoull(arguments[i] + 3, NULL, 0);
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    return 0;
}
