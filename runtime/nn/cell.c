/* cell.c: RNNCell, LSTMCell and GRUCell: one step of a recurrent layer, x (batch, in) or (in). */
#define KN_SITE "nn.Cell"
#include "runtime/nn/recurrent.h"
#include <math.h>

typedef struct Cell { kn_module base; kn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh; int64_t hidden_size; nn_rnn_kind kind; } Cell;
typedef Cell RNNCell;
typedef Cell LSTMCell;
typedef Cell GRUCell;

static kn_tensor *part(const Cell *self, kn_tensor *x, kn_value given, bool alone)
{
    if (given.kind == KN_KIND_NONE)
        return nn_zeros_by(x, KN_SHAPE(kn_size(x, 0), self->hidden_size));
    kn_tensor *h = kn_as_tensor(given);
    return alone && !nn_failed(h) ? kn_unsqueeze(h, 0) : h;
}

static kn_value cell_forward(Cell *self, kn_tensor *x, kn_value state)
{
    bool lstm = self->kind == NN_LSTM, alone = kn_rank(x) == 1;
    if (nn_failed(x))
        return kn_value_tensor(x);
    if (kn_rank(x) < 1 || kn_rank(x) > 2)
        return kn_value_tensor(rt_error_tensorf(KN_E_SHAPE, "cell", KN_SITE, "the input must have 1 or 2 dimensions, not %d", kn_rank(x)));
    if (lstm && state.kind != KN_KIND_NONE && (state.kind != KN_KIND_TUPLE || state.count != 2))
        return kn_value_tensor(rt_error_tensorf(KN_E_VALUE, "cell", KN_SITE, "the state of an LSTMCell is a tuple of two tensors, not %s",
                                                rt_value_name(state)));
    x = alone ? kn_unsqueeze(x, 0) : x;
    nn_state s = {part(self, x, lstm ? kn_tuple_get(state, 0) : state, alone), lstm ? part(self, x, kn_tuple_get(state, 1), alone) : NULL};
    s = nn_step(self->kind, kn_linear(x, self->weight_ih, self->bias_ih), kn_linear(s.h, self->weight_hh, self->bias_hh), s);
    if (alone) {
        s.h = kn_squeeze(s.h, 0);
        s.c = s.c ? kn_squeeze(s.c, 0) : NULL;
    }
    return lstm && !nn_failed(s.h) ? kn_tuple(s.h, s.c) : kn_value_tensor(s.h);
}

static const kn_field cell_fields[] = {
    KN_PARAM(Cell, weight_ih), KN_PARAM(Cell, weight_hh), KN_PARAM(Cell, bias_ih), KN_PARAM(Cell, bias_hh), KN_ATTR(Cell, hidden_size), KN_FIELDS_END
};
KN_DEFINE_CLASS(rnn_cell_class, RNNCell, cell_forward, cell_fields, value, (tensor, any));
KN_DEFINE_CLASS(lstm_cell_class, LSTMCell, cell_forward, cell_fields, value, (tensor, any));
KN_DEFINE_CLASS(gru_cell_class, GRUCell, cell_forward, cell_fields, value, (tensor, any));

static kn_module *make(nn_rnn_kind kind, const kn_class *c, int64_t in, int64_t hidden, const kn_nn_rnn_options *given, size_t size)
{
    KN_SCOPE;
    static const char *const words[] = {"tanh", "relu", NULL};
    kn_nn_rnn_options known;
    const kn_nn_rnn_options *o = rt_options(given, size, &known, sizeof known);
    const char *w = o ? nn_word(kind == NN_RNN_TANH ? o->nonlinearity : NULL, words, c->name, "nonlinearity") : NULL;
    if (!w)
        return NULL;
    int64_t rows = nn_gates(kind) * hidden;
    double width = hidden > 0 ? 1 / sqrt((double)hidden) : 0;
    kn_dtype d = nn_dtype(o->dtype);
    kn_tensor *ih = nn_uniform(d, KN_SHAPE(rows, in), width), *hh = nn_uniform(d, KN_SHAPE(rows, hidden), width);
    return KN_BASE(kn_new(Cell, c, .kind = w == words[1] ? NN_RNN_RELU : kind, .hidden_size = hidden, .weight_ih = ih, .weight_hh = hh,
        .bias_ih = o->no_bias ? NULL : nn_uniform(d, KN_SHAPE(rows), width), .bias_hh = o->no_bias ? NULL : nn_uniform(d, KN_SHAPE(rows), width)));
}

kn_module *(kn_nn_rnn_cell)(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t size) { return make(NN_RNN_TANH, &rnn_cell_class, in, hidden, o, size); }
kn_module *(kn_nn_lstm_cell)(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t size) { return make(NN_LSTM, &lstm_cell_class, in, hidden, o, size); }
kn_module *(kn_nn_gru_cell)(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t size) { return make(NN_GRU, &gru_cell_class, in, hidden, o, size); }

kn_module *nn_new_RNNCell(const kn_value *a)
{
    return kn_nn_rnn_cell(a[0].as.i, a[1].as.i, .no_bias = !a[2].as.i, .nonlinearity = a[3].as.string, .dtype = (kn_dtype)a[4].as.i);
}
kn_module *nn_new_LSTMCell(const kn_value *a) { return kn_nn_lstm_cell(a[0].as.i, a[1].as.i, .no_bias = !a[2].as.i, .dtype = (kn_dtype)a[3].as.i); }
kn_module *nn_new_GRUCell(const kn_value *a) { return kn_nn_gru_cell(a[0].as.i, a[1].as.i, .no_bias = !a[2].as.i, .dtype = (kn_dtype)a[3].as.i); }
