/* test_promotion.c: the dtype of every pair of operands (tensors, tensors without dimensions, numbers; all dtypes) against PyTorch's, from
 * tests/data/promotion.txt (tests/promotion.py made it). Combinations that PyTorch refuses must be refused; where its functions
 * take no number, nothing is compared. */
#include <criterion/criterion.h>
#include <kiln/kiln.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 23, LINE = 256 };

static kn_dtype dtype_of(char letter)
{
    static const char letters[] = "bucsilhkfd";
    static const kn_dtype d[] = {KN_BOOL, KN_U8, KN_I8, KN_I16, KN_I32, KN_I64, KN_F16, KN_BF16, KN_F32, KN_F64};
    const char *at = strchr(letters, letter);
    cr_assert(letter && at, "'%c' is no dtype's letter", letter);
    return d[at - letters];
}

static kn_value operand(const char *name)
{
    if (name[0] == 'n')
        return name[1] == 'b' ? kn_value_bool(true) : name[1] == 'l' ? kn_value_int(1) : kn_value_double(1.0);
    return kn_value_tensor(kn_full(dtype_of(name[1]), name[0] == 't' ? KN_SHAPE(1) : KN_SHAPE0, 1));
}

static kn_tensor *call(const char *op, kn_value a, kn_value b)
{
    if (strncmp(op, "div_", 4) == 0)
        return kn_op("div", a, b, kn_dict("rounding_mode", op + 4));
    if (strcmp(op, "where") == 0)
        return kn_op("where", kn_ones(KN_BOOL, KN_SHAPE(1)), a, b);
    return kn_op(op, a, b);
}

/* PyTorch answers pow(bool tensor, true) by a copy, because it looks at the exponent's value; here a number's value decides nothing, and
 * pow is refused for bool as in PyTorch's other combinations. */
static bool by_value(const char *op, const char *left, const char *right) { return !strcmp(op, "pow") && left[1] == 'b' && !strcmp(right, "nb"); }

static int check_row(const char *op, const char *left, const char *results, char right[MOST][4], int n, int *compared)
{
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        KN_SCOPE;
        if (results[i] == '.')
            continue;
        kn_tensor *t = call(op, operand(left), operand(right[i]));
        bool good = results[i] == '-' || by_value(op, left, right[i]) ? kn_failed(t)
                                                                      : !kn_failed(t) && kn_tensor_dtype(t) == dtype_of(results[i]);
        ++*compared;
        if (!good && wrong++ < 3)
            fprintf(stderr, "%s(%s, %s): PyTorch gives %c, kiln %s\n", op, left, right[i], results[i],
                    kn_failed(t) ? kn_tensor_error(t) : "another dtype");
    }
    return wrong;
}

Test(promotion, as_pytorch)
{
    FILE *f = fopen("tests/data/promotion.txt", "r");
    char line[LINE], right[MOST][4], op[32], left[4], results[MOST + 1];
    int n = 0, wrong = 0, rows = 0, compared = 0;
    cr_assert(f, "tests/data/promotion.txt is missing");
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "right ", 6) == 0)
            for (char *p = strtok(line + 6, " \n"); p && n < MOST; p = strtok(NULL, " \n"))
                snprintf(right[n++], 4, "%s", p);
        else if (line[0] != '#' && sscanf(line, "%31s %3s %23s", op, left, results) == 3) {
            cr_assert_eq((int)strlen(results), n);
            wrong += check_row(op, left, results, right, n, &compared);
            rows++;
        }
    }
    fclose(f);
    cr_expect(rows > 400 && compared > 8000, "%d rows, %d pairs", rows, compared);
    cr_expect_eq(wrong, 0, "%d of %d pairs differ", wrong, compared);
}
