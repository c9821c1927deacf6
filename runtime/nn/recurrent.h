/* recurrent.h: one step of each recurrent kind, shared by the layers (recurrent.c) and the cells (cell.c). */
#ifndef NN_RECURRENT_H
#define NN_RECURRENT_H
#include "runtime/nn/nn.h"

typedef enum nn_rnn_kind { NN_RNN_TANH, NN_RNN_RELU, NN_LSTM, NN_GRU } nn_rnn_kind;
static inline int nn_gates(nn_rnn_kind k) { return k == NN_LSTM ? 4 : k == NN_GRU ? 3 : 1; }

/* A state: h, and c of an LSTM alone. */
typedef struct nn_state { kn_tensor *h, *c; } nn_state;

/* from_x: x · W_ihᵀ + b_ih of this step, (batch, gates · hidden); from_h the same of the state. */
nn_state nn_step(nn_rnn_kind kind, kn_tensor *from_x, kn_tensor *from_h, nn_state s);

#endif
