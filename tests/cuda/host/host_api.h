/* host_api.h: between kernels that the host compiler built (device.hh) and the simulated device that runs them on fibers (exec_host.c). C
 * and C++. */
#ifndef SIM_HOST_API_H
#define SIM_HOST_API_H
#include <stdint.h>

typedef struct kh_dim { unsigned x, y, z; } kh_dim;
typedef struct kh_block { kh_dim id, size, grid; } kh_block;
typedef struct kh_thread { kh_dim thread; int lane; kh_block *block; } kh_thread;
typedef struct kh_asm_operand { void *at; int bytes; } kh_asm_operand;
enum { KH_EXCHANGE = 64 };          /* bytes that a lane may hand in */

typedef struct kh_api {
    void (*barrier)(int line);
    /* Waits for the lanes of mask; 32 × KH_EXCHANGE bytes, valid until the lane's exchange after the next */
    const void *(*exchange)(unsigned mask, int line, const void *bytes, int n);
    void (*yield)(void);
    void (*fail)(const char *what);
    /* One PTX instruction on those operands: results first. shared: a 32-bit shared address as a pointer */
    void (*assembly)(const char *text, int line, const kh_asm_operand *o, int n, char *(*shared)(uint32_t));
} kh_api;

#endif
