/* test_smoke.c: facts about the build itself, on which every other test rests.
 *
 * Equality to the bit between eager, interpreted and compiled code needs a compiler that never fuses a product into a sum by itself.
 * gcc does so by default where the target has such an instruction; the build turns it off, and this notices when it doesn't.
 */
#include <criterion/criterion.h>

#if defined __x86_64__
__attribute__((noinline, target("fma"))) static double product_plus(double a, double b, double c)
{
    return a * b + c;
}

Test(build, products_are_not_contracted)
{
    if (!__builtin_cpu_supports("fma"))
        cr_skip_test("this CPU has no fused multiply-add");
    double a = 1 + 0x1p-27;
    /* a*a = 1 + 2^-26 + 2^-54, which rounds to 1 + 2^-26: nothing is left unless the product was kept unrounded */
    cr_assert_eq(product_plus(a, a, -(1 + 0x1p-26)), 0.0);
    cr_assert_eq(__builtin_fma(a, a, -(1 + 0x1p-26)), 0x1p-54);
}
#endif
