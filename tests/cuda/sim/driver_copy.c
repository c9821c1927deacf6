/* driver_copy.c: copies and fills. From pageable memory the bytes are taken at the call; to pageable memory the call waits, as the driver
 * promises. With pinned memory both are later. In a capture a pageable pointer stays a pointer, read or written when the graph runs. */
#include "tests/cuda/sim/driver.h"
#include <string.h>

static cu_result queue(struct CUstream_st *s, op *o, const void *host, bool is_to_host)
{
    if (!s) return E_INVALID_HANDLE;
    if (!o->bytes) return E_OK;
    if (!host) return sim_submit(s, o);
    place at = sim_is_pinned(host, o->bytes) ? AT_PINNED : s->capture ? AT_HOST : is_to_host ? AT_HOST : AT_STAGED;
    *(is_to_host ? &o->to_place : &o->from_place) = at;
    cu_result r = sim_submit(s, o);
    if (!r && is_to_host && at == AT_HOST && !s->capture) {
        sim_drain(s, UINT64_MAX);
        r = sim_sticky();
    }
    return r;
}

static op host_to_device(cu_ptr to, const void *from, size_t bytes) { return (op){ .kind = OP_COPY, .to = to, .from = (uint64_t)(uintptr_t)from, .bytes = bytes }; }
static op device_to_host(void *to, cu_ptr from, size_t bytes) { return (op){ .kind = OP_COPY, .to = (uint64_t)(uintptr_t)to, .from = from, .bytes = bytes }; }

API cu_result cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t bytes, cu_stream stream)
{
    NEED_CONTEXT();
    op o = host_to_device(to, from, bytes);
    LEAVE(queue(sim_stream(stream), &o, from, false), "bytes=%zu", bytes);
}

API cu_result cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t bytes, cu_stream stream)
{
    NEED_CONTEXT();
    op o = device_to_host(to, from, bytes);
    LEAVE(queue(sim_stream(stream), &o, to, true), "bytes=%zu", bytes);
}

API cu_result cuMemcpyDtoDAsync_v2(cu_ptr to, cu_ptr from, size_t bytes, cu_stream stream)
{
    NEED_CONTEXT();
    op o = { .kind = OP_COPY, .to = to, .from = from, .bytes = bytes };
    LEAVE(queue(sim_stream(stream), &o, NULL, false), "bytes=%zu", bytes);
}

/* The synchronous ones: on the default stream, to the end */
static cu_result now(op *o, const void *host, bool is_to_host, const char *what)
{
    cu_result r = sim_unsafe_in_capture(what);
    if (!r) r = queue(sim_stream(NULL), o, host, is_to_host);
    if (r) return r;
    sim_drain(sim_stream(NULL), UINT64_MAX);
    return sim_sticky();
}

API cu_result cuMemcpyHtoD_v2(cu_ptr to, const void *from, size_t bytes)
{
    NEED_CONTEXT();
    op o = host_to_device(to, from, bytes);
    LEAVE(now(&o, from, false, "cuMemcpyHtoD"), "bytes=%zu", bytes);
}

API cu_result cuMemcpyDtoH_v2(void *to, cu_ptr from, size_t bytes)
{
    NEED_CONTEXT();
    op o = device_to_host(to, from, bytes);
    LEAVE(now(&o, to, true, "cuMemcpyDtoH"), "bytes=%zu", bytes);
}

API cu_result cuMemcpyDtoD_v2(cu_ptr to, cu_ptr from, size_t bytes);
cu_result cuMemcpyDtoD_v2(cu_ptr to, cu_ptr from, size_t bytes)
{
    NEED_CONTEXT();
    op o = { .kind = OP_COPY, .to = to, .from = from, .bytes = bytes };
    LEAVE(now(&o, NULL, false, "cuMemcpyDtoD"), "bytes=%zu", bytes);
}

static cu_result fill(cu_ptr to, uint32_t value, int width, size_t count, cu_stream stream)
{
    if (to % (unsigned)width) return E_INVALID_VALUE;
    op o = { .kind = OP_SET, .to = to, .value = value, .width = width, .bytes = count * (size_t)width };
    return queue(sim_stream(stream), &o, NULL, false);
}

API cu_result cuMemsetD8Async(cu_ptr to, unsigned char value, size_t count, cu_stream stream)
{
    NEED_CONTEXT();
    LEAVE(fill(to, value, 1, count, stream), "count=%zu", count);
}

API cu_result cuMemsetD16Async(cu_ptr to, unsigned short value, size_t count, cu_stream stream);
cu_result cuMemsetD16Async(cu_ptr to, unsigned short value, size_t count, cu_stream stream)
{
    NEED_CONTEXT();
    LEAVE(fill(to, value, 2, count, stream), "count=%zu", count);
}

API cu_result cuMemsetD32Async(cu_ptr to, unsigned value, size_t count, cu_stream stream)
{
    NEED_CONTEXT();
    LEAVE(fill(to, value, 4, count, stream), "count=%zu", count);
}
