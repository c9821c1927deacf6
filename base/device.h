/* device.h: memory and work that are not the CPU's. A device is a small number: 0 the CPU, 1 + n the CUDA device n. Layouts and types
 * carry it, so that guards, inference and code generation tell devices apart; nothing else of the library knows which kind a device is.
 *
 * ORDER. Everything asked of a device happens in the order in which it was asked (one stream a device): freed memory may be handed out
 * again at once, and a copy back to the host waits for what was asked before it. Device pointers are never followed by host code.
 *
 * The first use opens the device: KN_E_DEVICE with the reason when there is no driver, no such device, or the driver is too old.
 */
#ifndef KB_DEVICE_H
#define KB_DEVICE_H
#include "base/kernel.h"

enum { KB_CPU = 0, KB_MAX_DEVICES = 16 };

char *kb_device_text(char *buf, size_t size, int device);       /* "cpu", "cuda:0"; returns buf */
int kb_device_parse(const char *text, size_t n);                /* -1 when it is none */
int kb_device_count(void);                                      /* CUDA devices; 0 where there is no driver. Records no failure */
kn_status kb_device_open(int device);                           /* KN_OK for the CPU */
kn_status kb_device_sync(int device);                           /* waits for all that was asked; the failure of any of it */

/* Blocks: cached by size class, given back to the driver by kb_device_trim. Of the CPU: kb_data_alloc. NULL after a failure that says how
 * much was asked for and what is free. `bytes` comes back as it was asked for. */
void *kb_device_alloc(int device, size_t bytes);
void kb_device_free(int device, void *p, size_t bytes);         /* NULL: nothing */
void kb_device_trim(int device);
typedef struct kb_device_stats { size_t live, peak, cached; uint64_t driver_allocs, uploads, downloads, upload_bytes, download_bytes; } kb_device_stats;
kb_device_stats kb_device_stats_get(int device);

/* Through pinned staging memory. An upload has read `from` when it returns; a download has written `to`. */
kn_status kb_device_upload(int device, void *to, const void *from, size_t bytes);
kn_status kb_device_download(int device, void *to, const void *from, size_t bytes);
kn_status kb_device_copy(int device, void *to, const void *from, size_t bytes);        /* within the device */

/* ---- operators: codegen/device_op.c --------------------------------------------------------------------------------------------- */
/* kb_run on a device: a graph of one operator, compiled once for its types and kept. Operators without generated code run on the host, on
 * copies. */
kn_status kb_device_run(const kb_call *c);
kn_status kb_device_dynamic_count(kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, int64_t *count);
void kb_device_forget_ops(void);                                /* frees what is kept; nobody may be running it */
/* Operators that ran on the host although their operands are on a device, since the process began: by name, NULL past the end. */
const char *kb_device_fallback(size_t i, uint64_t *count);

void kb_device_shutdown(void);                                  /* gives everything back to the driver: no device memory may be in use */

#endif
