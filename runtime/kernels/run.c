/* run.c: the door to the eager kernels.
 *
 * Kernels run under the default rounding, without flush-to-zero and with exceptions masked (CAPTURE 18): game and audio hosts change
 * this. Reading the control register costs about a nanosecond; it is written only when it differs, and put back afterwards with the
 * exception flags that the host had. Workers of the pool start from the default environment.
 */
#include "base/device.h"
#include "base/error.h"
#include "base/kernel.h"
#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <fenv.h>
#endif

#if defined(__SSE2__)
enum { MXCSR_DEFAULT = 0x1f80, MXCSR_FLAGS = 0x3f };

static kn_status run_default(kb_kernel k, const kb_call *c)
{
    unsigned saved = _mm_getcsr();
    if ((saved & ~(unsigned)MXCSR_FLAGS) == MXCSR_DEFAULT)
        return k(c);
    _mm_setcsr(MXCSR_DEFAULT);
    kn_status s = k(c);
    _mm_setcsr(saved);
    return s;
}
#else
static kn_status run_default(kb_kernel k, const kb_call *c)
{
    fenv_t saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    kn_status s = k(c);
    fesetenv(&saved);
    return s;
}
#endif

kn_status kb_run(const kb_call *c)
{
    if (c->op <= OP_NONE || c->op >= OP_COUNT || !kb_cpu_kernels[c->op])
        return kb_fail(KN_E_INTERNAL, "operator number %d has no kernel", (int)c->op);
    if (__builtin_expect(c->out[0].layout->device != KB_CPU, 0) && c->op != OP_to_device)
        return kb_device_run(c);
    return run_default(kb_cpu_kernels[c->op], c);
}
