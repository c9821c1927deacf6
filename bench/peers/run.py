"""Kiln beside its peers: each case by Kiln and then by every peer, in turn, within the same minutes, on the same threads; a table with ratios, JSON, a plot.

usage: run.py [--threads 1,2] [--seconds 1] [--cases a,b] [--peers a,b] [--out FOLDER] [--cold]

Each peer is a process of its own that lives through the run (worker.py), bound to as many CPUs as threads, its allocator told to keep memory. A peer that can't be
had or can't do a case is named and left out of that row. Ratios are peer's median / Kiln's median: above 1, Kiln is faster.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = ["torch-eager", "torch-compile", "torch-max-autotune", "torch-inference", "onnxruntime", "openvino", "jax"]
CASES = ["early-exit", "block-8x128", "block-1x16", "encoder", "minilm-1", "minilm-8", "resnet18", "mobilenet_v2", "conv-7x7",
         "conv-3x3", "conv-depthwise", "conv-residual", "gpt2-decode", "gpt2-prefill", "lstm",
         "chain-cheap-1M", "chain-cheap-16M", "chain-mixed-1M", "chain-mixed-16M", "softmax", "layer_norm", "mlp"]
ONE_THREAD = {"mlp"}                            # as in bench/support/cases.c
TIMEOUT = 240                                   # seconds for a case of one peer, its compilation included


def environment(threads):
    n = str(threads)
    keep = str(1 << 30)
    return dict(os.environ, OMP_NUM_THREADS=n, MKL_NUM_THREADS=n, OPENBLAS_NUM_THREADS=n, KN_THREADS=n, MALLOC_MMAP_THRESHOLD_=keep, MALLOC_TRIM_THRESHOLD_=keep,
                MALLOC_TOP_PAD_=str(1 << 28), JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3", PYTHONPATH=str(HERE),
                XLA_FLAGS="--xla_cpu_multi_thread_eigen=" + ("true" if threads > 1 else "false"))


class Worker:
    def __init__(self, peer, threads):
        self.peer, self.threads, self.process = peer, threads, None

    def start(self):
        cpus = set(sorted(os.sched_getaffinity(0))[:self.threads])
        self.process = subprocess.Popen([sys.executable, str(HERE / "worker.py"), self.peer, str(self.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, env=environment(self.threads), preexec_fn=lambda: os.sched_setaffinity(0, cpus))

    def ask(self, case, seconds):
        if not self.process or self.process.poll() is not None:
            self.start()
        timer = threading.Timer(TIMEOUT, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"case": case, "seconds": seconds}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            return json.loads(line) if line else {"error": f"no answer within {TIMEOUT} s, or it died"}
        except OSError as e:
            return {"error": str(e)}
        finally:
            timer.cancel()

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()


def kiln(case, threads, seconds, out):
    path = out / "kiln.json"
    path.unlink(missing_ok=True)
    cpus = set(sorted(os.sched_getaffinity(0))[:threads])
    r = subprocess.run([str(ROOT / "build/bench/bench"), case, "--alone", "--threads", str(threads), "--seconds", str(2 * seconds), "--data", str(ROOT / "data"), "--json",
                        str(path)], env=dict(os.environ, KN_BACKEND_DIR=str(ROOT / "build")), capture_output=True, text=True,
                       preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    rows = [c for c in json.loads(path.read_text())["cases"] if c["name"] == case] if path.exists() else []
    if not rows:
        return {"error": (r.stdout.strip().splitlines() or ["no answer"])[-1]}, {"error": "see kiln"}
    c = rows[0]
    return ({**c["compiled"], "ready_s": c["compile_ms"] / 1e3}, c["eager"])


def text(us):
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.2f} us"


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def versions(rows, names):
    """By peer: what it said; of one that answered nothing, that it is missing."""
    said = {n: [row["peers"][n]["version"] for row in rows if "version" in row["peers"].get(n, {})] for n in names}
    return {n: v[0] if v else "missing" for n, v in said.items()}


def table(rows, names, threads):
    lines = [f"{threads} thread{'s' if threads > 1 else ''}; ratio = peer's time / Kiln's: above 1, Kiln is faster",
             f"{'case':16s} {'kiln':>10s} {'kiln-eager':>11s} " + " ".join(f"{n:>22s}" for n in names) + "   best peer"]
    best_ratios, compile_ratios = [], []
    for row in rows:
        k, answers = row["kiln"], row["peers"]
        if "median" not in k:
            lines.append(f"{row['case']:16s} {k['error']}")
            continue
        cells, best = [], None
        for n in names:
            a = answers.get(n, {"error": "not asked"})
            if "median" not in a:
                cells.append(f"{'-':>22s}")
                continue
            ratio = a["median"] / k["median"]
            cells.append(f"{text(a['median']):>13s} {ratio:7.2f}x")
            if best is None or ratio < best[0]:
                best = (ratio, n)
        if best:
            best_ratios.append(best[0])
        if "median" in answers.get("torch-compile", {}):
            compile_ratios.append(answers["torch-compile"]["median"] / k["median"])
        lines.append(f"{row['case']:16s} {text(k['median']):>10s} {text(row['kiln_eager']['median']):>11s} " + " ".join(cells) +
                     (f"   {best[0]:.2f}x {best[1]}" if best else ""))
    lines.append(f"geometric mean over {len(best_ratios)} rows: {geomean(best_ratios):.2f}x the best peer of each row; over {len(compile_ratios)}: "
                 f"{geomean(compile_ratios):.2f}x torch.compile")
    lines.append("ready (made and called once), s: " + "; ".join(
        f"{row['case']} kiln {row['kiln']['ready_s']:.3f}" + "".join(f", {n} {a['ready_s']:.1f}" for n, a in row["peers"].items() if "median" in a and n in
                                                                     ("torch-compile", "torch-max-autotune", "jax", "openvino"))
        for row in rows if "median" in row["kiln"]))
    lines.append("versions: " + ", ".join(f"{n} {v}" for n, v in versions(rows, names).items()) + f"; Python {sys.version.split()[0]}")
    for row in rows:
        for n, a in row["peers"].items():
            if "median" not in a:
                lines.append(f"left out: {row['case']} by {n}: {a['error']}")
    return "\n".join(lines)


def plot(rows, names, threads, path):
    """False: there is nothing to plot with."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as e:
        print(f"no plot: {e}", file=sys.stderr)
        return False
    figure, axes = pyplot.subplots(figsize=(14, 6))
    rows = [r for r in rows if "median" in r["kiln"]]
    width = 0.8 / len(names)
    for i, n in enumerate(names):
        at = [(x + (i - len(names) / 2 + 0.5) * width, r["peers"][n]["median"] / r["kiln"]["median"]) for x, r in enumerate(rows) if "median" in r["peers"].get(n, {})]
        if at:
            axes.bar([a for a, _ in at], [b for _, b in at], width, label=n)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)), [r["case"] for r in rows], rotation=30, ha="right")
    axes.set_ylabel("peer's time / Kiln's (above 1: Kiln is faster)")
    axes.set_title(f"{threads} thread{'s' if threads > 1 else ''}, f32")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--threads", default="1,2")
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--peers", default=",".join(PEERS))
    p.add_argument("--out", default=str(ROOT / "build/peers"))
    p.add_argument("--cold", action="store_true", help="torch.compile without its caches on disk, as Kiln is without its own: for the time until ready")
    o = p.parse_args()
    if o.cold:
        os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    out, names, failed = pathlib.Path(o.out), o.peers.split(","), False
    out.mkdir(parents=True, exist_ok=True)
    for threads in map(int, o.threads.split(",")):
        workers, rows = {n: Worker(n, threads) for n in names}, []
        for case in o.cases.split(","):
            if case in ONE_THREAD and threads > 1:
                continue
            fast, eager = kiln(case, threads, o.seconds, out)
            row = {"case": case, "threads": threads, "kiln": fast, "kiln_eager": eager, "peers": {}}
            for n, w in workers.items():
                print(f"\r\033[K{threads} thread(s), {case}, {n} …", end="", file=sys.stderr, flush=True)
                row["peers"][n] = w.ask(case, o.seconds)
            rows.append(row)
            failed |= "median" not in fast
            (out / f"peers-{threads}.json").write_text(json.dumps(rows, indent=1))
        print("\r\033[K", end="", file=sys.stderr)
        for w in workers.values():
            w.stop()
        print(table(rows, names, threads), flush=True)
        (out / f"peers-{threads}.txt").write_text(table(rows, names, threads) + "\n")
        plotted = plot(rows, names, threads, out / f"peers-{threads}.svg")
        print(f"wrote {os.path.relpath(out)}/peers-{threads}.json, .txt{', .svg' if plotted else ''}\n")
    sys.exit(failed)


main()
