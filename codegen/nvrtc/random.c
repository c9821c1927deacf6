/* random.c: uniform numbers, dropout, randint, bernoulli and multinomial with replacement, element for element those of the CPU
 * (base/philox.h): a thread makes one block of four. */
#include "codegen/nvrtc/op.h"

static const char philox[] =
    "        unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32), c2 = 0, c3 = 0, k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);\n"
    "#pragma unroll\n"
    "        for (int round = 0; round < 10; round++) {\n"
    "            const unsigned long long a = (unsigned long long)0xD2511F53u * c0, b = (unsigned long long)0xCD9E8D57u * c2;\n"
    "            c0 = (unsigned)(b >> 32) ^ c1 ^ k0; c1 = (unsigned)b; c2 = (unsigned)(a >> 32) ^ c3 ^ k1; c3 = (unsigned)a;\n"
    "            k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;\n"
    "        }\n"
    "        const unsigned words[4] = {c0, c1, c2, c3};\n";
static const char uniforms[] =
    "#pragma unroll\n"
    "        for (int w = 0; w < 4; w++) {\n"
    "            const long long i = 4 * (long long)t + w;\n"
    "            if (i >= numel) break;\n"
    "            const float u = (float)(words[w] >> 8) * 0x1p-24f;\n";
/* of 64 bits, two a block */
static const char wide_bits[] =
    "#pragma unroll\n"
    "        for (int w = 0; w < 2; w++) {\n"
    "            const long long i = 2 * (long long)t + w;\n"
    "            if (i >= numel) break;\n"
    "            const unsigned long long bits = (unsigned long long)words[2 * w] << 32 | words[2 * w + 1];\n";

static bool begin(op_text *o, int first)
{
    const kb_layout *y = o->c->out[0].layout;
    if (y->dtype != KN_F32 && y->dtype != KN_F16 && y->dtype != KN_BF16)
        return false;
    op_pointers(o, false);
    op_each(o, (y->numel + 3) / 4);
    op_integer(o, "numel", y->numel);
    nv_put(&o->text, "        const unsigned long long seed = a%d, block = (unsigned long long)a%d + t;\n%s%s", first, first + 1, philox,
           uniforms);
    return true;
}

static void end(op_text *o, const char *value)
{
    kn_dtype d = o->c->out[0].layout->dtype;
    nv_put(&o->text, d == KN_F32 ? "            y0[i] = %s;\n        }\n    }\n" : d == KN_F16 ? "            y0[i] = kn_to_f16(%s);\n        }\n    }\n"
                                                                                   : "            y0[i] = kn_to_bf16(%s);\n        }\n    }\n", value);
}

bool op_uniform(op_text *o)
{
    if (!begin(o, 0))
        return false;
    end(o, "u");
    return true;
}

bool op_dropout(op_text *o)
{
    const kb_layout *x = op_in_layout(o, 0);
    if (!x->contiguous || x->dtype != o->c->out[0].layout->dtype || !o->c->in[1].layout || !begin(o, 2))
        return false;
    nv_put(&o->text, "            const float p = (float)kn_f64(a1), scale = __fdiv_rn(1.0f, 1.0f - p), x = %s(a0[i]);\n",
        x->dtype == KN_F16 ? "kn_of_f16" : x->dtype == KN_BF16 ? "kn_of_bf16" : "");
    end(o, "u >= p ? x * scale : 0.0f");
    return true;
}

/* ---- two words an element ------------------------------------------------------------------------------------------------------------- */
static void begin_wide(op_text *o, int first)
{
    const kb_layout *y = o->c->out[0].layout;
    op_pointers(o, false);
    op_each(o, (y->numel + 1) / 2);
    op_integer(o, "numel", y->numel);
    nv_put(&o->text, "        const unsigned long long seed = a%d, block = (unsigned long long)a%d + t;\n%s%s", first, first + 1, philox,
           wide_bits);
}

/* low + floor(bits * range / 2^64). Bounds were checked by the face; a dtype that doesn't hold them is the host's error. */
bool op_randint(op_text *o)
{
    kn_dtype d = o->c->out[0].layout->dtype;
    if (d != KN_I64)
        return false;
    begin_wide(o, 2);
    nv_put(&o->text, "            y0[i] = (long long)((unsigned long long)a0 + __umul64hi(bits, (unsigned long long)a1 - (unsigned long long)a0));\n        }\n    }\n");
    return true;
}

bool op_bernoulli(op_text *o)
{
    const kb_layout *p = op_in_layout(o, 0);
    if (!p->contiguous || !op_is_real(p->dtype) || p->dtype != o->c->out[0].layout->dtype)
        return false;
    o->l->checks = true;
    begin_wide(o, 1);
    nv_put(&o->text,
        "            const double u = (double)((unsigned long long)((unsigned)(bits >> 32) >> 5) << 26 | (unsigned)bits >> 6) * 0x1p-53;\n"
        "            const double p = (double)%s(a0[i]);\n"
        "            if (!(p >= 0.0 && p <= 1.0)) *bad = 1;\n"
        "            y0[i] = %s(u < p ? 1.0f : 0.0f);\n        }\n    }\n", op_widened(p->dtype), op_narrowed(p->dtype));
    return true;
}

/* With replacement: a thread two draws, each the first category whose running sum exceeds its share of the row's total; sums in f64, in
 * order, as on the CPU. Without, the order of arrival times decides, logarithms of the C library's: the host's. */
bool op_multinomial(op_text *o)
{
    const kb_layout *p = op_in_layout(o, 0);
    if (!o->c->words[1])
        return false;
    o->l->checks = true;
    begin_wide(o, 1);
    op_integer(o, "draws", o->c->words[0]);
    op_integer(o, "categories", p->sizes[p->rank - 1]);
    op_integer(o, "row_s", p->rank == 2 ? p->strides[0] : 0);
    op_integer(o, "s", p->strides[p->rank - 1]);
    nv_put(&o->text,
        "            const double u = (double)((unsigned long long)((unsigned)(bits >> 32) >> 5) << 26 | (unsigned)bits >> 6) * 0x1p-53;\n"
        "            const %1$s *__restrict__ p = a0 + i / draws * row_s;\n"
        "            double sum = 0;\n"
        "            bool good = true;\n"
        "#pragma unroll 4\n"
        "            for (%2$s k = 0; k < categories; k++) {\n"
        "                const double v = (double)%3$s(p[k * s]);\n"
        "                good = good && v >= 0.0 && v <= 1.7976931348623157e308;\n"
        "                sum = k == 0 ? v : sum + v;\n"
        "            }\n"
        "            if (!good || !(sum > 0.0 && sum <= 1.7976931348623157e308)) { *bad = 1; continue; }\n"
        "            const double target = u * sum;\n"
        "            double upto = (double)%3$s(p[0]);\n"
        "            %2$s at = 0;\n"
        "            while (at < categories - 1 && !(upto > target)) upto = upto + (double)%3$s(p[++at * s]);\n"
        "            y0[i] = at;\n        }\n    }\n", nv_memory_type(p->dtype), o->index, op_widened(p->dtype));
    return true;
}
