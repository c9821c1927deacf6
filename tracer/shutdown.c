/* shutdown.c: giving back what the library keeps for later. It stands here because only the tracer sees all the parts. */
#include "tracer/tr.h"
#include "base/alloc.h"
#include "base/device.h"
#include "base/pool.h"
#include "base/profile.h"
#include "codegen/cg.h"

void kn_shutdown(void)
{
    tr_background_stop();
    cg_shutdown();                              /* kernels first: their code is the backend's */
    kb_device_shutdown();
    kb_pool_shutdown();
    kb_profile_free();
    kb_data_trim();
}
