/* driver.h: the simulated driver's state, shared by driver_*.c. One device, one context, one lock: each entry point holds it from ENTER to
 * LEAVE.
 *
 * STREAMS ARE DEFERRED: work is queued and runs when something waits for it (a synchronisation, an event, a synchronous call), in the
 * calling thread. What the caller may not rely on before that isn't there: destinations of copies are filled with 0xff and, where they are
 * pinned pages, inaccessible.
 * DEVICE ADDRESSES are reserved and never mapped; their bytes lie `delta` away. Allocations are exact, at least 256 bytes apart, and
 * addresses aren't reused before the whole range is used up. An error of the device's work stays until the context is reset, as on a
 * device.
 *
 * Environment: SIMCUDA_LOG=file (each call as a line), SIMCUDA_SEED=n (order of warps, blocks and streams; 0: ascending, streams newest
 * first), SIMCUDA_RACE=0 (no checks of races and uninitialised reads), SIMCUDA_CC=80 (compute capability, 90), SIMCUDA_MEMORY_MB (4096),
 * SIMCUDA_TIMEOUT=seconds a kernel (60), SIMCUDA_PROTECT=0 (pinned memory stays accessible), SIMCUDA_CPU=baseline|avx2|avx512. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H
#include "base/cuda_api.h"
#include "tests/cuda/sim/exec.h"

#define API __attribute__((visibility("default")))

/* The definitions are held against the library's own table of what it calls */
#define KB_CU(name, symbol, need, params) API cu_result symbol params;
#include "base/cuda_api.def"
#undef KB_CU

enum {
    E_OK = 0, E_INVALID_VALUE = 1, E_OUT_OF_MEMORY = 2, E_NOT_INITIALIZED = 3, E_NO_DEVICE = 100, E_INVALID_DEVICE = 101, E_INVALID_CONTEXT = 201,
    E_NO_BINARY_FOR_GPU = 209, E_INVALID_PTX = 218, E_INVALID_HANDLE = 400, E_ILLEGAL_STATE = 401, E_NOT_FOUND = 500, E_NOT_READY = 600,
    E_ILLEGAL_ADDRESS = 700, E_LAUNCH_TIMEOUT = 702, E_MISALIGNED = 716, E_LAUNCH_FAILED = 719, E_NOT_SUPPORTED = 801, E_CAPTURE_UNSUPPORTED = 900,
    E_CAPTURE_INVALIDATED = 901, E_CAPTURE_UNMATCHED = 903, E_CAPTURE_WRONG_THREAD = 908
};

/* ---- calls: lock, count, log --------------------------------------------------------------------------------------------------------- */
void sim_enter(const char *name);
/* Logs "name text -> result", unlocks and gives the result back. */
cu_result sim_leave(const char *name, cu_result r, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define ENTER() sim_enter(__func__)
#define LEAVE(r, ...) return sim_leave(__func__, r, __VA_ARGS__)
/* Initialised, a current context, no sticky error: else leaves. */
cu_result sim_ready(void);
#define NEED_CONTEXT() do { ENTER(); cu_result ready_ = sim_ready(); if (ready_) LEAVE(ready_, "%s", ""); } while (0)
/* One sentence on stderr, kept for simcuda_message. */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void sim_stick(int error);
long sim_setting(const char *name, long otherwise);

/* ---- memory -------------------------------------------------------------------------------------------------------------------------- */
typedef enum alloc_state { A_RESERVED, A_LIVE, A_FREED } alloc_state;
typedef struct allocation { uint64_t base; size_t bytes; alloc_state state; bool is_async, is_module; } allocation;
/* Reserves addresses; live at once or (async) when the stream comes to it. 0: out of memory. */
uint64_t sim_allocate(size_t bytes, bool is_async, bool is_module);
void sim_make_live(uint64_t base);
bool sim_free(uint64_t base);
allocation *sim_allocation_of(uint64_t address);   /* around it, whatever its state, or NULL */
/* The bytes' place in the host's memory, or NULL with a sentence and *error set: not inside one live allocation. */
char *sim_device_bytes(uint64_t address, size_t bytes, const char *what, int *error);
const extent *sim_extents(int *n);
intptr_t sim_delta(void);
void sim_describe(uint64_t address, char *text, size_t n);
void sim_memory_reset(void);

/* Pinned memory that pending work reads (the host may not write it) or writes (nor read it) */
bool sim_is_pinned(const void *p, size_t bytes);
void sim_pin_pending(const void *p, size_t bytes, bool is_written);
void sim_pin_open(const void *p, size_t bytes);
void sim_pin_done(const void *p, size_t bytes, bool is_written);

/* ---- work ------------------------------------------------------------------------------------------------------------------------------ */
typedef enum op_kind { OP_COPY, OP_SET, OP_LAUNCH, OP_EVENT, OP_WAIT, OP_ALLOC, OP_FREE, OP_GRAPH, OP_HOST } op_kind;
typedef enum place { AT_DEVICE, AT_PINNED, AT_STAGED, AT_HOST } place;      /* STAGED: a copy that the operation owns */

typedef struct op {
    struct op *next;
    op_kind kind;
    uint64_t ticket;
    /* COPY, SET, ALLOC, FREE */
    uint64_t to, from;
    place to_place, from_place;
    size_t bytes;
    uint32_t value;
    int width;
    /* LAUNCH */
    struct CUfunc_st *function;
    uint32_t grid[3], size[3], shared;
    char *params;
    /* EVENT, WAIT */
    struct CUevent_st *event;
    struct CUstream_st *stream;         /* WAIT: until its ticket */
    uint64_t until;
    /* GRAPH */
    struct CUgraphExec_st *graph;
    void (*host)(void *);
    void *data;
} op;

struct CUstream_st {
    struct CUstream_st *next;
    unsigned flags;
    op *first, *last;
    uint64_t ticket, done;              /* last queued, last finished */
    int queries;
    struct CUgraph_st *capture;
    cu_capture_mode capture_mode;
    bool is_running;
};
struct CUevent_st { unsigned flags; struct CUstream_st *stream; uint64_t ticket; bool is_recorded; double time; struct CUgraph_st *capture; int pins; bool is_destroyed; };
struct CUgraph_st { op *first, *last; int n; bool is_invalid; struct CUstream_st *origin; };
struct CUgraphExec_st { op *first; int n; int pins; bool is_destroyed; };
struct CUfunc_st { struct CUfunc_st *next; struct CUmod_st *module; ptx_func *fn; int max_dynamic; };
/* library: kernels that the host compiler built, instead of instructions */
struct CUmod_st { struct CUmod_st *next; ptx_module *ptx; void *library; struct CUfunc_st *functions; bool is_unloaded; int pins; };

struct CUstream_st *sim_stream(cu_stream s);        /* the handle, with 0, 1 and 2 as the default streams; NULL: not a stream */
/* Queues (or captures) a copy of *o. */
cu_result sim_submit(struct CUstream_st *s, const op *o);
/* Runs s's work up to that ticket. */
void sim_drain(struct CUstream_st *s, uint64_t ticket);
void sim_drain_all(void);
void sim_run_op(op *o);
void sim_free_op(op *o);
op *sim_copy_op(const op *o);
/* 900 and invalid captures, when some stream captures in a mode that forbids this call. */
cu_result sim_unsafe_in_capture(const char *what);
cu_result sim_sticky(void);
int sim_capability(void);
/* Runs a launch; 0 or the error. */
int sim_run_launch(const op *o);
void sim_streams_reset(void);
void sim_modules_reset(void);
void sim_module_unpin(struct CUmod_st *m);

#endif
