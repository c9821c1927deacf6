/* recurrent.c: RNN, LSTM and GRU: layers over a sequence, in both directions if asked for.
 *
 * The products with the inputs of all steps are one product; each step adds the product with the state. Parameters are named as PyTorch's,
 * "weight_ih_l0", "bias_hh_l1_reverse" …, so their number depends on the options: such a module's class is made at run time, with its
 * table of fields, in one block that the instance owns (rt_new_of_block). Gates lie in PyTorch's order: i f g o, and r z n.
 * Refused: more than 64 layers; proj_size of anything but an LSTM; a state of another form than PyTorch's.
 */
#define KN_SITE "nn.Recurrent"
#include "runtime/nn/recurrent.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PER_CELL = 5, MAX_LAYERS = 64 };         /* weight_ih, weight_hh, bias_ih, bias_hh, weight_hr */

typedef struct Recurrent {
    kn_module base;
    int64_t hidden_size, num_layers, directions, proj_size;
    double dropout;
    bool batch_first;
    nn_rnn_kind kind;
    kn_tensor *params[];                        /* PER_CELL of each layer and direction */
} Recurrent;

/* ---- one step -------------------------------------------------------------------------------------------------------------------------- */
static kn_tensor *gate(kn_tensor *g, int i, int64_t hidden) { return kn_narrow(g, -1, i * hidden, hidden); }

static nn_state lstm_step(kn_tensor *g, kn_tensor *c)
{
    int64_t n = kn_size(c, -1);
    kn_tensor *kept = kn_mul(kn_sigmoid(gate(g, 1, n)), c);
    kn_tensor *next = kn_add(kept, kn_mul(kn_sigmoid(gate(g, 0, n)), kn_tanh(gate(g, 2, n))));
    return (nn_state){kn_mul(kn_sigmoid(gate(g, 3, n)), kn_tanh(next)), next};
}

static nn_state gru_step(kn_tensor *x, kn_tensor *h_part, kn_tensor *h)
{
    int64_t n = kn_size(h, -1);
    kn_tensor *r = kn_sigmoid(kn_add(gate(x, 0, n), gate(h_part, 0, n))), *z = kn_sigmoid(kn_add(gate(x, 1, n), gate(h_part, 1, n)));
    kn_tensor *fresh = kn_tanh(kn_add(gate(x, 2, n), kn_mul(r, gate(h_part, 2, n))));
    return (nn_state){kn_add(fresh, kn_mul(z, kn_sub(h, fresh))), NULL};
}

nn_state nn_step(nn_rnn_kind kind, kn_tensor *from_x, kn_tensor *from_h, nn_state s)
{
    switch (kind) {
    case NN_RNN_TANH: return (nn_state){kn_tanh(kn_add(from_x, from_h)), NULL};
    case NN_RNN_RELU: return (nn_state){kn_relu(kn_add(from_x, from_h)), NULL};
    case NN_LSTM: return lstm_step(kn_add(from_x, from_h), s.c);
    case NN_GRU: break;
    }
    return gru_step(from_x, from_h, s.h);
}

/* ---- a sequence --------------------------------------------------------------------------------------------------------------------------- */
/* One direction of one layer: x (length, batch, in) to (length, batch, out); *s is the state, first and last. */
static kn_tensor *run_direction(const Recurrent *self, kn_tensor *const *p, kn_tensor *x, bool reverse, nn_state *s)
{
    int64_t length = kn_size(x, 0);
    kn_tensor *from_x = kn_linear(x, p[0], p[2]), **out = rt_scope_alloc(rt_get(), (size_t)(length + 1) * sizeof *out);
    if (nn_failed(from_x) || !out)
        return out ? from_x : rt_face_failed("recurrent", KN_SITE);
    for (int64_t i = 0; i < length; i++) {
        int64_t t = reverse ? length - 1 - i : i;
        *s = nn_step(self->kind, kn_select(from_x, 0, t), kn_linear(s->h, p[1], p[3]), *s);
        if (p[4])
            s->h = kn_linear(s->h, p[4], NULL);
        out[t] = s->h;
        if (nn_failed(s->h))
            return s->h;
    }
    /* one call takes at most KB_MAX_IN tensors */
    int64_t n = length;
    for (bool first = true; first || n > 1; first = false) {
        int64_t made = 0;
        for (int64_t i = 0; i < n; i += KB_MAX_IN) {
            int64_t k = n - i < KB_MAX_IN ? n - i : KB_MAX_IN;
            out[made++] = first ? kn_stack((size_t)k, out + i, 0) : kn_cat((size_t)k, out + i, 0);
        }
        n = made;
    }
    return out[0];
}

/* Initial states (layers · directions, batch, size): the caller's, or zeros. */
static kn_tensor *initial(const Recurrent *self, kn_value given, kn_tensor *x, int64_t size, bool alone)
{
    int64_t n = self->num_layers * self->directions, batch = kn_size(x, 1);
    if (given.kind == KN_KIND_NONE)
        return nn_zeros_by(x, KN_SHAPE(n, batch, size));
    kn_tensor *h = kn_as_tensor(given);
    if (alone && !nn_failed(h))
        h = kn_unsqueeze(h, 1);
    if (!nn_failed(h) && (kn_rank(h) != 3 || kn_size(h, 0) != n || kn_size(h, 1) != batch || kn_size(h, 2) != size))
        return rt_error_tensorf(KN_E_SHAPE, "recurrent", KN_SITE, "the state must be (%lld, %lld, %lld)", (long long)n, (long long)batch,
                                (long long)size);
    return h;
}

typedef struct sequence { kn_tensor *y, *h, *c; } sequence;

static sequence run(Recurrent *self, kn_tensor *x, kn_tensor *h0, kn_tensor *c0)
{
    kn_tensor *last_h[2 * MAX_LAYERS], *last_c[2 * MAX_LAYERS];
    for (int64_t l = 0, cell = 0; l < self->num_layers; l++) {
        kn_tensor *sides[2];
        for (int64_t d = 0; d < self->directions; d++, cell++) {
            nn_state s = {kn_select(h0, 0, cell), c0 ? kn_select(c0, 0, cell) : NULL};
            sides[d] = run_direction(self, self->params + cell * PER_CELL, x, d == 1, &s);
            last_h[cell] = s.h;
            last_c[cell] = s.c;
        }
        x = self->directions == 2 ? kn_cat(2, sides, -1) : sides[0];
        if (self->dropout > 0 && l + 1 < self->num_layers)
            x = kn_dropout(x, self->dropout, kn_is_training(&self->base));
    }
    size_t n = (size_t)(self->num_layers * self->directions);
    int64_t half = n > KB_MAX_IN ? KB_MAX_IN : (int64_t)n;
    sequence r = {x, kn_stack((size_t)half, last_h, 0), c0 ? kn_stack((size_t)half, last_c, 0) : NULL};
    if (n > (size_t)half) {
        r.h = kn_cat(2, ((kn_tensor *[]){r.h, kn_stack(n - (size_t)half, last_h + half, 0)}), 0);
        r.c = c0 ? kn_cat(2, ((kn_tensor *[]){r.c, kn_stack(n - (size_t)half, last_c + half, 0)}), 0) : NULL;
    }
    return r;
}

static kn_value recurrent_forward(Recurrent *self, kn_tensor *x, kn_value state)
{
    bool lstm = self->kind == NN_LSTM, alone = kn_rank(x) == 2;
    if (nn_failed(x))
        return kn_value_tensor(x);
    if (kn_rank(x) < 2 || kn_rank(x) > 3 || (self->num_layers && kn_size(x, -1) != kn_size(self->params[0], 1)))
        return kn_value_tensor(rt_error_tensorf(KN_E_SHAPE, "recurrent", KN_SITE,
            "the input must have 3 dimensions (2 without a batch), the last of size %lld; it has %d, the last %lld",
            (long long)kn_size(self->params[0], 1), kn_rank(x), (long long)kn_size(x, -1)));
    if (lstm && state.kind != KN_KIND_NONE && (state.kind != KN_KIND_TUPLE || state.count != 2))
        return kn_value_tensor(rt_error_tensorf(KN_E_VALUE, "recurrent", KN_SITE, "the state of an LSTM is a tuple of two tensors, not %s",
                                                rt_value_name(state)));
    kn_tensor *seq = alone ? kn_unsqueeze(x, 1) : self->batch_first ? kn_transpose(x, 0, 1) : x;
    if (kn_size(seq, 0) < 1)
        return kn_value_tensor(rt_error_tensorf(KN_E_SHAPE, "recurrent", KN_SITE, "the sequence is empty"));
    kn_tensor *h0 = initial(self, lstm ? kn_tuple_get(state, 0) : state, seq, self->proj_size ? self->proj_size : self->hidden_size, alone);
    kn_tensor *c0 = lstm ? initial(self, kn_tuple_get(state, 1), seq, self->hidden_size, alone) : NULL;
    if (nn_failed(h0) || (lstm && nn_failed(c0)))
        return kn_value_tensor(nn_failed(h0) ? h0 : c0);
    sequence r = run(self, seq, h0, c0);
    if (nn_failed(r.y))
        return kn_value_tensor(r.y);
    if (alone) {
        r.y = kn_squeeze(r.y, 1);
        r.h = kn_squeeze(r.h, 1);
        r.c = r.c ? kn_squeeze(r.c, 1) : NULL;
    } else if (self->batch_first)
        r.y = kn_transpose(r.y, 0, 1);
    return lstm ? kn_tuple(r.y, kn_tuple(r.h, r.c)) : kn_tuple(r.y, r.h);
}

/* ---- making one --------------------------------------------------------------------------------------------------------------------------------- */
static kn_value thunk(kn_fn fn, void *self, const kn_value *a) { return ((kn_value(*)(Recurrent *, kn_tensor *, kn_value))fn)(self, a[0].as.tensor, a[1]); }

enum { NAME = 32, ATTRS = 5 };
typedef struct block { kn_class c; kn_field fields[]; } block;       /* names lie behind the fields */

/* The class of an RNN with so many cells. NULL when memory is short. */
static block *class_of(const char *name, int64_t layers, int64_t directions)
{
    static const char *const parts[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"};
    static const kn_field attrs[] = {
        KN_ATTR(Recurrent, hidden_size), KN_ATTR(Recurrent, num_layers), KN_ATTR(Recurrent, proj_size), KN_ATTR(Recurrent, dropout),
        KN_ATTR(Recurrent, batch_first)
    };
    size_t n = (size_t)(layers * directions * PER_CELL);
    block *b = kb_calloc(1, sizeof *b + (n + ATTRS + 1) * sizeof *b->fields + n * NAME);
    if (!b)
        return NULL;
    char *names = (char *)(b->fields + n + ATTRS + 1);
    for (size_t i = 0; i < n; i++) {
        size_t cell = i / PER_CELL;
        snprintf(names + i * NAME, NAME, "%s_l%zu%s", parts[i % PER_CELL], cell / (size_t)directions,
                 cell % (size_t)directions ? "_reverse" : "");
        b->fields[i] = (kn_field){names + i * NAME, KN_FIELD_PARAM, (uint32_t)(offsetof(Recurrent, params) + i * sizeof(kn_tensor *)), 0, 0};
    }
    memcpy(b->fields + n, attrs, sizeof attrs);
    b->c = (kn_class){sizeof(kn_class), (uint32_t)(sizeof(Recurrent) + n * sizeof(kn_tensor *)), name, "V(T,V?)", (kn_fn)recurrent_forward, thunk, b->fields, -1, NULL};
    return b;
}

static void fill_params(Recurrent *r, int64_t in, bool bias, kn_dtype d)
{
    int64_t out = r->proj_size ? r->proj_size : r->hidden_size, rows = nn_gates(r->kind) * r->hidden_size;
    double width = r->hidden_size > 0 ? 1 / sqrt((double)r->hidden_size) : 0;
    for (int64_t cell = 0; cell < r->num_layers * r->directions; cell++) {
        kn_tensor **p = r->params + cell * PER_CELL;
        p[0] = nn_uniform(d, KN_SHAPE(rows, cell < r->directions ? in : out * r->directions), width);
        p[1] = nn_uniform(d, KN_SHAPE(rows, out), width);
        p[2] = bias ? nn_uniform(d, KN_SHAPE(rows), width) : NULL;
        p[3] = bias ? nn_uniform(d, KN_SHAPE(rows), width) : NULL;
        p[4] = r->proj_size ? nn_uniform(d, KN_SHAPE(out, r->hidden_size), width) : NULL;
    }
}

static kn_module *make(nn_rnn_kind kind, const char *name, int64_t in, int64_t hidden, const kn_nn_rnn_options *o)
{
    KN_SCOPE;
    int64_t layers = o->num_layers ? o->num_layers : 1, directions = o->bidirectional ? 2 : 1;
    if (in < 1 || hidden < 1 || layers < 1 || layers > MAX_LAYERS || !(o->dropout >= 0 && o->dropout <= 1)) {
        kb_fail(KN_E_VALUE, "%s: input_size %lld, hidden_size %lld, num_layers %lld, dropout %g; sizes must be positive, layers at most %d, dropout between 0 and 1", name,
            (long long)in, (long long)hidden, (long long)layers, o->dropout, MAX_LAYERS);
        return NULL;
    }
    if (o->proj_size && (kind != NN_LSTM || o->proj_size < 0 || o->proj_size >= hidden)) {
        kb_fail(KN_E_VALUE, "%s: proj_size is %lld; an LSTM takes one from 0 to less than hidden_size (%lld)", name,
                (long long)o->proj_size, (long long)hidden);
        return NULL;
    }
    block *b = class_of(name, layers, directions);
    Recurrent *init = b ? kb_calloc(1, b->c.size) : NULL;
    if (!init) {
        kb_free(b);
        return NULL;
    }
    *init = (Recurrent){.hidden_size = hidden, .num_layers = layers, .directions = directions, .proj_size = o->proj_size, .dropout = o->dropout,
        .batch_first = o->batch_first, .kind = kind};
    fill_params(init, in, !o->no_bias, nn_dtype(o->dtype));
    kn_module *m = rt_new_of_block(&b->c, init, KN_SITE);
    kb_free(init);
    return m;
}

static bool nonlinearity(const char *given, const char *name, nn_rnn_kind *kind)
{
    static const char *const words[] = {"tanh", "relu", NULL};
    const char *w = nn_word(given, words, name, "nonlinearity");
    *kind = w == words[1] ? NN_RNN_RELU : NN_RNN_TANH;
    return w != NULL;
}

static kn_module *make_checked(nn_rnn_kind kind, const char *name, int64_t in, int64_t hidden, const kn_nn_rnn_options *given, size_t size)
{
    kn_nn_rnn_options known;
    const kn_nn_rnn_options *o = rt_options(given, size, &known, sizeof known);
    if (!o || (kind == NN_RNN_TANH && !nonlinearity(o->nonlinearity, name, &kind)))
        return NULL;
    return make(kind, name, in, hidden, o);
}

kn_module *(kn_nn_rnn)(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t size) { return make_checked(NN_RNN_TANH, "RNN", in, hidden, o, size); }
kn_module *(kn_nn_lstm)(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t size) { return make_checked(NN_LSTM, "LSTM", in, hidden, o, size); }
kn_module *(kn_nn_gru)(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t size) { return make_checked(NN_GRU, "GRU", in, hidden, o, size); }

kn_module *nn_new_RNN(const kn_value *a)
{
    return kn_nn_rnn(a[0].as.i, a[1].as.i, .num_layers = a[2].as.i, .nonlinearity = a[3].as.string, .no_bias = !a[4].as.i,
                     .batch_first = a[5].as.i, .dropout = a[6].as.d, .bidirectional = a[7].as.i, .dtype = (kn_dtype)a[8].as.i);
}

kn_module *nn_new_LSTM(const kn_value *a)
{
    return kn_nn_lstm(a[0].as.i, a[1].as.i, .num_layers = a[2].as.i, .no_bias = !a[3].as.i, .batch_first = a[4].as.i, .dropout = a[5].as.d,
        .bidirectional = a[6].as.i, .proj_size = a[7].as.i, .dtype = (kn_dtype)a[8].as.i);
}

kn_module *nn_new_GRU(const kn_value *a)
{
    return kn_nn_gru(a[0].as.i, a[1].as.i, .num_layers = a[2].as.i, .no_bias = !a[3].as.i, .batch_first = a[4].as.i, .dropout = a[5].as.d,
        .bidirectional = a[6].as.i, .dtype = (kn_dtype)a[7].as.i);
}
