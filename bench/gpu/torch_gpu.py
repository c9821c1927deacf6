"""PyTorch on the GPU for `make gpu-check`: the cases that `gpu_bench --list` names on stdin, eager, compiled, and compiled for little overhead (graphs).

    build/bench/gpu_bench --list | python3 bench/gpu/torch_gpu.py OUT.json SECONDS

Seconds a call as in bench/gpu_bench.c: medians of samples of calls that are waited for together. f32 without TF32. OUT is written after each measurement, so that
what was measured stays when the time is over; eager goes first, everywhere. Exit status 77 with a sentence where PyTorch or its GPU isn't there.
"""
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "peers"))


def missing(why):
    print(why)
    sys.exit(77)


try:
    import torch
    from torch import nn
except ImportError as e:
    missing(f"PyTorch is not here: {e}")
if not torch.cuda.is_available():
    missing("PyTorch sees no GPU")
import torch_cases as tc

MAKE = {
    "chain-cheap-16M": lambda w, s: tc.Cheap(s[1]),
    "chain-mixed-16M": lambda w, s: tc.Mixed(s[1]),
    "loss-16M": lambda w, s: tc.Loss(),
    "softmax": lambda w, s: nn.Softmax(-1),
    "layer_norm": lambda w, s: nn.LayerNorm(w),
    "block-8x128": lambda w, s: tc.Block(w),
    "minilm-1": lambda w, s: tc.encoder(6, w),
    "minilm-8": lambda w, s: tc.encoder(6, w),
    "gpt2-decode": lambda w, s: tc.twelve(lambda: tc.GptLayer(w, 12, 127)),
    "gpt2-prefill": lambda w, s: tc.twelve(lambda: tc.GptLayer(w, 12)),
}


def sample(module, x, seconds=0.4):
    def calls(n):
        start = time.perf_counter()
        for _ in range(n):
            module(x)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / n

    calls(5)
    k = 1
    while k < 1000 and calls(1) * k < 2e-3:
        k *= 2
    until, times = time.perf_counter() + seconds, []
    while len(times) < 25 and (len(times) < 3 or time.perf_counter() < until):
        times.append(calls(k))
    return statistics.median(times)


def main():
    out, until = pathlib.Path(sys.argv[1]), time.perf_counter() + float(sys.argv[2])
    cases = [line.split() for line in sys.stdin if line.strip()]
    result = {"torch": torch.__version__, "cases": {c[0]: {} for c in cases}}
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for way, mode in (("eager", None), ("compiled", "default"), ("graph", "reduce-overhead")):
        for name, base, width, *sizes in cases:
            if time.perf_counter() > until:
                print(f"torch: no time left for {name}, {way}")
                continue
            sizes = [int(n) for n in sizes]
            torch.manual_seed(1)
            try:
                with torch.no_grad():
                    module, x = MAKE[base](int(width), sizes).eval().cuda(), torch.randn(*sizes, device="cuda")
                    result["cases"][name][way] = sample(torch.compile(module, mode=mode) if mode else module, x)
            except Exception as e:  # one case that fails (no compiler for its kernels, say) doesn't end the others
                print(f"torch: {name}, {way}: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
            torch._dynamo.reset()
            out.write_text(json.dumps(result, indent=1))


main()
