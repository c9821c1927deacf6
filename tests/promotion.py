#!/usr/bin/env python3
"""Writes tests/data/promotion.txt: the dtypes that PyTorch gives for every pair of operands. Needs torch; run once, the result is kept in the repository.

A line is "OP LEFT RESULTS": LEFT is a kind (t tensor, z tensor without dimensions, n number) and a dtype's letter; RESULTS has a letter for each right operand,
in the order of the line "right"; - is an error, . a pair that PyTorch's
Python face doesn't take.
"""
import sys
import torch

LETTERS = [("b", torch.bool), ("u", torch.uint8), ("c", torch.int8), ("s", torch.int16), ("i", torch.int32), ("l", torch.int64),
           ("h", torch.float16), ("k", torch.bfloat16), ("f", torch.float32), ("d", torch.float64)]
NUMBERS = [("b", True), ("l", 1), ("d", 1.0)]
LETTER_OF = {d: c for c, d in LETTERS}
OPS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"), "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "pow": torch.pow, "remainder": torch.remainder, "fmod": torch.fmod, "maximum": torch.maximum, "minimum": torch.minimum, "atan2": torch.atan2,
    "copysign": torch.copysign, "eq": torch.eq, "lt": torch.lt, "logical_and": torch.logical_and, "logical_xor": torch.logical_xor,
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_left_shift": torch.bitwise_left_shift,
    "where": lambda a, b: torch.where(torch.tensor([True]), a, b),
}


def operands():
    for c, d in LETTERS:
        yield "t" + c, torch.ones(2, dtype=d)
    for c, d in LETTERS:
        yield "z" + c, torch.ones((), dtype=d)
    for c, v in NUMBERS:
        yield "n" + c, v


def main():
    out = ["# made by tests/promotion.py with torch " + torch.__version__.split("+")[0]]
    everything = list(operands())
    out.append("right " + " ".join(name for name, _ in everything))
    for op, f in OPS.items():
        for left, a in everything:
            row = ""
            for _, b in everything:
                if not torch.is_tensor(a) and not torch.is_tensor(b):
                    row += "."
                    continue
                try:
                    row += LETTER_OF[f(a, b).dtype]
                except TypeError:       # its Python face takes no number there
                    row += "."
                except RuntimeError:
                    row += "-"
            out.append(f"{op} {left} {row}")
    open(sys.argv[1] if len(sys.argv) > 1 else "tests/data/promotion.txt", "w").write("\n".join(out) + "\n")


main()
