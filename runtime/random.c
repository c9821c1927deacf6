/* random.c: generators, and the faces of random operators.
 *
 * A generator is a Philox key and a counter. An op reserves the counters that it needs when it is called, and gets seed and offset as its
 * last two operands:
 * run-time values, so replayed and compiled calls draw what eager draws, and what is computed again draws the same again (CAPTURE 19).
 */
#include "base/philox.h"
#include "runtime/face.h"
#include <pthread.h>
#include <stdatomic.h>

struct kn_generator {
    pthread_mutex_t lock;                       /* of the state */
    kn_generator_state state;
    _Atomic int64_t count;                      /* its maker and the threads that use it */
};

static kn_generator default_generator = {.lock = PTHREAD_MUTEX_INITIALIZER, .count = 1};

/* ---- generators ----------------------------------------------------------------------------------------------------------------- */
kn_generator *kn_generator_new(uint64_t seed)
{
    kn_generator *g = kb_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    pthread_mutex_init(&g->lock, NULL);
    g->state.seed = seed;
    g->count = 1;
    return g;
}

void rt_generator_release(kn_generator *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->count, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&g->lock);
    kb_free(g);
}

void kn_generator_free(kn_generator *g) { rt_generator_release(g); }

kn_status kn_generator_get_state(const kn_generator *g, kn_generator_state *out)
{
    kn_generator *own = g ? (kn_generator *)g : &default_generator;
    if (!out)
        return kb_fail(KN_E_VALUE, "kn_generator_get_state: the result's place is NULL");
    pthread_mutex_lock(&own->lock);
    *out = own->state;
    pthread_mutex_unlock(&own->lock);
    return KN_OK;
}

kn_status kn_generator_set_state(kn_generator *g, kn_generator_state s)
{
    if (!g)
        g = &default_generator;
    pthread_mutex_lock(&g->lock);
    g->state = s;
    pthread_mutex_unlock(&g->lock);
    return KN_OK;
}

void kn_manual_seed(uint64_t seed) { kn_generator_set_state(NULL, (kn_generator_state){seed, 0}); }

/* What a scope puts back when it closes. */
typedef struct used { rt_undo undo; rt_ctx *ctx; kn_generator *before; } used;

static void put_back(rt_undo *u)
{
    used *w = (used *)u;
    rt_generator_release(w->ctx->generator);
    w->ctx->generator = w->before;              /* with its count */
}

kn_status kn_generator_use(kn_generator *g)
{
    rt_ctx *ctx = rt_get();
    used *w = ctx && ctx->n_scopes ? rt_scope_undo(ctx, sizeof *w, put_back) : NULL;
    if (!ctx || (ctx->n_scopes && !w))
        return kb_fail(KN_E_MEMORY, "kn_generator_use: out of memory");
    if (w) {
        w->ctx = ctx;
        w->before = ctx->generator;
    } else
        rt_generator_release(ctx->generator);
    if (g)
        atomic_fetch_add_explicit(&g->count, 1, memory_order_relaxed);
    ctx->generator = g;
    return KN_OK;
}

void rt_rng_give_back(rt_ctx *ctx, int64_t seed, int64_t counters)
{
    kn_generator *tried[] = {ctx->generator, &default_generator};
    for (int i = 0; i < 2; i++) {
        kn_generator *g = tried[i];
        if (!g)
            continue;
        pthread_mutex_lock(&g->lock);
        bool found = g->state.seed == (uint64_t)seed && g->state.next >= (uint64_t)counters;
        g->state.next -= found ? (uint64_t)counters : 0;
        pthread_mutex_unlock(&g->lock);
        if (found)
            return;
    }
}

/* Elements of a list of sizes; 0 where inference will say what is wrong. */
static int64_t elements(const int64_t *list)
{
    int64_t n = 1;
    for (int64_t i = 0; i < list[0]; i++)
        if (list[1 + i] < 0 || __builtin_mul_overflow(n, list[1 + i], &n))
            return 0;
    return n;
}

int64_t rt_rng_counters(kb_opcode op, const kb_layout *x, const int64_t *words)
{
    const kb_opinfo *o = kb_op_info(op);
    int64_t n = 0, per = 2;
    if (op == OP_dropout || op == OP_bernoulli) {
        n = x ? x->numel : 0;
        per = op == OP_dropout ? 1 : 2;
    } else if (op == OP_multinomial) {
        int64_t each = !x || x->rank < 1 ? 0 : words[1] ? words[0] : x->sizes[x->rank - 1];
        n = each < 0 || __builtin_mul_overflow(x && x->rank == 2 ? x->sizes[0] : 1, each, &n) ? 0 : n;
    } else if (op == OP_randperm)
        n = words[0];
    else {
        n = elements(words);
        per = op == OP_randint || kb_word_dtype(*kb_word(o, words, 1)) == KN_F64 ? 2 : 1;
    }
    return n < 0 || n > INT64_MAX / 4 ? 0 : (int64_t)kb_philox_blocks((uint64_t)n, (int)per);
}

static kn_status check_bounds(kb_opcode op, const kn_value *in, const int64_t *words)
{
    if (op != OP_randint && op != OP_randperm)
        return KN_OK;
    int64_t d = kb_word_dtype(*kb_word(kb_op_info(op), words, 1));
    kn_dtype type = d ? (kn_dtype)d : KN_I64;
    if (d < 0 || d >= KB_DTYPE_COUNT || !kb_dtype_valid((int)type) || type == KN_BOOL)
        return KN_OK;                           /* inference knows what else is wrong */
    if (op == OP_randperm)
        return words[0] > 0 ? kb_holds_range(type, 0, words[0]) : KN_OK;
    return in[0].kind == KN_KIND_INT && in[1].kind == KN_KIND_INT ? kb_holds_range(type, in[0].as.i, in[1].as.i) : KN_OK;
}

kn_status rt_rng_operands(kb_opcode op, int n_in, kn_value *in, const int64_t *words)
{
    rt_ctx *ctx = rt_get();
    kn_generator *g = ctx && ctx->generator ? ctx->generator : &default_generator;
    if (check_bounds(op, in, words))
        return kb_error_status();
    const kn_tensor *x = in[0].kind == KN_KIND_TENSOR ? in[0].as.tensor : NULL;
    uint64_t counters = (uint64_t)rt_rng_counters(op, kn_rank(x) >= 0 ? x->layout : NULL, words);
    pthread_mutex_lock(&g->lock);
    in[n_in - 2] = kn_value_int((int64_t)g->state.seed);
    in[n_in - 1] = kn_value_int((int64_t)g->state.next);
    g->state.next += counters;
    pthread_mutex_unlock(&g->lock);
    return KN_OK;
}

/* ---- faces ------------------------------------------------------------------------------------------------------------------------ */
enum { MAX_OPERANDS = 2 /* before seed and offset */ };

static kn_tensor *draw(kb_opcode op, int n_in, const kn_value *operands, int n_words, const int64_t *words, const char *site)
{
    kn_value in[MAX_OPERANDS + 2] = {{.kind = KN_KIND_NONE}};
    for (int i = 0; i < n_in; i++)
        in[i] = operands[i];
    rt_ctx *ctx = rt_draws(true);
    kn_tensor *t = rt_rng_operands(op, n_in + 2, in, words) ? rt_face_failed(kb_op_info(op)->name, site)
                                                          : rt_dispatch1(&(rt_op){RT_OP(op, n_in + 2, n_words), in, words, site});
    if (ctx)
        rt_leave(ctx);
    return t;
}

static kn_tensor *draw_sizes(kb_opcode op, int n_in, const kn_value *operands, kn_dtype d, kn_shape s, const char *site)
{
    int64_t words[2 + 2 * KN_MAX_RANK];
    int n = rt_put_list(words, s, false);
    words[n++] = rt_dtype_here(d);
    return draw(op, n_in, operands, n, words, site);
}

kn_tensor *(kn_randn)(kn_dtype d, kn_shape s, const char *site) { return draw_sizes(OP_randn, 0, NULL, d, s, site); }
kn_tensor *(kn_rand)(kn_dtype d, kn_shape s, const char *site) { return draw_sizes(OP_rand, 0, NULL, d, s, site); }

kn_tensor *(kn_dropout)(kn_tensor *x, double p, bool training, const char *site)
{
    if (!(p >= 0 && p <= 1))
        return rt_error_tensorf(KN_E_VALUE, "dropout", site, "the probability must lie in [0, 1], not %g", p);
    if (!training || p == 0)
        return x ? x : rt_error_tensorf(KN_E_VALUE, "dropout", site, "operand x is missing");
    return draw(OP_dropout, 2, (const kn_value[]){kn_value_tensor(x), kn_value_double(p)}, 0, NULL, site);
}

kn_tensor *(kn_randint)(int64_t low, int64_t high, kn_shape s, kn_dtype d, const char *site)
{
    return draw_sizes(OP_randint, 2, (const kn_value[]){kn_value_int(low), kn_value_int(high)}, d, s, site);
}

kn_tensor *(kn_bernoulli)(kn_tensor *p, const char *site) { return draw(OP_bernoulli, 1, (const kn_value[]){kn_value_tensor(p)}, 0, NULL, site); }

kn_tensor *(kn_multinomial)(kn_tensor *probs, int64_t n, bool replacement, const char *site)
{
    return draw(OP_multinomial, 1, (const kn_value[]){kn_value_tensor(probs)}, 2, (const int64_t[]){n, replacement}, site);
}

kn_tensor *(kn_randperm)(int64_t n, const char *site) { return draw(OP_randperm, 0, NULL, 2, (const int64_t[]){n, rt_dtype_here(KN_I64)}, site); }
