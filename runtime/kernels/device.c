/* device.c: the kernel of to_device: a row-major copy of x elsewhere. A strided x is made row-major where it is, so that only its elements
 * cross. Between two devices it goes by way of the host. */
#include "base/alloc.h"
#include "base/device.h"
#include "base/error.h"

static kn_status cross(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    if (to_device == from_device)
        return kb_device_copy(to_device, to, from, bytes);
    if (from_device == KB_CPU)
        return kb_device_upload(to_device, to, from, bytes);
    if (to_device == KB_CPU)
        return kb_device_download(from_device, to, from, bytes);
    void *between = kb_data_alloc(bytes);
    kn_status s = between ? kb_device_download(from_device, between, from, bytes) : kb_error_status();
    if (s == KN_OK)
        s = kb_device_upload(to_device, to, between, bytes);
    kb_data_free(between, bytes);
    return s;
}

kn_status kernel_to_device(const kb_call *c)
{
    const kb_layout *x = c->in[0].layout;
    int from = x->device, to = c->out[0].layout->device;
    size_t bytes = (size_t)x->numel * kb_dtype_bytes(x->dtype);
    if (from == to)
        return kb_run_copy(&c->in[0], c->out[0].data);
    if (x->contiguous || !bytes)
        return cross(c->out[0].data, to, c->in[0].data, from, bytes);
    void *dense = kb_device_alloc(from, bytes);
    kn_status s = dense ? kb_run_copy(&c->in[0], dense) : kb_error_status();
    if (s == KN_OK)
        s = cross(c->out[0].data, to, dense, from, bytes);
    kb_device_free(from, dense, bytes);
    return s;
}
