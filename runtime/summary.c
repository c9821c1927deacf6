/* summary.c: kn_summary: what each module of a tree gives, holds and costs, measured at one eager call.
 *
 * A trace of its own stands at the door of operators while the call runs: it runs each operator and books its work on every module that is
 * being called. Results come by hooks, which are taken off again. Refused inside of a forward, where another trace may be at work.
 */
#define KN_SITE "kn_summary"
#include "runtime/face.h"
#include "runtime/module.h"
#include "base/layout.h"
#include <stdio.h>
#include <string.h>

#undef kn_summary
#undef kn_summary_

enum { SHAPE_TEXT = 80, MAX_DEPTH = 256 };

typedef struct row { kn_module *m; char *path; int depth; kn_hook hook; int64_t calls, params, bytes; double flops; char shape[SHAPE_TEXT]; } row;

typedef struct summary {
    rt_trace trace;
    row *rows;
    int64_t n_rows, cap_rows;
    int64_t open[MAX_DEPTH];                    /* rows of the modules being called, -1 for one that isn't of the tree; deeper ones aren't kept */
    int n_open;
    bool failed;
} summary;

/* ---- the work of an operator -------------------------------------------------------------------------------------------------------- */
static int64_t size_at(const rt_op *c, int operand, int dim) { return c->in[operand].kind == KN_KIND_TENSOR ? kn_size(c->in[operand].as.tensor, dim) : 0; }
static double numel_at(const rt_op *c, int operand) { return c->in[operand].kind == KN_KIND_TENSOR ? (double)kn_numel(c->in[operand].as.tensor) : 0; }

/* Products alone: two for each multiplication and addition, one for a bias added. */
double rt_op_flops(const rt_op *c, const kn_tensor *out)
{
    double n = (double)kn_numel(out);
    const char *name = kb_op_info(c->op)->name;
    if (c->op == OP_matmul || c->op == OP_bmm)
        return 2 * n * (double)size_at(c, 0, -1);
    if (c->op == OP_addmm)
        return 2 * n * (double)size_at(c, 1, -1) + n;
    if (c->op == OP_quantized_linear)
        return 2 * n * (double)size_at(c, 0, -1) + (c->n_in > 2 && c->in[2].kind == KN_KIND_TENSOR ? n : 0) + (c->n_in > 3 && c->in[3].kind == KN_KIND_TENSOR ? n : 0);
    double bias = c->n_in > 2 && c->in[2].kind == KN_KIND_TENSOR ? n : 0;
    if (c->op == OP_linear)
        return 2 * n * (double)size_at(c, 0, -1) + bias;
    if (strncmp(name, "conv_transpose", 14) == 0)
        return 2 * numel_at(c, 0) * numel_at(c, 1) / (double)size_at(c, 1, 0) + bias;
    if (strncmp(name, "conv", 4) == 0)
        return 2 * n * numel_at(c, 1) / (double)size_at(c, 1, 0) + bias;
    if (c->op == OP_scaled_dot_product_attention)
        return 2 * numel_at(c, 0) * (double)size_at(c, 1, -2) + 2 * n * (double)size_at(c, 1, -2);
    return 0;
}

static void book(summary *s, const rt_op *c, kn_tensor *const *out)
{
    const kb_opinfo *info = kb_op_info(c->op);
    int64_t bytes = 0;
    if (kn_failed(out[0]))
        return;
    for (int i = 0; i < kb_op_n_out(info, c->words) && info->cls != KB_WRITE; i++)
        if (info->cls != KB_VIEW || (c->in[0].kind == KN_KIND_TENSOR && out[i]->storage != c->in[0].as.tensor->storage))
            bytes += kn_numel(out[i]) * (int64_t)kb_dtype_bytes(kn_tensor_dtype(out[i]));
    double flops = rt_op_flops(c, out[0]);
    for (int i = 0; i < s->n_open; i++)
        if (s->open[i] >= 0) {
            s->rows[s->open[i]].bytes += bytes;
            s->rows[s->open[i]].flops += flops;
        }
}

/* ---- the trace: everything is real, so there is nothing to do but to look ------------------------------------------------------------- */
static void on_op(rt_trace *f, rt_ctx *ctx, const rt_op *c, kn_tensor **out)
{
    rt_eager(ctx, c, out);
    book((summary *)f, c, out);
}
static kn_status on_read(rt_trace *f, rt_ctx *ctx, kn_tensor *t, int code, const char *site) { return (void)f, (void)ctx, (void)t, (void)code, (void)site, KN_OK; }
static void on_write(rt_trace *f, rt_ctx *ctx, rt_storage *s) { (void)f, (void)ctx, (void)s; }
static void on_break(rt_trace *f, rt_ctx *ctx, int code, const char *site) { (void)f, (void)ctx, (void)code, (void)site; }
static kn_status on_foreign(rt_trace *f, kn_tensor *t) { return (void)f, (void)t, KN_OK; }
static void on_abandon(rt_trace *f, rt_ctx *ctx) { ctx->trace = f->outer; }

static void on_enter(rt_trace *f, kn_module *m)
{
    summary *s = (summary *)f;
    int64_t at = s->n_rows - 1;
    while (at >= 0 && s->rows[at].m != m)
        at--;
    if (at >= 0)
        s->rows[at].calls++;
    if (s->n_open < MAX_DEPTH)
        s->open[s->n_open] = at;
    s->n_open++;
}

static void on_leave(rt_trace *f, kn_module *m)
{
    (void)m;
    ((summary *)f)->n_open--;
}

static void on_asked(rt_trace *f, rt_ctx *ctx, kn_tensor *t) { (void)f, (void)ctx, (void)t; }

static const rt_trace_ops watching = {.op = on_op, .host_read = on_read, .host_write = on_write, .breaks = on_break,
    .module_enter = on_enter, .module_leave = on_leave, .abandon = on_abandon, .asked = on_asked, .foreign = on_foreign};

/* ---- rows -------------------------------------------------------------------------------------------------------------------------------- */
static void shape_text(kn_value v, char *buf, size_t size)
{
    if (v.kind == KN_KIND_TENSOR && !kn_failed(v.as.tensor)) {
        kn_shape s = kn_tensor_shape(v.as.tensor);
        kb_sizes_text(buf, size, (int)s.rank, s.sizes);
    } else if (v.kind == KN_KIND_TUPLE && v.count && size > 8) {
        shape_text(v.as.items[0], buf, size - 5);
        if (v.count > 1)
            strcat(buf, ", …");
    } else
        snprintf(buf, size, "%s", v.kind == KN_KIND_TENSOR ? "failed" : rt_value_name(v));
}

static kn_value take_shape(kn_module *m, kn_value in, kn_value out, void *user)
{
    summary *s = user;
    (void)in;
    rt_ctx *ctx = rt_get();
    for (int64_t i = 0; ctx && ctx->trace == &s->trace && i < s->n_rows; i++)
        if (s->rows[i].m == m)
            shape_text(out, s->rows[i].shape, sizeof s->rows[i].shape);
    return kn_none();
}

static bool add_own(rt_walk *w, const rt_item *item)
{
    if (item->slot && *item->slot && item->field->kind == KN_FIELD_PARAM)
        *(int64_t *)w->user += kn_numel(*item->slot);
    return true;
}

static bool add_row(const char *path, kn_module *m, void *user)
{
    summary *s = user;
    row r = {.m = rt_module_resolve(m, "kn_summary"), .path = kb_strdup(path)};
    rt_walk w = {.visit = add_own, .user = &r.params, .no_path = true};
    for (const char *p = path; *p; p++)
        r.depth += *p == '.' || p == path;
    if (r.m)
        rt_walk_run(&w, r.m);
    s->failed = !r.m || !r.path || !KB_PUSH(&s->rows, &s->n_rows, &s->cap_rows, r);
    if (s->failed)
        kb_free(r.path);
    return !s->failed;
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------------------- */
/* 1234567 as "1,234,567". */
static const char *grouped(double number, char buf[40])
{
    char digits[40];
    int n = snprintf(digits, sizeof digits, "%.0f", number), k = 0;
    for (int i = 0; i < n && k < 38; i++) {
        buf[k++] = digits[i];
        if ((n - i - 1) % 3 == 0 && i + 1 < n)
            buf[k++] = ',';
    }
    buf[k] = 0;
    return buf;
}

/* Columns, not bytes: "…" has three of these. */
static int columns(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += (*text & 0xC0) != 0x80;
    return n;
}

static void print_rows(const summary *s, FILE *f)
{
    int path = 6, class = 5, shape = 12;
    char a[40], b[40], c[40];
    for (int64_t i = 0; i < s->n_rows; i++) {
        const row *r = &s->rows[i];
        int p = (int)strlen(r->path), k = (int)strlen(kn_class_name(r->m)), n = columns(r->shape);
        path = p > path ? p : path;
        class = k > class ? k : class;
        shape = n > shape ? n : shape;
    }
    fprintf(f, "%-*s  %-*s  %-*s  %5s  %14s  %18s  %16s\n", path, "module", class, "class", shape, "output shape", "calls", "parameters",
            "FLOPs", "activation bytes");
    for (int64_t i = 0; i < s->n_rows; i++) {
        const row *r = &s->rows[i];
        fprintf(f, "%-*s  %-*s  %s%*s  %5lld  %14s  %18s  %16s\n", path, *r->path ? r->path : "(self)", class, kn_class_name(r->m),
                r->shape, shape - columns(r->shape), "", (long long)r->calls, r->params ? grouped((double)r->params, a) : "-",
                r->flops > 0 ? grouped(r->flops, b) : "-", grouped((double)r->bytes, c));
    }
}

static kn_status add_bytes(kn_tensor *t, void *user)
{
    if (!kn_failed(t))
        *(int64_t *)user += kn_numel(t) * (int64_t)kb_dtype_bytes(kn_tensor_dtype(t));
    return KN_OK;
}

static bool add_tensor_bytes(const char *path, kn_tensor **slot, void *user) { return (void)path, add_bytes(*slot, user) == KN_OK; }

static void print_totals(const summary *s, kn_module *m, size_t n, const kn_value *args, FILE *f)
{
    char a[40];
    int64_t input = 0, params = 0, buffers = 0;
    for (size_t i = 0; i < n; i++)
        rt_value_each_tensor(args[i], add_bytes, &input);
    kn_named_parameters(m, add_tensor_bytes, &params);
    kn_named_buffers(m, add_tensor_bytes, &buffers);
    fprintf(f, "\nparameters        %18s\n", grouped((double)kn_parameter_count(m), a));
    fprintf(f, "FLOPs             %18s\n", grouped(s->rows[0].flops, a));
    fprintf(f, "parameter bytes   %18s\n", grouped((double)params, a));
    fprintf(f, "buffer bytes      %18s\n", grouped((double)buffers, a));
    fprintf(f, "input bytes       %18s\n", grouped((double)input, a));
    fprintf(f, "activation bytes  %18s\n", grouped((double)s->rows[0].bytes, a));
}

/* ---- the call ------------------------------------------------------------------------------------------------------------------------------ */
/* Calls inside eagerly under the watch: the failure, or KN_OK. */
static kn_status watch(summary *s, rt_ctx *ctx, kn_module *inside, size_t n, const kn_value *args, const char *site)
{
    KN_SCOPE;
    s->trace = (rt_trace){.ops = &watching, .depth = (uint32_t)ctx->n_scopes};
    ctx->trace = &s->trace;
    kn_value y = rt_call(inside, n, args, site);
    ctx->trace = NULL;
    if (y.kind != KN_KIND_TENSOR || !kn_failed(y.as.tensor))
        return KN_OK;
    return kb_fail(kn_tensor_status(y.as.tensor), "%s", kn_tensor_error(y.as.tensor));
}

kn_status kn_summary(kn_module *m, FILE *f, size_t n, const kn_value *args, const char *site)
{
    rt_ctx *ctx = rt_get();
    summary s = {.rows = NULL};
    kn_module *inside = rt_module_resolve(m, "kn_summary");
    if (!inside || !ctx)
        return kb_error_status();
    if (!f || (n && !args))
        return kb_fail(KN_E_VALUE, "kn_summary: %s", f ? "the list of arguments is NULL" : "the file is NULL");
    if (ctx->trace || ctx->n_modules)
        return kb_fail(KN_E_STATE, "kn_summary can't be called inside of a forward");
    kn_status status = kn_named_modules(inside, add_row, &s);
    if (s.failed)
        status = kb_error_status();
    for (int64_t i = 0; i < s.n_rows && status == KN_OK; i++) {
        s.rows[i].hook = (kn_register_forward_hook)(s.rows[i].m, take_shape, &s, NULL, 0);
        status = s.rows[i].hook.id ? KN_OK : kb_error_status();
    }
    if (status == KN_OK)
        status = watch(&s, ctx, inside, n, args, site);
    for (int64_t i = 0; i < s.n_rows; i++)
        kn_remove_hook(s.rows[i].hook);
    if (status == KN_OK) {
        print_rows(&s, f);
        print_totals(&s, inside, n, args, f);
    }
    for (int64_t i = 0; i < s.n_rows; i++)
        kb_free(s.rows[i].path);
    kb_free(s.rows);
    return status;
}
