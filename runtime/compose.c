/* compose.c: functions that are written in operators: parts of a tensor as a tuple, moved and split dims, tensors like another, einsum.
 *
 * They exist on the host only: what they call is traced, they are not. EINSUM takes its operands from left to right. Of each pair, labels that the rest and
 * the result don't need are summed: those of one operand alone by kn_sum, those of both by a batched product whose k runs over them in the order in which
 * the equation first names them (CAPTURE 16).
 */
#include "runtime/face.h"
#include <string.h>

#undef kn_tuple
#undef kn_full

static int wrapped(const kn_tensor *x, int64_t dim)
{
    int rank = kn_rank(x);
    return (int)(dim < 0 ? dim + rank : dim);
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------------- */
static kn_value failed_value(kn_status s, const char *op, const char *site, const char *text)
{
    return kn_value_tensor(rt_error_tensorf(s, op, site, "%s", text));
}

/* An error tensor, missing operand or bad dim as the value to hand on; none when all is well. */
static kn_value check_part(kn_tensor *x, int64_t dim, const char *op, const char *site)
{
    if (!x)
        return failed_value(KN_E_VALUE, op, site, "operand x is missing");
    if (rt_failed(x))
        return kn_value_tensor(x);
    int d = wrapped(x, dim);
    if (d < 0 || d >= kn_rank(x))
        return kn_value_tensor(rt_error_tensorf(KN_E_INDEX, op, site, "dim %lld is outside a tensor with %d dimensions", (long long)dim, kn_rank(x)));
    return kn_none();
}

/* Parts of the lengths given, in a tuple; lengths NULL: all `each`, the last what is left. */
static kn_value parts(kn_tensor *x, size_t n, int64_t each, const int64_t *lengths, int64_t dim, const char *op, const char *site)
{
    int d = wrapped(x, dim);
    int64_t size = kn_size(x, d), at = 0;
    kn_value *items = kb_alloc((n + 1) * sizeof *items);
    if (!items)
        return kn_value_tensor(rt_face_failed(op, site));
    for (size_t i = 0; i < n; i++) {
        int64_t length = lengths ? lengths[i] : size - at < each ? size - at : each;
        items[i] = kn_value_tensor((kn_narrow)(x, d, at, length, site));
        if (rt_failed(items[i].as.tensor)) {
            kn_value bad = items[i];
            kb_free(items);
            return bad;
        }
        at += length;
    }
    kn_value v = (kn_tuple)(n, items, site);
    kb_free(items);
    return v;
}

kn_value(kn_split)(kn_tensor *x, int64_t size, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "split", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    int64_t n = kn_size(x, wrapped(x, dim));
    if (size < 0 || (size == 0 && n))
        return failed_value(KN_E_VALUE, "split", site, "the size of a part must be at least 1");
    return parts(x, n == 0 ? 1 : (size_t)((n - 1) / size + 1), size, NULL, dim, "split", site);
}

kn_value(kn_split_sizes)(kn_tensor *x, kn_shape sizes, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "split", site);
    int64_t total = 0;
    if (bad.kind != KN_KIND_NONE)
        return bad;
    for (int64_t i = 0; i < sizes.rank; i++) {
        if (sizes.sizes[i] < 0 || __builtin_add_overflow(total, sizes.sizes[i], &total))
            return failed_value(KN_E_VALUE, "split", site, "sizes of parts must not be negative");
    }
    if (total != kn_size(x, wrapped(x, dim)))
        return kn_value_tensor(rt_error_tensorf(KN_E_SHAPE, "split", site, "the parts have %lld elements together, the dimension %lld", (long long)total,
                                                (long long)kn_size(x, wrapped(x, dim))));
    return parts(x, (size_t)(sizes.rank > 0 ? sizes.rank : 0), 0, sizes.sizes, dim, "split", site);
}

/* Parts of ceil(n / chunks) elements: there may be fewer than asked for. */
kn_value(kn_chunk)(kn_tensor *x, int64_t chunks, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "chunk", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    if (chunks < 1)
        return failed_value(KN_E_VALUE, "chunk", site, "there must be at least one chunk");
    int64_t n = kn_size(x, wrapped(x, dim)), each = n ? (n - 1) / chunks + 1 : 0;
    return parts(x, n ? (size_t)((n - 1) / each + 1) : (size_t)chunks, each, NULL, dim, "chunk", site);
}

kn_value(kn_unbind)(kn_tensor *x, int64_t dim, const char *site)
{
    kn_value bad = check_part(x, dim, "unbind", site);
    if (bad.kind != KN_KIND_NONE)
        return bad;
    int d = wrapped(x, dim);
    int64_t n = kn_size(x, d);
    kn_value *items = kb_alloc((size_t)(n + 1) * sizeof *items);
    if (!items)
        return kn_value_tensor(rt_face_failed("unbind", site));
    for (int64_t i = 0; i < n; i++)
        items[i] = kn_value_tensor((kn_select)(x, d, i, site));
    kn_value v = (kn_tuple)((size_t)n, items, site);
    kb_free(items);
    return v;
}

/* ---- dims ---------------------------------------------------------------------------------------------------------------------------- */
kn_tensor *(kn_movedim)(kn_tensor *x, int64_t source, int64_t destination, const char *site)
{
    int64_t order[KN_MAX_RANK];
    kn_value bad = check_part(x, source, "movedim", site);
    if (bad.kind == KN_KIND_NONE)
        bad = check_part(x, destination, "movedim", site);
    if (bad.kind != KN_KIND_NONE)
        return bad.as.tensor;
    int from = wrapped(x, source), to = wrapped(x, destination), rank = kn_rank(x);
    for (int i = 0, k = 0; i < rank; i++) {
        k += k == from;
        order[i] = i == to ? from : k++;
    }
    return (kn_permute)(x, (kn_shape){rank, order}, site);
}

kn_tensor *(kn_t)(kn_tensor *x, const char *site)
{
    if (rt_failed(x))
        return x ? x : rt_error_tensorf(KN_E_VALUE, "t", site, "operand x is missing");
    if (kn_rank(x) > 2)
        return rt_error_tensorf(KN_E_SHAPE, "t", site, "takes at most 2 dimensions, not %d; see kn_transpose", kn_rank(x));
    return kn_rank(x) < 2 ? x : (kn_transpose)(x, 0, 1, site);
}

kn_tensor *(kn_unflatten)(kn_tensor *x, int64_t dim, kn_shape sizes, const char *site)
{
    int64_t all[2 * KN_MAX_RANK], n = 0, known = 1, open = -1;
    kn_value bad = check_part(x, dim, "unflatten", site);
    if (bad.kind != KN_KIND_NONE)
        return bad.as.tensor;
    int d = wrapped(x, dim);
    if (sizes.rank < 1 || sizes.rank + kn_rank(x) - 1 > KN_MAX_RANK)
        return rt_error_tensorf(KN_E_SHAPE, "unflatten", site, "dimension %d cannot become %lld dimensions", d, (long long)sizes.rank);
    for (int i = 0; i < kn_rank(x); i++)
        for (int64_t k = 0; k < (i == d ? sizes.rank : 1); k++, n++) {
            all[n] = i == d ? sizes.sizes[k] : kn_size(x, i);
            if (i == d && all[n] == -1 && open < 0)
                open = n;
            else if (i == d)
                known *= all[n];
        }
    if (open >= 0 && known > 0 && kn_size(x, d) % known == 0)
        all[open] = kn_size(x, d) / known;
    else if (known != kn_size(x, d))
        return rt_error_tensorf(KN_E_SHAPE, "unflatten", site, "dimension %d has %lld elements, which the sizes given do not hold", d, (long long)kn_size(x, d));
    return (kn_reshape)(x, (kn_shape){n, all}, site);
}

/* ---- like another ----------------------------------------------------------------------------------------------------------------------- */
kn_tensor *(kn_full_like)(kn_tensor *x, kn_value v, const char *site)
{
    if (rt_failed(x))
        return x ? x : rt_error_tensorf(KN_E_VALUE, "full_like", site, "operand x is missing");
    int here = rt_default_device(x->layout->device);
    kn_tensor *t = (kn_full)(kn_tensor_dtype(x), kn_tensor_shape(x), v, site);
    rt_default_device(here);
    return t;
}

kn_tensor *(kn_zeros_like)(kn_tensor *x, const char *site) { return (kn_full_like)(x, kn_value_int(0), site); }
kn_tensor *(kn_ones_like)(kn_tensor *x, const char *site) { return (kn_full_like)(x, kn_value_int(1), site); }
kn_tensor *(kn_rand_like)(kn_tensor *x, const char *site)
{
    if (rt_failed(x))
        return (kn_zeros_like)(x, site);
    int here = rt_default_device(x->layout->device);
    kn_tensor *t = (kn_rand)(kn_tensor_dtype(x), kn_tensor_shape(x), site);
    rt_default_device(here);
    return t;
}
kn_tensor *(kn_randn_like)(kn_tensor *x, const char *site)
{
    if (rt_failed(x))
        return (kn_zeros_like)(x, site);
    int here = rt_default_device(x->layout->device);
    kn_tensor *t = (kn_randn)(kn_tensor_dtype(x), kn_tensor_shape(x), site);
    rt_default_device(here);
    return t;
}

kn_tensor *(kn_eye)(int64_t n, int64_t m, kn_dtype d, const char *site)
{
    kn_tensor *ones = (kn_ones)(d, (kn_shape){2, (int64_t[]){n, m}}, site);
    return (kn_triu)((kn_tril)(ones, NULL, 0, site), NULL, 0, site);
}

/* ---- einsum -------------------------------------------------------------------------------------------------------------------------------- */
enum { LABELS = 52 + KN_MAX_RANK /* letters, then the dims under an ellipsis */, MAX_TERMS = 8 };

typedef struct term { int n, label[KN_MAX_RANK]; kn_tensor *t; } term;
typedef struct einsum {
    const char *site;
    int n_terms, n_order, order[LABELS];        /* labels by first appearance */
    int64_t size[LABELS];
    term in[MAX_TERMS], out;
    int dots;                                   /* dims under the ellipsis */
} einsum;

static kn_tensor *refuse(const einsum *e, kn_status s, const char *text) { return rt_error_tensorf(s, "einsum", e->site, "%s", text); }

static int label_of(char c) { return c >= 'a' && c <= 'z' ? c - 'a' : c >= 'A' && c <= 'Z' ? 26 + c - 'A' : -1; }
static bool holds(const term *t, int label)
{
    for (int i = 0; i < t->n; i++)
        if (t->label[i] == label)
            return true;
    return false;
}

/* One term's labels; rank -1: the result's. NULL when it can't be read. */
static const char *read_term(einsum *e, term *t, const char *p, int rank)
{
    int letters = 0;
    for (const char *q = p; *q && *q != ',' && *q != '-'; q++)
        letters += label_of(*q) >= 0;
    t->n = 0;
    for (; *p && *p != ',' && *p != '-'; p++) {
        if (*p == ' ')
            continue;
        int dots = 0;
        if (strncmp(p, "...", 3) == 0) {
            dots = rank < 0 ? e->dots : rank - letters;
            if (dots < 0 || (e->dots >= 0 && dots != e->dots))
                return NULL;
            e->dots = dots;
            p += 2;
        } else if (label_of(*p) < 0)
            return NULL;
        if (t->n + (dots ? dots : 1) > KN_MAX_RANK + (*p == '.' && !dots))
            return NULL;
        for (int i = 0; *p == '.' && i < dots; i++)
            t->label[t->n++] = 52 + i;
        if (*p != '.')
            t->label[t->n++] = label_of(*p);
    }
    return rank < 0 || t->n == rank ? p : NULL;
}

/* Without "->" the result has the labels that stand once, in the alphabet's order, after those of the ellipsis. */
static void implied_result(einsum *e)
{
    e->out.n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int l = 0; l < LABELS; l++) {
            int count = 0;
            for (int k = 0; k < e->n_terms; k++)
                for (int i = 0; i < e->in[k].n; i++)
                    count += e->in[k].label[i] == l;
            if ((pass == 0) == (l >= 52) && (l >= 52 ? count > 0 : count == 1) && e->out.n < KN_MAX_RANK)
                e->out.label[e->out.n++] = l;
        }
}

static const char *read_equation(einsum *e, const char *p, size_t n, kn_tensor *const *tensors)
{
    e->dots = -1;
    for (size_t k = 0; k < n; k++) {
        e->in[k].t = tensors[k];
        p = read_term(e, &e->in[k], p, kn_rank(tensors[k]));
        if (!p || (*p == ',') != (k + 1 < n))
            return "the equation does not fit the operands: a letter for each dimension, terms separated by commas";
        p += *p == ',';
    }
    e->n_terms = (int)n;
    for (int k = 0; k < e->n_terms; k++)
        for (int i = 0; i < e->in[k].n; i++) {
            int l = e->in[k].label[i];
            int64_t size = kn_size(e->in[k].t, i);
            bool seen = false;
            for (int o = 0; o < e->n_order; o++)
                seen |= e->order[o] == l;
            if (!seen)
                e->order[e->n_order++] = l;
            if (seen && e->size[l] != size)
                return "a letter stands for two different sizes";
            e->size[l] = size;
        }
    if (*p == '\0') {
        implied_result(e);
        return NULL;
    }
    if (p[0] != '-' || p[1] != '>' || !(p = read_term(e, &e->out, p + 2, -1)) || *p)
        return "the result of the equation cannot be read";
    for (int i = 0; i < e->out.n; i++) {
        bool known = false;
        for (int k = 0; k < e->n_terms; k++)
            known |= holds(&e->in[k], e->out.label[i]);
        for (int k = 0; k < i; k++)
            known &= e->out.label[k] != e->out.label[i];
        if (!known)
            return "a letter of the result stands in no operand, or twice in the result";
    }
    return NULL;
}

/* A letter that stands twice in a term takes the diagonal. */
static void take_diagonals(const einsum *e, term *t)
{
    for (int i = 0; i < t->n; i++)
        for (int k = i + 1; k < t->n; k++)
            if (t->label[k] == t->label[i]) {
                int l = t->label[i];
                t->t = (kn_diagonal)(t->t, 0, i, k, e->site);
                memmove(&t->label[k], &t->label[k + 1], (size_t)(t->n - k - 1) * sizeof *t->label);
                memmove(&t->label[i], &t->label[i + 1], (size_t)(t->n - i - 2) * sizeof *t->label);
                t->n--;
                t->label[t->n - 1] = l;
                i = -1;
                break;
            }
}

static bool needed_after(const einsum *e, int label, int after)
{
    bool need = holds(&e->out, label);
    for (int k = after; k < e->n_terms; k++)
        need |= holds(&e->in[k], label);
    return need;
}

/* Labels that nobody else names are summed away. */
static void sum_lonely(const einsum *e, term *t, const term *other, int after)
{
    int64_t dims[KN_MAX_RANK], n = 0;
    int kept = 0;
    for (int i = 0; i < t->n; i++)
        if (!needed_after(e, t->label[i], after) && !(other && holds(other, t->label[i])))
            dims[n++] = i;
        else
            t->label[kept++] = t->label[i];
    t->n = kept;
    if (n) {
        kn_reduce_options o = {.dims = {n, dims}};
        t->t = (kn_sum)(t->t, &o, sizeof o, e->site);
    }
}

static kn_tensor *permuted(const einsum *e, const term *t, const int *labels, int n)
{
    int64_t dims[KN_MAX_RANK];
    for (int i = 0; i < n; i++)
        for (int k = 0; k < t->n; k++)
            if (t->label[k] == labels[i])
                dims[i] = k;
    return (kn_permute)(t->t, (kn_shape){n, dims}, e->site);
}

static kn_tensor *matrices(const einsum *e, const term *t, const int *const *group, const int *count, const int *order)
{
    int labels[KN_MAX_RANK], n = 0;
    int64_t sizes[3] = {1, 1, 1};
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < count[order[g]]; i++) {
            labels[n++] = group[order[g]][i];
            sizes[g] *= e->size[group[order[g]][i]];
        }
    return (kn_reshape)(permuted(e, t, labels, n), (kn_shape){3, sizes}, e->site);
}

/* a and b in one product; the result's labels: those of both, then a's own, then b's. */
static void multiply(const einsum *e, term *a, const term *b, int after)
{
    int batch[LABELS], left[LABELS], right[LABELS], both[LABELS], n[4] = {0};
    for (int o = 0; o < e->n_order; o++) {
        int l = e->order[o];
        bool in_a = holds(a, l), in_b = holds(b, l);
        if (in_a && in_b && needed_after(e, l, after))
            batch[n[0]++] = l;
        else if (in_a && in_b)
            both[n[3]++] = l;
        else if (in_a)
            left[n[1]++] = l;
        else if (in_b)
            right[n[2]++] = l;
    }
    const int *const group[4] = {batch, left, right, both};
    kn_tensor *x = matrices(e, a, group, n, (int[]){0, 1, 3}), *y = matrices(e, b, group, n, (int[]){0, 3, 2});
    int64_t sizes[2 * KN_MAX_RANK + LABELS];
    a->t = (kn_bmm)(x, y, e->site);
    a->n = 0;
    if (n[0] + n[1] + n[2] > KN_MAX_RANK) {
        a->t = refuse(e, KN_E_SHAPE, "an intermediate result would have too many dimensions");
        return;
    }
    for (int g = 0; g < 3; g++)
        for (int i = 0; i < n[g]; i++) {
            sizes[a->n] = e->size[group[g][i]];
            a->label[a->n++] = group[g][i];
        }
    a->t = (kn_reshape)(a->t, (kn_shape){a->n, sizes}, e->site);
}

kn_tensor *(kn_einsum)(const char *equation, size_t n, kn_tensor *const *tensors, const char *site)
{
    einsum e = {.site = site};
    if (!equation || n < 1 || n > MAX_TERMS)
        return refuse(&e, KN_E_VALUE, "takes an equation and 1 to 8 tensors");
    for (size_t k = 0; k < n; k++)
        if (rt_failed(tensors[k]))
            return tensors[k] ? tensors[k] : refuse(&e, KN_E_VALUE, "an operand is missing");
    const char *bad = read_equation(&e, equation, n, tensors);
    if (bad)
        return refuse(&e, KN_E_VALUE, bad);
    for (int k = 0; k < e.n_terms; k++)
        take_diagonals(&e, &e.in[k]);
    term *a = &e.in[0];
    for (int k = 1; k < e.n_terms; k++) {
        sum_lonely(&e, a, &e.in[k], k + 1);
        sum_lonely(&e, &e.in[k], a, k + 1);
        multiply(&e, a, &e.in[k], k + 1);
    }
    sum_lonely(&e, a, NULL, e.n_terms);
    return permuted(&e, a, e.out.label, e.out.n);
}
