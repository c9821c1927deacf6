/* plain_leaks.c: the whole surface used and given back, under the leak checker: modules of every kind, hooks, state, files, operators of
 * one's own, compiled modules that diverge, fail, are left by longjmp or freed before their target, function pointers, kept handles,
 * threads that end with all of it open. It runs several times; the last rounds must leave exactly as many blocks as the ones before, and
 * no tensor data at all, also without a sanitizer.
 */
#include "base/alloc.h"
#include <kiln/kiln.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_long live;
static int wrong;

static void *hook(void *user, void *old, size_t size, size_t align)
{
    (void)user;
    if (!size) {
        atomic_fetch_sub(&live, old != NULL);
        free(old);
        return NULL;
    }
    if (old)
        return realloc(old, size);
    void *p = NULL;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size))
        return NULL;
    atomic_fetch_add(&live, 1);
    return p;
}

static void expect(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, kn_last_error());
        wrong++;
    }
}

/* ---- a module that does what `mode` says ---------------------------------------------------------------------------------------------------- */
enum { PLAIN, BRANCH, KEEP, FAIL, LEAVE, TUPLE, INPLACE, MODES };
typedef struct Net { kn_module base; kn_module **layers; int64_t n; kn_module *extra; kn_tensor *scale, *state; int mode; kn_tensor *kept; } Net;
static __thread jmp_buf away;

static kn_value net_forward(Net *self, kn_tensor *x)
{
    for (int64_t i = 0; i < self->n; i++)
        x = kn_call(self->layers[i], x);
    kn_tensor *y = kn_mul(x, self->scale);
    switch (self->mode) {
    case BRANCH: return kn_value_tensor(kn_item(kn_sum(y)) > 0 ? kn_exp(y) : kn_neg(y));
    case KEEP: kn_assign(&self->kept, kn_narrow(kn_exp(y), 0, 0, 1)); return kn_value_tensor(y);
    case FAIL: return kn_value_tensor(kn_add(kn_matmul(y, kn_ones(KN_F32, KN_SHAPE(3, 3))), kn_op("no such", y)));
    case LEAVE: kn_add_(self->state, 1.0); longjmp(away, 1);
    case TUPLE: return kn_dict("y", y, "more", kn_tuple(kn_exp(y), y, 3, "text", kn_none()));
    case INPLACE: kn_add_(self->state, kn_sum(y)); return kn_value_tensor(kn_op("leaks::twice", y));
    default: return kn_value_tensor(y);
    }
}
static void net_destroy(void *self) { kn_assign(&((Net *)self)->kept, NULL); }
static const kn_field net_fields[] = {KN_CHILDREN(Net, layers, n), KN_CHILD_OPTIONAL(Net, extra), KN_PARAM(Net, scale), KN_BUFFER(Net, state),
                                      KN_ATTR(Net, mode), KN_FIELDS_END};
static const kn_class by_signature = {.abi = sizeof(kn_class), .size = sizeof(Net), .name = "Net", .signature = "V(T)", .forward = (kn_fn)net_forward,
                                      .fields = net_fields, .checked_arity = -1, .destroy = net_destroy};
static const kn_class bad_signature = {.abi = sizeof(kn_class), .size = sizeof(Net), .name = "Bad", .signature = "T(T", .forward = (kn_fn)net_forward,
                                       .fields = net_fields, .checked_arity = -1};

static Net *net_new(void)
{
    KN_SCOPE;
    kn_module *layers[] = {kn_nn_linear(4, 6), kn_nn_sequential(kn_nn_layer_norm(6), kn_nn_gelu(), kn_nn_dropout(0.1)), kn_nn_softmax(-1), kn_nn_linear(6, 4, .no_bias = true)};
    return (kn_new)(&by_signature, sizeof(Net), &(Net){.layers = layers, .n = 4, .extra = kn_nn_module_list(kn_nn_relu(), kn_nn_tanh()), .scale = kn_ones(KN_F32, KN_SHAPE(4)),
        .state = kn_zeros(KN_F32, KN_SHAPE0)}, KN_SITE);
}

static kn_status twice(const kn_op_args *c)
{
    for (int64_t i = 0; i < c->out[0].numel; i++)
        ((float *)c->out[0].data)[i] = 2.0f * ((const float *)c->in[0].data)[i];
    return KN_OK;
}

static atomic_int users;
static void free_user(void *user) { free(user), atomic_fetch_sub(&users, 1); }
static kn_value doubled(kn_module *m, kn_value in, kn_value out, void *user)
{
    (void)m, (void)in, (void)user;
    return out.kind == KN_KIND_TENSOR ? kn_value_tensor(kn_mul(kn_as_tensor(out), 2.0)) : kn_none();
}
static kn_hook add_hook(kn_module *m)
{
    atomic_fetch_add(&users, 1);
    return kn_register_forward_hook(m, doubled, malloc(8), .free_user = free_user);
}

/* ---- what is done ------------------------------------------------------------------------------------------------------------------------------- */
static void calls(kn_module *m, Net *net, int rounds)
{
    for (volatile int i = 0; i < rounds * MODES; i++) {
        kn_scope s = kn_scope_open(NULL);
        net->mode = i % MODES;
        kn_tensor *x = kn_sub(kn_rand(KN_F32, KN_SHAPE(1 + i / MODES % 3, 4)), i % 3 ? 0.5 : 0.0);
        if (!setjmp(away)) {
            kn_value v = kn_call_value(m, x);
            expect((v.kind == KN_KIND_TENSOR && kn_failed(v.as.tensor)) == (net->mode == FAIL), "a call");
        }
        kn_scope_close(s);                      /* also what a longjmp left open */
    }
}

static void files(Net *net)
{
    char path[] = "/tmp/kiln-leaks-XXXXXX";
    close(mkstemp(path));
    expect(kn_save_state(KN_BASE(net), path) == KN_OK && kn_load_state(KN_BASE(net), path) == KN_OK, "state");
    kn_module *other = kn_nn_linear(2, 2);
    expect(kn_load_state(other, path) != KN_OK, "another module's state is refused");
    kn_module_free(other);
    kn_store *store = kn_store_open(path);
    expect(kn_store_count(store) > 3 && !kn_failed(kn_store_get(store, "scale")) && kn_failed(kn_store_get(store, "nothing")), "a store");
    kn_store_close(store);
    expect(kn_compile(NULL) == NULL && kn_store_open("/nowhere") == NULL, "refusals");
    FILE *f = fopen(path, "w");
    fputs("not a safetensors file at all", f);
    fclose(f);
    expect(kn_store_open(path) == NULL && kn_load_state(KN_BASE(net), path) != KN_OK, "a damaged file is refused");
    unlink(path);
}

static bool stop_at_second(const char *path, kn_tensor **slot, void *user) { return (void)path, (void)slot, ++*(int *)user < 2; }

static void everything(int rounds)
{
    KN_SCOPE;
    Net *net = net_new();
    kn_module *m = KN_BASE(net), *fast = kn_compile(m), *again = kn_compile(fast), *lost = kn_nn_relu(), *widow = kn_compile(lost);
    expect(net && fast && again && widow, "making modules");
    kn_hook h = add_hook(net->layers[1]), g = add_hook(m);
    calls(m, net, 1);
    calls(fast, net, rounds);
    kn_remove_hook(h);
    calls(fast, net, rounds);
    net->mode = PLAIN;
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 4)), *kept = kn_retain(kn_as_tensor(kn_call_value(again, x)));
    kn_value (*f)(kn_tensor *) = KN_COMPILE_FUNCTION(m, value, (tensor));
    for (int i = 0; i < 3; i++)
        expect(f && !kn_failed(kn_as_tensor(f(x))), "a compiled function");
    kn_function_free((kn_fn)f);
    kn_call(widow, x);
    kn_module_free(lost);
    expect(kn_failed(kn_call(widow, x)), "its module is gone");
    int seen = 0;
    expect(kn_named_parameters(m, stop_at_second, &seen) == KN_OK && seen == 2, "a walk");
    expect(kn_module_set_child(m, "extra", kn_nn_identity()) == KN_OK && kn_module_set_child(m, "extra", NULL) == KN_OK, "children");
    expect(kn_module_set_child(m, "nothing", kn_nn_identity()) != KN_OK, "no such child");
    expect((kn_new)(&bad_signature, sizeof(Net), &(Net){.extra = kn_nn_relu()}, KN_SITE) == NULL, "a bad signature");
    expect(kn_nn_sequential(kn_nn_relu(), NULL, kn_nn_tanh()) == NULL, "a missing child");
    files(net);
    FILE *null = fopen("/dev/null", "w");
    expect(kn_report_print(fast, null) == KN_OK && kn_print(x, null) == KN_OK, "a report");
    fclose(null);
    kn_module_free(again);
    kn_module_free(widow);
    kn_module_free(fast);
    kn_module_free(m);
    kn_remove_hook(g);
    expect(!kn_failed(kn_add(kept, 1.0)), "a kept result");
    kn_release(kept);
}

/* ---- threads that end in the middle ------------------------------------------------------------------------------------------------------------- */
static kn_module *shared;
static kn_tensor *passed;

static void *ends_openly(void *arg)
{
    everything(1);
    kn_scope_open(NULL);
    kn_tensor *x = kn_ones(KN_F32, KN_SHAPE(2, 4));
    kn_assign(&passed, kn_call(shared, x));
    kn_matmul(x, x);                            /* an error tensor in an open scope */
    kn_disable();
    return arg;
}

static void threads(void)
{
    Net *net = net_new();
    shared = kn_compile(KN_BASE(net));
    for (int i = 0; i < 3; i++) {
        pthread_t t;
        pthread_create(&t, NULL, ends_openly, NULL);
        pthread_join(t, NULL);
        expect(!kn_failed(passed), "a result of a thread that ended");
    }
    kn_assign(&passed, NULL);
    kn_module_free(shared);
    kn_module_free(KN_BASE(net));
}

static void in_a_child(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0) {
        everything(1);
        _exit(wrong != 0);
    }
    expect(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "a forked child");
}

int main(void)
{
    static const kn_op_class op = {.abi = sizeof op, .name = "leaks::twice", .signature = "T(T)", .run = twice};
    long before = 0;
    kn_alloc_hook(hook, NULL);
    expect(kn_define_op(&op) == KN_OK && kn_define_op(&op) != KN_OK, "an operator of one's own");
    for (int round = 0; round < 4; round++) {
        everything(3);
        threads();
        if (round == 1)
            in_a_child();
        kn_shutdown();
        expect(kb_data_stats().live == 0, "tensor data is left");
        if (round == 2)
            before = atomic_load(&live);
    }
    if (atomic_load(&live) != before || atomic_load(&users)) {
        fprintf(stderr, "%ld blocks more than a round before, %d hooks' users left\n", atomic_load(&live) - before, atomic_load(&users));
        wrong++;
    }
    fprintf(stderr, "leaks: %ld blocks stay for later, %d wrong\n", atomic_load(&live), wrong);
    return wrong != 0;
}
