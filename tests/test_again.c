/* test_again.c: cheap operators that several kernels read are computed in each of them (codegen/again.c): the op interpreter's bits, and
 * no room for their result in the arena; and what has to be stored once still is.
 */
#include "tests/support/graph_check.h"
#include <string.h>

enum { WHOLE = 64 * 96 * 4 };       /* bytes of the operand of each graph below */

static bool is_stored(const char *text) { return check_seeds(text, 3).arena_bytes >= WHOLE / 4; /* a bool's */ }

/* `how` makes %2 of %0 and %1; a sum of columns and a softmax of rows are two kernels, whatever reads them. */
#define BOTH(how) "graph (%0: f32[64, 96], %1: f32[64, 96]) {\n " how "\n %3 = sum(%2) dims=[0] keepdim=false\n %4 = softmax(%2) dim=1\n return %3, %4\n}\n"

static void computed_again(void)
{
    cr_expect(!is_stored(BOTH("%2 = mul(%0, 0.125)")), "one operand");
    cr_expect(!is_stored(BOTH("%2 = relu(%0)")), "a maximum");
    cr_expect(!is_stored("graph (%0: f32[64, 96], %1: f32[1, 96]) {\n %2 = sub(%0, %1, _)\n %3 = sum(%2) dims=[0] keepdim=false\n %4 = softmax(%2) dim=1\n return %3, %4\n}\n"),
              "an operand and a small one");
    cr_expect(!is_stored("graph (%0: f32[64, 96], %1: f32[64, 96]) {\n %2 = sub(%0, %1, _)\n %4 = sum(%2) dims=[0] keepdim=false\n %3 = softmax(%2) dim=1\n %5 = mul(%3, %1)\n"
                         " return %4, %5\n}\n"), "one of two operands is read there anyway");
    cr_expect(!is_stored("graph (%0: f32[4, 16, 96]) {\n %1 = mean(%0) dims=[0, 2] keepdim=true\n %2 = sub(%0, %1, _)\n %3 = mul(%2, %2)\n %4 = mean(%3) dims=[0, 2] keepdim=true\n"
                         " %5 = rsqrt(%4)\n %6 = mul(%2, %5)\n return %6\n}\n"), "the deviations of a norm by hand");
}
Test(again, computed_again) { computed_again(); }
Test(again, computed_again_interpreted, .init = interpreted) { computed_again(); }

static void stored_once(void)
{
    cr_expect(is_stored(BOTH("%2 = sub(%0, %1, _)")), "two operands cost as much as the result");
    cr_expect(is_stored(BOTH("%2 = tanh(%0)")), "many instructions");
    cr_expect(is_stored(BOTH("%5 = cumsum(%0) dim=0\n %2 = relu(%5)")), "its operand would have to be kept instead");
    cr_expect(is_stored("graph (%0: f32[64, 96]) {\n %1 = relu(%0)\n %2 = sum(%1) dims=[0] keepdim=false\n %3 = cumsum(%1) dim=0\n return %2, %3\n}\n"), "an eager step reads it");
}
Test(again, stored_once) { stored_once(); }
Test(again, stored_once_interpreted, .init = interpreted) { stored_once(); }

/* The operand is written between two readers of what was made of it: its second reader needs the old value. */
Test(again, operands_that_are_written_later)
{
    is_stored("graph (%0: f32[64, 96]) {\n %1 = mul(%0, 3.0)\n %2 = sum(%1) dims=[0] keepdim=false\n %3 = mul_(%0, 2.0)\n %4 = softmax(%1) dim=1\n return %2, %4\n}\n");
}
