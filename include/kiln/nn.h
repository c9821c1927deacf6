/* nn.h: modules with PyTorch's names, arguments and state dicts. Part of kiln.h, which has the first of them (linear, layer_norm,
 * embedding …).
 *
 * What PyTorch requires stands first, the rest are options; an option left out (0, NULL, none) has PyTorch's default. A flag whose default
 * is True is named for its opposite: no_bias, no_affine. Weights start as PyTorch's do, from the seeded generator. Sizes per dimension are
 * arrays, .stride = {2, 2}; a one-dimensional module takes the first.
 * Every constructor gives NULL on failure, with the sentence in kn_last_error. Modules, tensors and strings given are taken, retained or
 * copied.
 */
#ifndef KILN_NN_H
#define KILN_NN_H
#include <kiln/kiln.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- by name: for bindings, tools, tests -----------------------------------------------------------------------------------------------
 * Positional arguments, then at most one dict of PyTorch's keyword names; lists are tuples, dtypes strings ("f32"), modules are taken. */
KN_API kn_module  *kn_nn_new(const char *class_name, size_t n, const kn_value *args);
KN_API const char *kn_nn_class_name(size_t i);                  /* in table order; NULL past the end */
/* "i in_features, i out_features, b bias=1": i int, f double, b bool, s string, d dtype, I list of ints (one int stands for all), v any
 * value; NULL where unknown. */
KN_API const char *kn_nn_schema(const char *class_name);
KN_API const char *kn_nn_arguments(const char *class_name);     /* names of forward's arguments, "query, key, value, key_padding_mask …" */

/* ---- initialisers: write t, which they return -------------------------------------------------------------------------------------------- */
typedef struct kn_init_options kn_init_options;
/* mode "fan_in" (default) or "fan_out"; nonlinearity "leaky_relu" (default, with slope a), "relu", "tanh", "sigmoid", "linear", "selu". */
struct kn_init_options { const kn_init_options *base; char end_; double a; const char *mode, *nonlinearity; };
KN_API kn_tensor *kn_init_uniform_(kn_tensor *t, double low, double high, const char *site);
KN_API kn_tensor *kn_init_normal_(kn_tensor *t, double mean, double std, const char *site);
KN_API kn_tensor *kn_init_constant_(kn_tensor *t, double value, const char *site);
KN_API kn_tensor *kn_init_xavier_uniform_(kn_tensor *t, double gain, const char *site);
KN_API kn_tensor *kn_init_xavier_normal_(kn_tensor *t, double gain, const char *site);
KN_API kn_tensor *kn_init_kaiming_uniform_(kn_tensor *t, const kn_init_options *o, size_t o_size, const char *site);
KN_API kn_tensor *kn_init_kaiming_normal_(kn_tensor *t, const kn_init_options *o, size_t o_size, const char *site);

/* ---- products and convolutions ----------------------------------------------------------------------------------------------------------- */
KN_API kn_module *kn_nn_bilinear(int64_t in1, int64_t in2, int64_t out, const kn_nn_linear_options *o, size_t o_size);
typedef struct kn_nn_conv_options kn_nn_conv_options;
/* kernel_size: where the dimensions differ; `kernel` is then 0. same: padding='same'. padding_mode: zeros, reflect, replicate, circular.
 * output_padding:
 * of transposed ones alone. */
struct kn_nn_conv_options {
    const kn_nn_conv_options *base; char end_;
    int64_t kernel_size[2], stride[2], padding[2], output_padding[2], dilation[2], groups;
    bool same, no_bias; const char *padding_mode; kn_dtype dtype;
};
KN_API kn_module *kn_nn_conv1d(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t o_size);
KN_API kn_module *kn_nn_conv2d(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t o_size);
KN_API kn_module *kn_nn_conv_transpose1d(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t o_size);
KN_API kn_module *kn_nn_conv_transpose2d(int64_t in, int64_t out, int64_t kernel, const kn_nn_conv_options *o, size_t o_size);

/* ---- normalisation ------------------------------------------------------------------------------------------------------------------------- */
typedef struct kn_nn_norm_options kn_nn_norm_options;
/* eps 0: 1e-5; momentum 0: 0.1; cumulative: momentum=None, a plain average (a host read in each training call); no_tracking:
 * track_running_stats=False; affine,
 * tracking: of instance norms, whose defaults are False. */
struct kn_nn_norm_options { const kn_nn_norm_options *base; char end_; double eps, momentum; bool cumulative, no_affine, affine, no_tracking, tracking; kn_dtype dtype; };
KN_API kn_module *kn_nn_batch_norm1d(int64_t features, const kn_nn_norm_options *o, size_t o_size);
KN_API kn_module *kn_nn_batch_norm2d(int64_t features, const kn_nn_norm_options *o, size_t o_size);
KN_API kn_module *kn_nn_instance_norm1d(int64_t features, const kn_nn_norm_options *o, size_t o_size);
KN_API kn_module *kn_nn_instance_norm2d(int64_t features, const kn_nn_norm_options *o, size_t o_size);
KN_API kn_module *kn_nn_group_norm(int64_t groups, int64_t channels, const kn_nn_norm_options *o, size_t o_size);
KN_API kn_module *kn_nn_rms_norm(int64_t dim, const kn_nn_layer_norm_options *o, size_t o_size);     /* eps 0: the dtype's epsilon */

/* ---- pooling and resizing ---------------------------------------------------------------------------------------------------------------------- */
typedef struct kn_nn_pool_options kn_nn_pool_options;
/* stride 0: the kernel's size. no_pad_count: count_include_pad=False; dilation: of max pooling alone. */
struct kn_nn_pool_options {
    const kn_nn_pool_options *base; char end_;
    int64_t kernel_size[2], stride[2], padding[2], dilation[2], divisor_override; bool ceil_mode, no_pad_count;
};
KN_API kn_module *kn_nn_max_pool1d(int64_t kernel, const kn_nn_pool_options *o, size_t o_size);
KN_API kn_module *kn_nn_max_pool2d(int64_t kernel, const kn_nn_pool_options *o, size_t o_size);
KN_API kn_module *kn_nn_avg_pool1d(int64_t kernel, const kn_nn_pool_options *o, size_t o_size);
KN_API kn_module *kn_nn_avg_pool2d(int64_t kernel, const kn_nn_pool_options *o, size_t o_size);
KN_API kn_module *kn_nn_adaptive_avg_pool1d(int64_t length);
KN_API kn_module *kn_nn_adaptive_avg_pool2d(int64_t height, int64_t width);
KN_API kn_module *kn_nn_adaptive_max_pool2d(int64_t height, int64_t width);
typedef struct kn_nn_upsample_options kn_nn_upsample_options;
/* Either size or scale_factor; size × factor must be whole. mode: nearest (default), linear, bilinear. */
struct kn_nn_upsample_options { const kn_nn_upsample_options *base; char end_; int64_t size[2]; double scale_factor[2]; const char *mode; bool align_corners; };
KN_API kn_module *kn_nn_upsample(const kn_nn_upsample_options *o, size_t o_size);

/* ---- activations ---------------------------------------------------------------------------------------------------------------------------------- */
KN_API kn_module *kn_nn_relu6(void);
KN_API kn_module *kn_nn_selu(void);
KN_API kn_module *kn_nn_mish(void);
KN_API kn_module *kn_nn_softsign(void);
KN_API kn_module *kn_nn_log_sigmoid(void);
KN_API kn_module *kn_nn_hardswish(void);
KN_API kn_module *kn_nn_hardsigmoid(void);
KN_API kn_module *kn_nn_tanhshrink(void);
KN_API kn_module *kn_nn_leaky_relu(double negative_slope);      /* PyTorch's default is 0.01 */
KN_API kn_module *kn_nn_elu(double alpha);                      /* 1 */
KN_API kn_module *kn_nn_celu(double alpha);                     /* 1 */
KN_API kn_module *kn_nn_softplus(double beta, double threshold);        /* 1, 20 */
KN_API kn_module *kn_nn_hardtanh(double min_val, double max_val);       /* -1, 1 */
KN_API kn_module *kn_nn_threshold(double threshold, double value);
KN_API kn_module *kn_nn_prelu(int64_t parameters, double init);         /* 1, 0.25 */
KN_API kn_module *kn_nn_log_softmax(int dim);
KN_API kn_module *kn_nn_softmin(int dim);
KN_API kn_module *kn_nn_glu(int dim);                           /* -1 */
KN_API kn_module *kn_nn_dropout1d(double p);                    /* drops whole channels of (N, C, L) or (C, L) */
KN_API kn_module *kn_nn_dropout2d(double p);                    /* of (N, C, H, W) */

/* ---- shapes -------------------------------------------------------------------------------------------------------------------------------------------- */
KN_API kn_module *kn_nn_unflatten(int dim, kn_shape sizes);
KN_API kn_module *kn_nn_pixel_shuffle(int64_t factor);
KN_API kn_module *kn_nn_pixel_unshuffle(int64_t factor);
/* pad: left, right (, top, bottom); mode: constant, reflect, replicate, circular. */
KN_API kn_module *kn_nn_pad1d(kn_shape pad, const char *mode, double value);
KN_API kn_module *kn_nn_pad2d(kn_shape pad, const char *mode, double value);
KN_API kn_module *kn_nn_module_dict(size_t n, const char *const *names, kn_module *const *children);  /* holds them as "name"; can't be called */

/* ---- attention ------------------------------------------------------------------------------------------------------------------------------------------ */
typedef struct kn_nn_attention_options kn_nn_attention_options;
struct kn_nn_attention_options {
    const kn_nn_attention_options *base; char end_;
    int64_t kdim, vdim; double dropout; bool no_bias, batch_first, add_bias_kv, add_zero_attn; kn_dtype dtype;
};
/* forward(query, key, value, key_padding_mask?, need_weights = true, attn_mask?, average_attn_weights = true, is_causal = false) gives a
 * tuple: output, and weights or none. Masks: bool, true where a key is left out; or floats, added. is_causal is a hint and needs
 * attn_mask. */
KN_API kn_module *kn_nn_multihead_attention(int64_t embed_dim, int64_t num_heads, const kn_nn_attention_options *o, size_t o_size);
typedef struct kn_nn_transformer_options kn_nn_transformer_options;
/* dim_feedforward 0: 2048; dropout 0: 0.1, unless no_dropout; activation: relu (default) or gelu; norm: of an encoder, after its last
 * layer; taken. */
struct kn_nn_transformer_options {
    const kn_nn_transformer_options *base; char end_;
    int64_t dim_feedforward; double dropout, layer_norm_eps; const char *activation;
    bool no_dropout, no_bias, batch_first, norm_first; kn_dtype dtype; kn_module *norm;
};
/* forward(src, src_mask?, src_key_padding_mask?, is_causal = false) */
KN_API kn_module *kn_nn_transformer_encoder_layer(int64_t d_model, int64_t nhead, const kn_nn_transformer_options *o, size_t o_size);
/* Layers made alike; forward(src, mask?, src_key_padding_mask?, is_causal = false) */
KN_API kn_module *kn_nn_transformer_encoder(int64_t d_model, int64_t nhead, int64_t layers, const kn_nn_transformer_options *o,
                                            size_t o_size);
/* forward(tgt, memory, tgt_mask?, memory_mask?, tgt_key_padding_mask?, memory_key_padding_mask?) */
KN_API kn_module *kn_nn_transformer_decoder_layer(int64_t d_model, int64_t nhead, const kn_nn_transformer_options *o, size_t o_size);

/* ---- recurrent ---------------------------------------------------------------------------------------------------------------------------------------------
 * forward(x, state?): x (length, batch, in), or with batch_first (batch, length, in), or (length, in). Gives a tuple: output, last state. LSTM's state is a tuple (h, c). */
typedef struct kn_nn_rnn_options kn_nn_rnn_options;
/* num_layers 0: 1; nonlinearity of RNN: tanh (default) or relu; proj_size of LSTM. */
struct kn_nn_rnn_options {
    const kn_nn_rnn_options *base; char end_;
    int64_t num_layers, proj_size; double dropout; bool no_bias, batch_first, bidirectional; const char *nonlinearity; kn_dtype dtype;
};
KN_API kn_module *kn_nn_rnn(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t o_size);
KN_API kn_module *kn_nn_lstm(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t o_size);
KN_API kn_module *kn_nn_gru(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t o_size);
/* One step: forward(x, state?) gives the next state; of LSTM a tuple (h, c). */
KN_API kn_module *kn_nn_rnn_cell(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t o_size);
KN_API kn_module *kn_nn_lstm_cell(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t o_size);
KN_API kn_module *kn_nn_gru_cell(int64_t in, int64_t hidden, const kn_nn_rnn_options *o, size_t o_size);

/* ---- losses: forward(input, target) ------------------------------------------------------------------------------------------------------------------------- */
typedef struct kn_nn_loss_options kn_nn_loss_options;
/* reduction: mean (default), sum, none, of kl_div also batchmean. ignore_index none: -100; beta and delta none: 1. */
struct kn_nn_loss_options {
    const kn_nn_loss_options *base; char end_;
    const char *reduction; kn_tensor *weight, *pos_weight; kn_value ignore_index, beta, delta; double label_smoothing; bool log_target;
};
KN_API kn_module *kn_nn_mse_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_l1_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_smooth_l1_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_huber_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_kl_div_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_bce_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_bce_with_logits_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_cross_entropy_loss(const kn_nn_loss_options *o, size_t o_size);
KN_API kn_module *kn_nn_nll_loss(const kn_nn_loss_options *o, size_t o_size);

/* ---- low-precision weights -----------------------------------------------------------------------------------------------------------------------------------
 * Exchanges the f32 weights of every Linear in m's tree, and of MultiheadAttention's projections, for bf16 ones (each rounded to nearest even) or i8 ones with a
 * scale for each output (largest magnitude over 127; the buffer "<weight>_scale"). Inputs, sums, biases and results stay f32: only the weights' bytes shrink, to
 * a half or a quarter, and with them the time of products that read every weight for a row or few. Eager and compiled calls give equal bits; a compiled
 * module notices at its next call. There is no way back. The state dict holds the new tensors under the old names (and each scale): it is saved and loaded like
 * any other, into modules that were quantized alike; one of f32 doesn't fit any longer: load it first. All or nothing: KN_E_VALUE where there is no such weight
 * or one isn't finite. */
KN_API kn_status  kn_quantize_weights(kn_module *m, kn_dtype dtype /* KN_BF16, KN_I8 */);

/* ---- what a module costs ------------------------------------------------------------------------------------------------------------------------------------------
 * Calls m once, eagerly, and prints a table to f: a line a module in the order of its tree (path, class, output shape, own parameters, FLOPs, activation
 * bytes), then totals. A multiplication and an addition are two FLOPs; linear, convolutions, matmul and attention count. Activation bytes are the results of
 * a module's operators, those of its children included, views left out. */
KN_API kn_status  kn_summary(kn_module *m, FILE *f, size_t n, const kn_value *args, const char *site);

#ifdef __cplusplus
}   /* extern "C" */
#endif

#define kn_init_uniform_(t, low, high) (kn_init_uniform_)(t, low, high, KN_SITE)
#define kn_init_normal_(t, mean, std) (kn_init_normal_)(t, mean, std, KN_SITE)
#define kn_init_constant_(t, value) (kn_init_constant_)(t, value, KN_SITE)
#define kn_init_xavier_uniform_(t, gain) (kn_init_xavier_uniform_)(t, gain, KN_SITE)
#define kn_init_xavier_normal_(t, gain) (kn_init_xavier_normal_)(t, gain, KN_SITE)
#define kn_nn_new(...) (kn_nn_new)(KN_FIRST_AND_BOXES_(__VA_ARGS__))           /* (class, 0 to 8 arguments) */
#ifndef __cplusplus
/* Options alone: the list may be empty. */
#define KN_OPT0_(f, type, ...) f(&(const type){.end_ = 0, __VA_ARGS__}, sizeof(type))
#define kn_init_kaiming_uniform_(...) KN_OPT1_((kn_init_kaiming_uniform_), kn_init_options, __VA_ARGS__, .end_ = 0), KN_SITE)
#define kn_init_kaiming_normal_(...) KN_OPT1_((kn_init_kaiming_normal_), kn_init_options, __VA_ARGS__, .end_ = 0), KN_SITE)
#define kn_nn_bilinear(...) KN_OPT3_((kn_nn_bilinear), kn_nn_linear_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_conv1d(...) KN_OPT3_((kn_nn_conv1d), kn_nn_conv_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_conv2d(...) KN_OPT3_((kn_nn_conv2d), kn_nn_conv_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_conv_transpose1d(...) KN_OPT3_((kn_nn_conv_transpose1d), kn_nn_conv_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_conv_transpose2d(...) KN_OPT3_((kn_nn_conv_transpose2d), kn_nn_conv_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_batch_norm1d(...) KN_OPT1_((kn_nn_batch_norm1d), kn_nn_norm_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_batch_norm2d(...) KN_OPT1_((kn_nn_batch_norm2d), kn_nn_norm_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_instance_norm1d(...) KN_OPT1_((kn_nn_instance_norm1d), kn_nn_norm_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_instance_norm2d(...) KN_OPT1_((kn_nn_instance_norm2d), kn_nn_norm_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_group_norm(...) KN_OPT2_((kn_nn_group_norm), kn_nn_norm_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_rms_norm(...) KN_OPT1_((kn_nn_rms_norm), kn_nn_layer_norm_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_max_pool1d(...) KN_OPT1_((kn_nn_max_pool1d), kn_nn_pool_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_max_pool2d(...) KN_OPT1_((kn_nn_max_pool2d), kn_nn_pool_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_avg_pool1d(...) KN_OPT1_((kn_nn_avg_pool1d), kn_nn_pool_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_avg_pool2d(...) KN_OPT1_((kn_nn_avg_pool2d), kn_nn_pool_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_upsample(...) KN_OPT0_((kn_nn_upsample), kn_nn_upsample_options, __VA_ARGS__)
#define kn_nn_multihead_attention(...) KN_OPT2_((kn_nn_multihead_attention), kn_nn_attention_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_transformer_encoder_layer(...) KN_OPT2_((kn_nn_transformer_encoder_layer), kn_nn_transformer_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_transformer_encoder(...) KN_OPT3_((kn_nn_transformer_encoder), kn_nn_transformer_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_transformer_decoder_layer(...) KN_OPT2_((kn_nn_transformer_decoder_layer), kn_nn_transformer_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_rnn(...) KN_OPT2_((kn_nn_rnn), kn_nn_rnn_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_lstm(...) KN_OPT2_((kn_nn_lstm), kn_nn_rnn_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_gru(...) KN_OPT2_((kn_nn_gru), kn_nn_rnn_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_rnn_cell(...) KN_OPT2_((kn_nn_rnn_cell), kn_nn_rnn_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_lstm_cell(...) KN_OPT2_((kn_nn_lstm_cell), kn_nn_rnn_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_gru_cell(...) KN_OPT2_((kn_nn_gru_cell), kn_nn_rnn_options, __VA_ARGS__, .end_ = 0))
#define kn_nn_mse_loss(...) KN_OPT0_((kn_nn_mse_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_l1_loss(...) KN_OPT0_((kn_nn_l1_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_smooth_l1_loss(...) KN_OPT0_((kn_nn_smooth_l1_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_huber_loss(...) KN_OPT0_((kn_nn_huber_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_kl_div_loss(...) KN_OPT0_((kn_nn_kl_div_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_bce_loss(...) KN_OPT0_((kn_nn_bce_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_bce_with_logits_loss(...) KN_OPT0_((kn_nn_bce_with_logits_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_cross_entropy_loss(...) KN_OPT0_((kn_nn_cross_entropy_loss), kn_nn_loss_options, __VA_ARGS__)
#define kn_nn_nll_loss(...) KN_OPT0_((kn_nn_nll_loss), kn_nn_loss_options, __VA_ARGS__)
/* (module, file, 0 to 7 arguments) */
#define kn_summary(m, ...) kn_summary_(m, __VA_ARGS__)
#define kn_summary_(m, ...) (kn_summary)(m, KN_FIRST_AND_BOXES_(__VA_ARGS__), KN_SITE)
#else
#define KN_CXX_OPTIONS1_(f, options, A, a) inline kn_module *f(A a, const options &o = {}) { return (f)(a, &o, sizeof o); }
#define KN_CXX_OPTIONS2_(f, options) inline kn_module *f(int64_t a, int64_t b, const options &o = {}) { return (f)(a, b, &o, sizeof o); }
#define KN_CXX_OPTIONS3_(f, options) inline kn_module *f(int64_t a, int64_t b, int64_t c, const options &o = {}) { return (f)(a, b, c, &o, sizeof o); }
#define KN_CXX_OPTIONS0_(f, options) inline kn_module *f(const options &o = {}) { return (f)(&o, sizeof o); }
KN_CXX_OPTIONS3_(kn_nn_bilinear, kn_nn_linear_options)
KN_CXX_OPTIONS3_(kn_nn_conv1d, kn_nn_conv_options)
KN_CXX_OPTIONS3_(kn_nn_conv2d, kn_nn_conv_options)
KN_CXX_OPTIONS3_(kn_nn_conv_transpose1d, kn_nn_conv_options)
KN_CXX_OPTIONS3_(kn_nn_conv_transpose2d, kn_nn_conv_options)
KN_CXX_OPTIONS1_(kn_nn_batch_norm1d, kn_nn_norm_options, int64_t, features)
KN_CXX_OPTIONS1_(kn_nn_batch_norm2d, kn_nn_norm_options, int64_t, features)
KN_CXX_OPTIONS1_(kn_nn_instance_norm1d, kn_nn_norm_options, int64_t, features)
KN_CXX_OPTIONS1_(kn_nn_instance_norm2d, kn_nn_norm_options, int64_t, features)
KN_CXX_OPTIONS2_(kn_nn_group_norm, kn_nn_norm_options)
KN_CXX_OPTIONS1_(kn_nn_rms_norm, kn_nn_layer_norm_options, int64_t, dim)
KN_CXX_OPTIONS1_(kn_nn_max_pool1d, kn_nn_pool_options, int64_t, kernel)
KN_CXX_OPTIONS1_(kn_nn_max_pool2d, kn_nn_pool_options, int64_t, kernel)
KN_CXX_OPTIONS1_(kn_nn_avg_pool1d, kn_nn_pool_options, int64_t, kernel)
KN_CXX_OPTIONS1_(kn_nn_avg_pool2d, kn_nn_pool_options, int64_t, kernel)
KN_CXX_OPTIONS0_(kn_nn_upsample, kn_nn_upsample_options)
KN_CXX_OPTIONS2_(kn_nn_multihead_attention, kn_nn_attention_options)
KN_CXX_OPTIONS2_(kn_nn_transformer_encoder_layer, kn_nn_transformer_options)
KN_CXX_OPTIONS3_(kn_nn_transformer_encoder, kn_nn_transformer_options)
KN_CXX_OPTIONS2_(kn_nn_transformer_decoder_layer, kn_nn_transformer_options)
KN_CXX_OPTIONS2_(kn_nn_rnn, kn_nn_rnn_options)
KN_CXX_OPTIONS2_(kn_nn_lstm, kn_nn_rnn_options)
KN_CXX_OPTIONS2_(kn_nn_gru, kn_nn_rnn_options)
KN_CXX_OPTIONS2_(kn_nn_rnn_cell, kn_nn_rnn_options)
KN_CXX_OPTIONS2_(kn_nn_lstm_cell, kn_nn_rnn_options)
KN_CXX_OPTIONS2_(kn_nn_gru_cell, kn_nn_rnn_options)
KN_CXX_OPTIONS0_(kn_nn_mse_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_l1_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_smooth_l1_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_huber_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_kl_div_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_bce_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_bce_with_logits_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_cross_entropy_loss, kn_nn_loss_options)
KN_CXX_OPTIONS0_(kn_nn_nll_loss, kn_nn_loss_options)
inline kn_tensor *kn_init_kaiming_uniform_(kn_tensor *t, const kn_init_options &o = {}) { return (kn_init_kaiming_uniform_)(t, &o, sizeof o, nullptr); }
inline kn_tensor *kn_init_kaiming_normal_(kn_tensor *t, const kn_init_options &o = {}) { return (kn_init_kaiming_normal_)(t, &o, sizeof o, nullptr); }
#endif
#endif
