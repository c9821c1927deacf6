/* memory.c: loads, stores and prefetches of a body.
 *
 * Inner stride 1: one vector access (masked where lanes are dead). Inner stride 0: one element, broadcast. Any other stride: a gather or
 * scatter at one distance, known at run time. Masked vectors that the instruction set has no instruction for go, where the mask is
 * dynamic, through a stack block, element by element. Addresses are row + pos * stride; alignment is promised only to the element,
 * except where the skeleton has peeled a row to a vector boundary for non-temporal stores (e->nt_buffer).
 * LOAD_AT: where the index is the same along the row, loads from another row; else a gather. */
#include "codegen/llvm/ll.h"

static bool contiguous(const lp_buffer *b) { return b->inner_stride == 1; }

static bool buffer_masks_well(const ll_emit *e, uint32_t buffer)
{
    const lp_buffer *b = &e->k->buffers[buffer];
    int bytes = ll_bytes(b->dtype);
    if (b->inner_stride == 0)
        return !b->written;
    if (e->isa == LL_AVX512)
        return contiguous(b) || bytes >= 4;
    return e->isa == LL_AVX2 && bytes >= 4 && (contiguous(b) || !b->written);
}

bool ll_masks_well(const ll_emit *e, const lp_inst *in)
{
    if (in->op == LP_LOAD_AT && e->varies[in->a])
        return e->isa != LL_BASELINE && ll_bytes(in->type) >= 4;
    if (in->op == LP_LOAD || in->op == LP_LOAD_AT || in->op == LP_STORE)
        return buffer_masks_well(e, in->op == LP_LOAD ? in->a : in->b);
    return true;
}

static LLVMValueRef distance(const ll_emit *e, uint32_t buffer) { return e->stride[buffer * (LP_MAX_OUTER + 1) + LP_MAX_OUTER]; }

static LLVMValueRef address(ll_emit *e, uint32_t buffer, LLVMValueRef pos)
{
    const lp_buffer *b = &e->k->buffers[buffer];
    LLVMValueRef at = ll_int(e, 0);
    if (b->inner_stride)
        at = LLVMBuildMul(e->b, pos, contiguous(b) ? ll_int(e, ll_bytes(b->dtype)) : distance(e, buffer), "");
    return LLVMBuildGEP2(e->b, e->i8, e->row[buffer], &at, 1, "");
}

static LLVMValueRef mask_of(ll_emit *e, const ll_active *a)
{
    if (a->mask)
        return a->mask;
    LLVMValueRef bits[LL_MOST_WIDTH];
    for (int i = 0; i < a->width; i++)
        bits[i] = LLVMConstInt(e->i1t, i < a->count, false);
    return LLVMConstVector(bits, (unsigned)a->width);
}

static bool all_live(const ll_active *a) { return a->count == a->width; }

static LLVMValueRef pointers(ll_emit *e, uint32_t buffer, int width, LLVMValueRef pos)
{
    LLVMValueRef lanes = ll_lanes(e, e->i64, width, 1), offsets = LLVMBuildMul(e->b, lanes, ll_splat(e, distance(e, buffer), width), "");
    return LLVMBuildGEP2(e->b, e->i8, address(e, buffer, pos), &offsets, 1, "");
}

/* The live elements of a vector at pos, one after another, between the buffer and a stack block */
static void copy_live(ll_emit *e, uint32_t buffer, const ll_active *a, LLVMValueRef pos, LLVMValueRef block, bool in)
{
    LLVMTypeRef t = ll_type(e, e->k->buffers[buffer].dtype);
    ll_loop l;
    ll_loop_begin(e, &l, ll_int(e, 0), a->live, 1);
    LLVMValueRef far = address(e, buffer, LLVMBuildAdd(e->b, pos, l.i, "")), near = LLVMBuildGEP2(e->b, t, block, &l.i, 1, "");
    unsigned bytes = (unsigned)ll_bytes(e->k->buffers[buffer].dtype);
    LLVMValueRef x = LLVMBuildLoad2(e->b, t, in ? far : near, "");
    LLVMSetAlignment(x, bytes);
    LLVMSetAlignment(LLVMBuildStore(e->b, x, in ? near : far), bytes);
    ll_loop_end(e, &l);
}

static bool through_block(const ll_emit *e, uint32_t buffer, const ll_active *a) { return a->live && !buffer_masks_well(e, buffer); }

LLVMValueRef ll_load(ll_emit *e, uint32_t buffer, const ll_active *a, LLVMValueRef pos)
{
    const lp_buffer *b = &e->k->buffers[buffer];
    LLVMTypeRef t = ll_type(e, b->dtype), vt = ll_vector(t, a->width);
    unsigned bytes = (unsigned)ll_bytes(b->dtype);
    LLVMValueRef x;
    if (a->width == 1 || b->inner_stride == 0) {
        x = LLVMBuildLoad2(e->b, t, address(e, buffer, pos), "");
        LLVMSetAlignment(x, bytes);
        return ll_splat(e, x, a->width);
    }
    if (contiguous(b) && all_live(a)) {
        x = LLVMBuildLoad2(e->b, vt, address(e, buffer, pos), "");
        LLVMSetAlignment(x, bytes);
        return x;
    }
    if (through_block(e, buffer, a)) {
        copy_live(e, buffer, a, pos, ll_slot(e, 0), true);
        x = LLVMBuildLoad2(e->b, vt, ll_slot(e, 0), "");
        LLVMSetAlignment(x, 64);
        return x;
    }
    LLVMValueRef align = LLVMConstInt(e->i32, bytes, false), none = LLVMConstNull(vt);
    if (contiguous(b)) {
        LLVMTypeRef over[2] = {vt, e->ptr};
        LLVMValueRef args[4] = {address(e, buffer, pos), align, mask_of(e, a), none};
        return ll_call(e, "llvm.masked.load", over, 2, args, 4);
    }
    LLVMTypeRef over[2] = {vt, LLVMVectorType(e->ptr, (unsigned)a->width)};
    LLVMValueRef args[4] = {pointers(e, buffer, a->width, pos), align, mask_of(e, a), none};
    return ll_call(e, "llvm.masked.gather", over, 2, args, 4);
}

/* Every element of the row is stored to one place: the last real one stays */
static LLVMValueRef last_element(ll_emit *e, LLVMValueRef value, const ll_active *a)
{
    LLVMValueRef last = a->live ? LLVMBuildSub(e->b, a->live, ll_int(e, 1), "") : ll_int(e, a->count - 1);
    return LLVMBuildExtractElement(e->b, value, last, "");
}

void ll_store(ll_emit *e, uint32_t buffer, LLVMValueRef value, const ll_active *a, LLVMValueRef pos)
{
    const lp_buffer *b = &e->k->buffers[buffer];
    unsigned bytes = (unsigned)ll_bytes(b->dtype);
    LLVMTypeRef vt = LLVMTypeOf(value);
    if (a->width == 1 || b->inner_stride == 0) {
        LLVMValueRef x = a->width == 1 ? value : last_element(e, value, a);
        LLVMSetAlignment(LLVMBuildStore(e->b, x, address(e, buffer, pos)), bytes);
        return;
    }
    if (contiguous(b) && all_live(a)) {
        LLVMValueRef s = LLVMBuildStore(e->b, value, address(e, buffer, pos));
        LLVMSetAlignment(s, bytes);
        if ((int)buffer == e->nt_buffer) {
            LLVMMetadataRef one = LLVMValueAsMetadata(LLVMConstInt(e->i32, 1, false));
            LLVMValueRef node = LLVMMetadataAsValue(e->cx, LLVMMDNodeInContext2(e->cx, &one, 1));
            LLVMSetMetadata(s, LLVMGetMDKindIDInContext(e->cx, "nontemporal", 11), node);
            LLVMSetAlignment(s, 64);
            e->used_nt = true;
        }
        return;
    }
    if (through_block(e, buffer, a)) {
        LLVMSetAlignment(LLVMBuildStore(e->b, value, ll_slot(e, 0)), 64);
        copy_live(e, buffer, a, pos, ll_slot(e, 0), false);
        return;
    }
    LLVMValueRef align = LLVMConstInt(e->i32, bytes, false);
    if (contiguous(b)) {
        LLVMTypeRef over[2] = {vt, e->ptr};
        LLVMValueRef args[4] = {value, address(e, buffer, pos), align, mask_of(e, a)};
        ll_call(e, "llvm.masked.store", over, 2, args, 4);
        return;
    }
    LLVMTypeRef over[2] = {vt, LLVMVectorType(e->ptr, (unsigned)a->width)};
    LLVMValueRef args[4] = {value, pointers(e, buffer, a->width, pos), align, mask_of(e, a)};
    ll_call(e, "llvm.masked.scatter", over, 2, args, 4);
}

LLVMValueRef ll_row_at(ll_emit *e, uint32_t i)
{
    const lp_inst *in = &e->k->insts[i];
    LLVMValueRef by = LLVMBuildMul(e->b, ll_get(e, in->a, 1), e->along[in->b], "");
    return LLVMBuildGEP2(e->b, e->i8, e->row[in->b], &by, 1, "");
}

/* Elements that lie `offsets` bytes from `from`, the live ones, one after another into a stack block */
static LLVMValueRef gather_live(ll_emit *e, LLVMTypeRef t, unsigned bytes, const ll_active *a, LLVMValueRef from, LLVMValueRef offsets)
{
    ll_loop l;
    LLVMSetAlignment(LLVMBuildStore(e->b, offsets, ll_slot(e, 1)), 64);
    ll_loop_begin(e, &l, ll_int(e, 0), a->live, 1);
    LLVMValueRef by = LLVMBuildLoad2(e->b, e->i64, LLVMBuildGEP2(e->b, e->i64, ll_slot(e, 1), &l.i, 1, ""), "");
    LLVMValueRef x = LLVMBuildLoad2(e->b, t, LLVMBuildGEP2(e->b, e->i8, from, &by, 1, ""), "");
    LLVMSetAlignment(x, bytes);
    LLVMSetAlignment(LLVMBuildStore(e->b, x, LLVMBuildGEP2(e->b, t, ll_slot(e, 0), &l.i, 1, "")), bytes);
    ll_loop_end(e, &l);
    x = LLVMBuildLoad2(e->b, ll_vector(t, a->width), ll_slot(e, 0), "");
    LLVMSetAlignment(x, 64);
    return x;
}

static LLVMValueRef gather(ll_emit *e, const lp_inst *in, const ll_active *a, LLVMValueRef pos)
{
    const lp_buffer *b = &e->k->buffers[in->b];
    LLVMTypeRef t = ll_type(e, b->dtype), vt = ll_vector(t, a->width);
    unsigned bytes = (unsigned)ll_bytes(b->dtype);
    LLVMValueRef from = address(e, in->b, pos), index = ll_get(e, in->a, a->width);
    LLVMValueRef offsets = LLVMBuildMul(e->b, index, ll_splat(e, e->along[in->b], a->width), "");
    if (b->inner_stride && a->width > 1) {
        LLVMValueRef by = contiguous(b) ? ll_int(e, bytes) : distance(e, in->b);
        offsets = LLVMBuildAdd(e->b, offsets, LLVMBuildMul(e->b, ll_lanes(e, e->i64, a->width, 1), ll_splat(e, by, a->width), ""), "");
    }
    if (a->width > 1 && a->live && !ll_masks_well(e, in))
        return gather_live(e, t, bytes, a, from, offsets);
    LLVMValueRef at = LLVMBuildGEP2(e->b, e->i8, from, &offsets, 1, "");
    if (a->width == 1) {
        LLVMValueRef x = LLVMBuildLoad2(e->b, t, at, "");
        LLVMSetAlignment(x, bytes);
        return x;
    }
    LLVMTypeRef over[2] = {vt, LLVMVectorType(e->ptr, (unsigned)a->width)};
    LLVMValueRef args[4] = {at, LLVMConstInt(e->i32, bytes, false), mask_of(e, a), LLVMConstNull(vt)};
    return ll_call(e, "llvm.masked.gather", over, 2, args, 4);
}

LLVMValueRef ll_load_at(ll_emit *e, uint32_t i, const ll_active *a, LLVMValueRef pos)
{
    const lp_inst *in = &e->k->insts[i];
    if (e->varies[in->a])
        return gather(e, in, a, pos);
    LLVMValueRef row = e->row[in->b];
    e->row[in->b] = e->v[i].uniform;
    LLVMValueRef x = ll_load(e, in->b, a, pos);
    e->row[in->b] = row;
    return x;
}

LLVMValueRef ll_load_scalar(ll_emit *e, uint32_t buffer, LLVMValueRef row)
{
    kn_dtype t = e->k->buffers[buffer].dtype;
    LLVMValueRef x = LLVMBuildLoad2(e->b, ll_type(e, t), row, "");
    LLVMSetAlignment(x, (unsigned)ll_bytes(t));
    return x;
}

void ll_store_scalar(ll_emit *e, uint32_t buffer, LLVMValueRef value)
{
    LLVMSetAlignment(LLVMBuildStore(e->b, value, e->row[buffer]), (unsigned)ll_bytes(e->k->buffers[buffer].dtype));
}

/* The lines `ahead` bytes further on, into all caches. Past the buffer's end a prefetch does nothing. */
void ll_prefetch(ll_emit *e, uint32_t buffer, int width, LLVMValueRef pos, LLVMValueRef ahead)
{
    LLVMValueRef here = LLVMBuildGEP2(e->b, e->i8, address(e, buffer, pos), &ahead, 1, "");
    for (int64_t line = 0; line < (int64_t)width * ll_bytes(e->k->buffers[buffer].dtype); line += 64) {
        LLVMValueRef at = ll_int(e, line), read = LLVMConstInt(e->i32, 0, false), near = LLVMConstInt(e->i32, 3, false);
        LLVMValueRef args[4] = {LLVMBuildGEP2(e->b, e->i8, here, &at, 1, ""), read, near, LLVMConstInt(e->i32, 1, false)};
        ll_call(e, "llvm.prefetch", &e->ptr, 1, args, 4);
    }
}
