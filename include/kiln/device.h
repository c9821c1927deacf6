/* device.h: tensors and modules on CUDA devices. Part of kiln.h.
 *
 *   kn_module_to(net, KN_CUDA(0));                     parameters and buffers move
 *   kn_tensor *y = kn_call(net, kn_to(x, KN_CUDA(0)));
 *   double v = kn_item(kn_sum(y));                     waits, and copies one number
 *
 * An operator works where its operands are, and all of them must be at one place. Work on a device is only started: what reads values on
 * the host (kn_item, kn_read, kn_print, kn_to(x, KN_CPU)) waits for it. Operators for which no device code can be generated run on the
 * host, on copies, and are counted. Without a driver, a device or memory the failure is KN_E_DEVICE or KN_E_MEMORY and says what is
 * missing.
 */
#ifndef KILN_DEVICE_H
#define KILN_DEVICE_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kn_device { int32_t kind, index; } kn_device;            /* kind 0: the CPU, 1: CUDA */
#ifdef __cplusplus
#define KN_CPU (kn_device{0, 0})
#define KN_CUDA(n) (kn_device{1, (n)})
#else
#define KN_CPU ((kn_device){0, 0})
#define KN_CUDA(n) ((kn_device){1, (n)})
#endif

/* x there, or x itself where it is there already. Inside a compiled forward the graph ends here. kn_to(x, KN_CUDA(0)) is this function
 * too. */
KN_API kn_tensor *kn_to_device(kn_tensor *x, kn_device d, const char *site);
KN_API kn_device  kn_tensor_device(const kn_tensor *x);                  /* the CPU for an error tensor */
/* Moves all parameters and buffers: the module's fields hold other tensors afterwards, shared ones stay shared. On failure nothing has
 * changed. */
KN_API kn_status  kn_module_to(kn_module *m, kn_device d);
KN_API int        kn_device_count(void);                                /* CUDA devices; 0 where there is no driver */
KN_API kn_status  kn_synchronize(kn_device d);                          /* waits for all work; its failure, if any */
/* Where tensors are made that have nothing to be like (kn_zeros, kn_randn, kn_arange …; kn_empty and kn_from_data stay on the CPU). Of the
 * calling thread. */
KN_API kn_status  kn_set_default_device(kn_device d);
KN_API kn_device  kn_default_device(void);
typedef struct kn_device_memory { size_t live, peak, cached; } kn_device_memory;       /* bytes: in tensors, at most so far, kept for later */
KN_API kn_status  kn_device_memory_get(kn_device d, kn_device_memory *out, size_t out_size);

#ifdef __cplusplus
}
#endif

#define kn_to_device(x, d) (kn_to_device)(x, d, KN_SITE)
#ifndef KN_NO_OPS
#undef kn_to
#ifdef __cplusplus
inline kn_tensor *kn_to_(kn_tensor *x, kn_dtype d, const char *site) { return (kn_to)(x, d, site); }
inline kn_tensor *kn_to_(kn_tensor *x, kn_device d, const char *site) { return (kn_to_device)(x, d, site); }
#define kn_to(x, d) kn_to_(x, d, KN_SITE)
#else
#define kn_to(x, d) _Generic((d), kn_device: (kn_to_device), default: (kn_to))(x, d, KN_SITE)    /* a dtype or a device */
#endif
#endif

#endif
