/* math_sweep.c: the accuracy of the f32 functions over all floats, against the C library's double precision.
 *
 *   math_sweep [NAME|all|from:NAME|speed] [STRIDE]       from: that function and those after it, of a run that was broken off
 *
 * Runs every STRIDEth of the 2^32 bit patterns (1: all of them; 997 when left out) through the best instruction set of this machine,
 * or the one that KN_CPU names, and prints the largest error in units of the result's last place. Operators with two operands take the
 * strided pattern and a scrambled one. Fails when a function exceeds its bound, or a NaN, infinity or the sign of a zero is wrong.
 * `speed` prints nanoseconds an element for each function and set instead, operands in the first-level cache.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/isa/mathtest.h"
#include "tests/support/progress.h"

enum { BLOCK = 4096 };

/* References in double, each good to far less than an f32 place for f32 operands. */
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_silu(double x) { return x / (1 + exp(-x)); }
static double ref_mish(double x) { return x * tanh(log1p(exp(x))); }
static double ref_softplus(double x) { return x > 20 ? x : log1p(exp(x)); }
static double ref_log_sigmoid(double x) { return fmin(x, 0) - log1p(exp(-fabs(x))); }
static double ref_gelu(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }
static double ref_gelu_tanh(double x) { return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static double ref_elu(double x) { return x <= 0 ? expm1(x) : x; }

static double ref_remainder(double x, double y)
{
    double m = fmod(x, y);
    return m != 0 && (m < 0) != (y < 0) ? m + y : m;
}

/* ABSOLUTE: the error is counted in places of the largest of |x| and |result|: these formulas cancel on the negative side. */
typedef struct { const char *name; double bound; double (*one)(double), (*two)(double, double); int absolute; } function;
static const function functions[] = {
    {"exp", 1, exp, NULL, 0}, {"exp2", 1, exp2, NULL, 0}, {"expm1", 2, expm1, NULL, 0}, {"log", 1, log, NULL, 0}, {"log2", 2, log2, NULL, 0},
    {"log10", 2, log10, NULL, 0}, {"log1p", 2, log1p, NULL, 0}, {"sin", 2, sin, NULL, 0}, {"cos", 2, cos, NULL, 0}, {"tan", 4, tan, NULL, 0},
    {"asin", 2, asin, NULL, 0}, {"acos", 2, acos, NULL, 0}, {"atan", 2, atan, NULL, 0}, {"sinh", 2, sinh, NULL, 0}, {"cosh", 2, cosh, NULL, 0},
    {"tanh", 2, tanh, NULL, 0}, {"erf", 2, erf, NULL, 0}, {"erfc", 1, erfc, NULL, 0}, {"sigmoid", 2, ref_sigmoid, NULL, 0},
    {"silu", 2.1, ref_silu, NULL, 0}, {"mish", 2, ref_mish, NULL, 0}, {"softplus", 2, ref_softplus, NULL, 0}, {"log_sigmoid", 2, ref_log_sigmoid, NULL, 0},
    {"gelu", 2, ref_gelu, NULL, 1}, {"gelu_tanh", 2, ref_gelu_tanh, NULL, 1}, {"rsqrt", 1.5, ref_rsqrt, NULL, 0}, {"elu", 2, ref_elu, NULL, 0},
    {"pow", 1, NULL, pow, 0}, {"atan2", 2, NULL, atan2, 0}, {"fmod", 0, NULL, fmod, 0}, {"remainder", 0.5, NULL, ref_remainder, 0},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static kb_isa isa;

static const kb_mathtest_row *rows_of(kb_isa which, int *count)
{
    return which == KB_ISA_AVX512 ? kb_mathtest_rows_avx512(count)
         : which == KB_ISA_AVX2   ? kb_mathtest_rows_avx2(count)
                                  : kb_mathtest_rows_baseline(count);
}

static const kb_mathtest_row *row_named(kb_isa which, const char *name)
{
    int n;
    const kb_mathtest_row *rows = rows_of(which, &n);
    for (int i = 0; i < n; i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Error of got against the exact want, in places of an f32 of the size of `scale`; an infinity where another value is due, or the
 * reverse, counts from 2^128, which is where rounding puts the limit. */
static double ulp_error(float got, double want, double scale)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (want == 0)
        return got == 0 && !signbit(got) == !signbit(want) ? 0 : INFINITY;
    if (isinf(want) && isinf(got))
        return (want > 0) == (got > 0) ? 0 : INFINITY;
    if (fabs(want) < 0x1p-150 && got == 0)      /* underflow: 0 - tiny is +0, tiny * -1 is -0 */
        return fabs(want) * 0x1p149;
    if (!signbit(got) != !signbit(want))
        return INFINITY;
    double g = isinf(got) ? copysign(0x1p128, got) : got, w = fabs(want) > 0x1p128 ? copysign(0x1p128, want) : want;
    int e;
    frexp(fmin(fabs(scale), 0x1p127), &e);
    return fabs(g - w) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

typedef struct { double worst; float x, y, got; double want; } outcome;

static void sweep_block(const function *f, const kb_mathtest_row *row, const float *a, const float *b, int n, outcome *o)
{
    static float out[BLOCK], one[BLOCK], twenty[BLOCK];
    for (int i = 0; i < n; i++)
        one[i] = 1, twenty[i] = 20;
    row->run(out, a, f->two ? b : one, twenty, one, n);
    for (int i = 0; i < n; i++) {
        double want = f->two ? f->two(a[i], b[i]) : f->one(a[i]);
        double scale = f->absolute && fabs(a[i]) > fabs(want) ? a[i] : want;
        double e = ulp_error(out[i], want, scale);
        if (e > o->worst || (isinf(e) && !isinf(o->worst)))
            *o = (outcome){e, a[i], b[i], out[i], want};
    }
}

static int sweep(const function *f, uint64_t stride, progress *how_far)
{
    static float a[BLOCK], b[BLOCK];
    const kb_mathtest_row *row = row_named(isa, f->name);
    outcome o = {-1, 0, 0, 0, 0};
    if (!row) {
        printf("%-12s has no row\n", f->name);
        return 1;
    }
    for (uint64_t u = 0; u < (1ull << 32);) {
        int n = 0;
        for (; n < BLOCK && u < (1ull << 32); n++, u += stride) {
            a[n] = from_bits((uint32_t)u);
            uint32_t h = (uint32_t)((u * 0x9E3779B97F4A7C15ull) >> 29);
            /* half of the second operands near the first's size, a quarter small integers and halves */
            b[n] = h & 1 ? from_bits(((uint32_t)u & 0xFF800000u) ^ (h & 0x81FFFFFFu)) : h & 2 ? (float)((int)(h >> 4 & 63) - 32) / 2 : from_bits(h);
        }
        sweep_block(f, row, a, b, n, &o);
        progress_tell(how_far, f->name, (double)u / 0x1p32);
    }
    progress_item(how_far);
    int bad = !(o.worst <= f->bound);
    printf("%-12s %8.4f ULP  (bound %.1f%s)  at %.9g (%a)", f->name, o.worst, f->bound,
           f->absolute ? ", of the larger of |x| and |result|" : "", (double)o.x, (double)o.x);
    if (f->two)
        printf(", %.9g", (double)o.y);
    printf("  got %.9g want %.17g%s\n", (double)o.got, o.want, bad ? "  EXCEEDED" : "");
    fflush(stdout);
    return bad;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double ns_per_element(const kb_mathtest_row *row)
{
    enum { N = 1024 };
    static float a[N], b[N], c[N], out[N];
    for (int i = 0; i < N; i++)
        a[i] = (float)i * (1.0f / 128) - 3, b[i] = 1 + (float)(i % 7) * 0.25f, c[i] = 20;
    double best = 1e9;
    for (int rep = 0; rep < 7; rep++) {
        double t = seconds();
        for (int k = 0; k < 100; k++)
            row->run(out, a, b, c, b, N);
        t = seconds() - t;
        best = t < best ? t : best;
    }
    return best / (100.0 * N) * 1e9;
}

static void speed(void)
{
    printf("ns an element %18s %8s %8s\n", "baseline", "avx2", "avx512");
    for (int i = 0; i < FUNCTIONS; i++) {
        printf("%-22s", functions[i].name);
        for (int s = KB_ISA_BASELINE; s < KB_ISA_COUNT; s++)
            if (s <= (int)isa)
                printf(" %8.3f", ns_per_element(row_named((kb_isa)s, functions[i].name)));
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "all";
    uint64_t stride = argc > 2 ? strtoull(argv[2], NULL, 10) : 997;
    int bad = 0, found = 0;
    isa = kb_cpu_isa();
    if (!strcmp(which, "speed")) {
        speed();
        return 0;
    }
    if (!stride) {
        fprintf(stderr, "usage: math_sweep [NAME|all|from:NAME|speed] [STRIDE]\n");
        return 2;
    }
    const char *from = strncmp(which, "from:", 5) == 0 ? which + 5 : NULL;
    int first = 0, all = !strcmp(which, "all");
    for (; from && first < FUNCTIONS && strcmp(from, functions[first].name) != 0; first++) {}
    progress how_far = progress_begin("math_sweep", from || all ? FUNCTIONS - first : 1);
    for (int i = first; i < FUNCTIONS; i++)
        if (from || all || !strcmp(which, functions[i].name))
            found = 1, bad |= sweep(&functions[i], stride, &how_far);
    if (!found)
        fprintf(stderr, "math_sweep: no function %s\n", from ? from : which);
    progress_end(&how_far);
    return bad || !found;
}
