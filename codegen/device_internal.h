/* device_internal.h: what the files of codegen/ that know devices share: device_code.c (code), device_exec.c (running programs),
 * device_op.c (one operator). */
#ifndef CG_DEVICE_INTERNAL_H
#define CG_DEVICE_INTERNAL_H
#include "base/cuda.h"
#include "codegen/device.h"
#include "codegen/internal.h"
#include <pthread.h>

typedef struct cg_device_entry cg_device_entry;         /* the cache of equal texts */
typedef struct cg_lt cg_lt;                             /* device_lt.c: a product that cuBLASLt makes */
typedef struct cg_device_form { cg_device_entry *entry; cg_launch launch; } cg_device_form;

/* Of a step with a kernel, a product, or both: the product first, then the kernel on its result; or with an operator's own code. */
struct cg_device_step {
    cg_device_form kernel /* or operator */, product;
    bool joined;                                /* the product does the kernel's work on its elements */
    cg_lt *lt;                                  /* makes the product, unless it fails; NULL: our own kernel does */
    pthread_mutex_t lock;
    cg_device_form unaligned, unaligned_product;        /* for pointers that aren't multiples of 16; made when they are needed, under lock */
};

kn_status cg_device_make_code(cg_program *p, cg_lowered *lowered, const char *dump_dir);
void cg_device_program_fini(cg_program *p);     /* releases the steps' code */
const cg_device_form *cg_device_unaligned(const cg_program *p, const cg_step *st);     /* NULL after a failure */
const cg_device_form *cg_device_unaligned_product(const cg_program *p, const cg_step *st);
/* An operator's own code for these layouts, pointers being anything; its entry is the caller's to release. false: there is none. */
bool cg_device_form_of(int device, const kb_call *call, cg_device_form *f);
cu_function cg_device_function(const cg_device_entry *e);
void cg_device_entry_release(cg_device_entry *e);       /* NULL: nothing */
bool cg_device_code_shutdown(void);             /* true when no code is in use any more */

/* Runs a program of a device: as cg_run_once. given: outputs hold blocks already. */
kn_status cg_device_run(const cg_program *p, void *const *inputs, const int64_t *scalars, void **outputs, bool given, bool *wrote);
/* Starts the steps on a stream. Kernels take scalars from scalars_at on the device, step after step, where that isn't NULL. */
kn_status cg_device_start(const cg_program *p, const kb_cuda *c, cu_stream stream, char *const *bases, const int64_t *scalars,
                          const char *scalars_at, bool *wrote);
/* One form on pointers alone, without scalars. */
kn_status cg_device_launch(const kb_cuda *c, cu_stream stream, const cg_device_form *f, void *const *ptrs, int n_ptrs);

/* device_lt.c. May the product become cuBLASLt's (or has it)? false: not eligible, no library, or decided otherwise. */
bool cg_lt_may(const kb_cuda *c, const cg_product *q);
/* Decided now if it hasn't been; own: our own kernel for it, with nothing joined. NULL: our own. */
cg_lt *cg_lt_of(const kb_cuda *c, const cg_product *q, const cg_device_form *own);
size_t cg_lt_workspace(const cg_lt *x);
/* a, b, c, bias (or NULL). false: nothing was done, our own kernel has to. */
bool cg_lt_run(cg_lt *x, const kb_cuda *c, cu_stream stream, void *const *ptrs, void *workspace);
void cg_lt_shutdown(void);                      /* nothing that was chosen is in use any more */
/* device_graph.c. NULL where the program can't be captured, or memory is short. */
cg_device_graph *cg_device_graph_new(const cg_program *p);
void cg_device_graph_free(const cg_program *p);
/* Runs it as a captured graph; false: this run has to go step by step. */
bool cg_device_graph_run(const cg_program *p, void *const *inputs, const int64_t *scalars, void **outputs, kn_status *s);
/* device_dynamic.c: an operator whose result's size was found from values; *done: false: it has no device code. */
kn_status cg_device_run_dynamic(int device, const kb_call *c, bool *done);
/* One call on the host: operands are copied there, results and what was written back. counted: under this operator's name. */
kn_status cg_device_host_call(int device, const kb_call *c, bool write);
/* kb_dynamic_count of copies */
kn_status cg_device_host_count(kb_opcode op, int n_in, const kb_buf *in, const int64_t *words, int64_t *count);

#endif
