"""One peer in a process of its own: reads lines {"case": …, "seconds": …}, answers each with a line of JSON: times in microseconds a call, or an error.

usage: worker.py PEER THREADS         PEER: torch-eager, torch-compile, torch-max-autotune, torch-inference, onnxruntime, openvino, jax
"""
import io
import json
import os
import statistics
import sys
import time
import warnings

warnings.filterwarnings("ignore")
PEER, THREADS = sys.argv[1], int(sys.argv[2])
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)                                   # what libraries print goes elsewhere


def torch_run(name):
    import torch
    import torch_cases
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    module, inputs = torch_cases.make(name)
    if PEER == "torch-compile":
        module = torch.compile(module)
    elif PEER == "torch-max-autotune":
        module = torch.compile(module, mode="max-autotune")
    elif PEER == "torch-inference":
        if name == "early-exit":
            raise NotImplementedError("control flow on a value can't be traced")
        module = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(module, inputs[0])))

    def call():
        with torch.inference_mode(PEER == "torch-eager"):
            for x in inputs:
                module(x)
    return call, len(inputs), torch.__version__


def onnx_bytes(name):
    import torch
    import torch_cases
    if name == "early-exit":
        raise NotImplementedError("control flow on a value can't be exported")
    module, inputs = torch_cases.make(name)
    f = io.BytesIO()
    with torch.no_grad():
        try:
            torch.onnx.export(module, (inputs[0],), f, dynamo=False, opset_version=17, input_names=["x"])
        except Exception:
            program = torch.onnx.export(module, (inputs[0],), dynamo=True, input_names=["x"])
            f = io.BytesIO(program.model_proto.SerializeToString())
    return f.getvalue(), [x.numpy() for x in inputs]


def onnxruntime_run(name):
    import onnxruntime
    model, inputs = onnx_bytes(name)
    o = onnxruntime.SessionOptions()
    o.intra_op_num_threads, o.inter_op_num_threads = THREADS, 1
    session = onnxruntime.InferenceSession(model, o, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name

    def call():
        for x in inputs:
            session.run(None, {feed: x})
    return call, len(inputs), onnxruntime.__version__


def openvino_run(name):
    import openvino
    model, inputs = onnx_bytes(name)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY",
                                                                  "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False})
    request = compiled.create_infer_request()

    def call():
        for x in inputs:
            request.infer([x])
    return call, len(inputs), openvino.__version__.split("-")[0]


def jax_run(name):
    import jax
    import jax_cases
    if name not in jax_cases.CASES:
        raise NotImplementedError("not written for JAX")
    function, inputs = jax_cases.make(name)

    def call():
        for x in inputs:
            function(x).block_until_ready()
    return call, len(inputs), jax.__version__


def timed(call, rounds):
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds


def measure(name, seconds):
    make = {"onnxruntime": onnxruntime_run, "openvino": openvino_run, "jax": jax_run}.get(PEER, torch_run)
    start = time.perf_counter()
    call, n, version = make(name)
    call()
    ready = time.perf_counter() - start
    until = time.perf_counter() + min(seconds, 1.0)
    for i in range(50):                         # warm-up
        call()
        if i >= 2 and time.perf_counter() > until:
            break
    rounds = 1
    while timed(call, rounds) * rounds < 3e-4 and rounds < 1 << 16:
        rounds *= 2
    samples, until = [], time.perf_counter() + seconds
    while len(samples) < 60 and (len(samples) < 5 or time.perf_counter() < until):
        samples.append(timed(call, rounds) * 1e6 / n)
    samples.sort()
    return {"median": statistics.median(samples), "p10": samples[len(samples) // 10], "p90": samples[len(samples) * 9 // 10], "n": len(samples),
            "ready_s": ready, "version": version}


for line in sys.stdin:
    job = json.loads(line)
    try:
        answer = measure(job["case"], job["seconds"])
    except BaseException as e:                  # whatever a peer throws is its answer
        answer = {"error": f"{type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e).strip() else ''}"}
    print(json.dumps(answer), file=out, flush=True)
