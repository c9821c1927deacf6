/* gen_ops.c: writes <kiln/ops.h> (gen_ops header) and the functions behind it (gen_ops source) from base/ops.def, at build time.
 *
 * Of each operator: an options struct (once a name), the exported prototype with its schema as comment, the macro that fills in boxes, the
 * options' size and the call site, and the function that packs operands and words for rt_dispatch. Sources and random operators have
 * hand-written faces (runtime/create.c). A schema that can't be written as C stops the build.
 */
#define KN_NO_OPS
#include "base/dtype.c"
#include "base/op.c"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* op.c reports failures through these; here they end the build */
kn_status kb_broken(const char *file, int line, const char *what)
{
    fprintf(stderr, "gen_ops: %s:%d: %s\n", file, line, what);
    exit(1);
}

static const char *group_of(const kb_opinfo *o)
{
    for (int i = 0; i < o->n_args; i++)
        if (o->args[i].option)
            return o->args[i].group;
    return NULL;
}

static bool has_face(const kb_opinfo *o) { return o->cls != KB_SOURCE && o->cls != KB_RANDOM && !(o->flags & (KB_F_CONTROL | KB_F_MOVES)); }

/* What the C function gives: a tensor, or a struct of several. */
static const char *result_type(const kb_opinfo *o)
{
    static char text[64];
    if (o->n_out == 1)
        return "kn_tensor *";
    snprintf(text, sizeof text, "kn_%s_result ", o->name);
    return text;
}

static void result_struct(const kb_opinfo *o)
{
    printf("typedef struct kn_%s_result { kn_tensor ", o->name);
    for (int i = 0; i < o->n_out; i++)
        printf(i ? ", *%s" : "*%s", o->results[i]);
    printf("; } kn_%s_result;\n", o->name);
}

/* An option whose default isn't zero is a kn_value, so that zero can be said: none means the default. */
static const char *member_type(const kb_arg *a)
{
    if (a->fallback != 0)
        return "kn_value ";
    switch (a->kind) {
    case 'f': return "double ";
    case 'i': case 'z': return "int64_t ";
    case 'b': return "bool ";
    case 'd': return "kn_dtype ";
    case 'e': return "const char *";
    case 'I': case 'Z': return "kn_shape ";
    }
    return "kn_value ";
}

static const char *param_type(const kb_arg *a)
{
    switch (a->kind) {
    case 'T': return "kn_tensor *";
    case 'V': return "kn_value ";
    case 'f': return "double ";
    case 'i': case 'z': return "int64_t ";
    case 'b': return "bool ";
    case 'd': return "kn_dtype ";
    case 'e': return "const char *";
    }
    return "kn_shape ";
}

static void prototype(const kb_opinfo *o, bool parens)
{
    printf(parens ? "%s(kn_%s)(" : "%skn_%s(", result_type(o), o->name);
    for (int i = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (a->hidden || a->option)
            continue;
        if (a->list)
            printf("size_t n, kn_tensor *const *%s, ", a->name);
        else
            printf("%s%s, ", param_type(a), a->name);
    }
    const char *g = group_of(o);
    if (g)
        printf("const kn_%s_options *o, size_t o_size, ", g);
    printf("const char *site)");
}

static bool first_of_group(const kb_opinfo *o)
{
    const char *g = group_of(o);
    for (int op = 1; g && op < OP_COUNT; op++) {
        const kb_opinfo *p = kb_op_info((kb_opcode)op);
        if (has_face(p) && group_of(p) && strcmp(group_of(p), g) == 0)
            return p == o;
    }
    return false;
}

static void options_struct(const kb_opinfo *o)
{
    const char *g = group_of(o);
    printf("typedef struct kn_%s_options kn_%s_options;\nstruct kn_%s_options { const kn_%s_options *base; char end_;", g, g, g, g);
    for (int i = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (!a->option)
            continue;
        if (a->fixed) {
            printf(" int64_t %s[%d];", a->name, a->fixed);
            continue;
        }
        printf(" %s%s;", member_type(a), a->name);
        if (a->fallback != 0)
            printf(" /* none: %g */", a->fallback);
        else if (a->kind == 'I')
            printf(" /* none: all */");
        else if (a->kind == 'e')
            printf(" /* NULL: \"%s\" */", a->words[0]);
    }
    printf(" };\n");
}

static void macro(const kb_opinfo *o)
{
    int positional = 0;
    char names[256] = "", boxed[400] = "";
    for (int i = 0; i < o->n_args; i++) {
        const kb_arg *a = &o->args[i];
        if (a->hidden || a->option)
            continue;
        positional += a->list ? 2 : 1;
        size_t n = strlen(names), b = strlen(boxed);
        snprintf(names + n, sizeof names - n, "%s%s%s", n ? ", " : "", a->list ? "n, " : "", a->name);
        snprintf(boxed + b, sizeof boxed - b, a->list ? "%sn, %s" : a->kind == 'V' ? "%sKN_BOX(%s)" : "%s%s", b ? ", " : "", a->name);
    }
    const char *g = group_of(o);
    if (!g) {
        printf("#define kn_%s(%s) (kn_%s)(%s, KN_SITE)\n", o->name, names, o->name, boxed);
        return;
    }
    printf("#ifndef __cplusplus\n#define kn_%s(...) KN_OPT%d_((kn_%s), kn_%s_options, __VA_ARGS__, .end_ = 0), KN_SITE)  /* %s, options */\n",
           o->name, positional, o->name, g, names);
    printf("#else\ninline %skn_%s(", result_type(o), o->name);
    for (int i = 0; i < o->n_args; i++)
        if (!o->args[i].hidden && !o->args[i].option)
            printf("%s%s, ", param_type(&o->args[i]), o->args[i].name);
    printf("const kn_%s_options &o = {}) { return (kn_%s)(%s, &o, sizeof o, nullptr); }\n#endif\n", g, o->name, names);
}

static void header(void)
{
    puts("/* ops.h: made from base/ops.def; don't edit. Part of kiln.h.\n"
         " * Operators with PyTorch's names and meanings. The comment is the schema: T tensor, T? optional (NULL: left out), V tensor or scalar, f double,\n"
         " * i int64_t, b bool, d dtype, I list of ints, Z list of sizes, e{…} one of these words; options after the star are named members\n"
         " * (I1, I2: an array of so many; all 0 is the default). What stands after -> are the members of the struct that comes back.\n"
         " * A result is a new tensor of the innermost scope, row-major, unless it is a view (shares x's storage) or in place (the name ends in _, gives x).\n"
         " * A bad shape, dtype or value gives an error tensor. */\n#ifndef KILN_OPS_H\n#define KILN_OPS_H\n#include <kiln/kiln.h>\n\n"
         "#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
    for (int op = 1; op < OP_COUNT; op++) {
        const kb_opinfo *o = kb_op_info((kb_opcode)op);
        if (!has_face(o))
            continue;
        if (first_of_group(o))
            options_struct(o);
        if (o->n_out > 1)
            result_struct(o);
        printf("KN_API ");
        prototype(o, false);
        printf(";  /* %s */\n", o->schema);
    }
    puts("\n#ifdef __cplusplus\n}\n#endif\n");
    for (int op = 1; op < OP_COUNT; op++)
        if (has_face(kb_op_info((kb_opcode)op)))
            macro(kb_op_info((kb_opcode)op));
    puts("\n#endif");
}

/* One operand's initialiser. */
static void operand(const kb_arg *a)
{
    if (a->hidden)
        printf("kn_none()");
    else if (a->option && a->optional)
        printf("o->%s != 0 ? kn_value_double(o->%s) : kn_none()", a->name, a->name);
    else if (a->option)
        printf(a->fallback != 0 ? "rt_scalar_or(o->%s, %.17g)" : "kn_value_double(o->%s)", a->name, a->fallback);
    else if (a->kind == 'T')
        printf("kn_value_tensor(%s)", a->name);
    else
        printf(a->kind == 'f' ? "kn_value_double(%s)" : "%s", a->name);
}

static void word(const kb_arg *a)
{
    char x[64];
    snprintf(x, sizeof x, "%s%s", a->option ? "o->" : "", a->name);
    if (a->hidden)
        printf("    words[n_words++] = %lld;\n", (long long)a->fallback);
    else if (a->fixed)
        printf("    n_words += rt_put_fixed(words + n_words, %s, %d);\n", x, a->fixed);
    else if (a->kind == 'I' || a->kind == 'Z')
        printf("    n_words += rt_put_list(words + n_words, %s, %s);\n", x, a->option ? "true" : "false");
    else if (a->kind == 'e') {
        printf("    static const char *const %s_words[] = {", a->name);
        for (int i = 0; i < 6 && a->words[i]; i++)
            printf("\"%s\", ", a->words[i]);
        printf("NULL};\n    words[n_words++] = rt_put_word(%s, %s_words);\n", x, a->name);
    } else if (a->option && a->fallback != 0)
        printf("    words[n_words++] = rt_int_or(%s, %lld);\n", x, (long long)a->fallback);
    else
        printf("    words[n_words++] = (int64_t)%s;\n", x);
}

/* The statement that hands on a failure. */
static const char *failure(const kb_opinfo *o)
{
    static char text[160];
    if (o->n_out == 1)
        snprintf(text, sizeof text, "return rt_face_failed(\"%s\", site);\n", o->name);
    else
        snprintf(text, sizeof text, "return (kn_%s_result){rt_face_failed(\"%s\", site), rt_face_failed(\"%s\", site)%s};\n", o->name, o->name, o->name,
                 o->n_out == 3 ? ", rt_face_failed(NULL, site)" : "");
    return text;
}

static void function(const kb_opinfo *o)
{
    const char *g = group_of(o);
    int words = 0, scalars = 0;
    for (int i = 0; i < o->n_args; i++)
        if (!kb_is_operand(&o->args[i])) {
            words += o->args[i].fixed ? 1 + o->args[i].fixed : o->args[i].kind == 'I' || o->args[i].kind == 'Z' ? 1 + 2 * KN_MAX_RANK : 1;
            scalars++;
        }
    prototype(o, true);
    puts("\n{");
    if (g)
        printf("    kn_%s_options known;\n    o = rt_options(o, o_size, &known, sizeof known);\n    if (!o)\n        %s", g, failure(o));
    if (o->n_operands < 0) {
        printf("    kn_value in[KB_MAX_IN];\n    if (!rt_put_operands(in, n, %s))\n        %s", o->args[0].name, failure(o));
    } else {
        printf("    const kn_value in[] = {");
        for (int i = 0, k = 0; i < o->n_args; i++)
            if (kb_is_operand(&o->args[i])) {
                printf(k++ ? ", " : "");
                operand(&o->args[i]);
            }
        puts("};");
    }
    if (scalars) {
        printf("    int64_t words[%d];\n    int n_words = 0;\n", words);
        for (int i = 0; i < o->n_args; i++)
            if (!kb_is_operand(&o->args[i]))
                word(&o->args[i]);
    }
    if (o->n_out > 1)
        printf("    kn_tensor *out[KB_MAX_OUT];\n    rt_dispatch(&(rt_op){RT_OP(OP_%s, ", o->name);
    else
        printf("    return rt_dispatch1(&(rt_op){RT_OP(OP_%s, ", o->name);
    printf(o->n_operands < 0 ? "(int)n, " : "%d, ", o->n_operands);
    printf("%s), in, %s, site}%s);\n", scalars ? "n_words" : "0", scalars ? "words" : "NULL", o->n_out > 1 ? ", out" : "");
    if (o->n_out > 1) {
        printf("    return (kn_%s_result){", o->name);
        for (int i = 0; i < o->n_out; i++)
            printf(i ? ", out[%d]" : "out[%d]", i);
        puts("};");
    }
    puts("}\n");
}

static void source(void)
{
    puts("/* ops_face.c: made from base/ops.def; don't edit. */\n#include \"runtime/face.h\"\n");
    for (int op = 1; op < OP_COUNT; op++)
        if (has_face(kb_op_info((kb_opcode)op)))
            function(kb_op_info((kb_opcode)op));
}

int main(int argc, char **argv)
{
    if (argc != 2 || (strcmp(argv[1], "header") && strcmp(argv[1], "source"))) {
        fputs("usage: gen_ops header|source\n", stderr);
        return 2;
    }
    strcmp(argv[1], "header") ? source() : header();
    return 0;
}
