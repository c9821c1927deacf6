"""Calls libkiln.so through ctypes, as any language without C macros would: plain exported functions only.

    test_ctypes.py LIBRARY [DATA-FOLDER]

Tensors, operators by name with a dict of attributes, nn modules, a class of its own whose forward is a Python function (called by signature
string), compilation, report, errors, state files. Ends with 1 at the first thing that isn't as it should be.
"""
import ctypes as C
import json
import math
import os
import sys
import tempfile

NONE, TENSOR, INT, DOUBLE, BOOL, STRING, TUPLE, DICT, MODULE = range(9)
F32, I64 = 8, 5
SITE = b"test_ctypes.py:1"


class Value(C.Structure):                       # kn_value: 16 bytes, by value
    class As(C.Union):
        _fields_ = [("tensor", C.c_void_p), ("i", C.c_int64), ("d", C.c_double), ("string", C.c_char_p), ("module", C.c_void_p),
                    ("items", C.c_void_p)]
    _fields_ = [("kind", C.c_uint32), ("count", C.c_uint32), ("as_", As)]


class Shape(C.Structure):
    _fields_ = [("rank", C.c_int64), ("sizes", C.POINTER(C.c_int64))]


class Scope(C.Structure):
    _fields_ = [("id", C.c_uint64)]


class Module(C.Structure):
    _fields_ = [("type", C.c_void_p), ("state", C.c_void_p)]


class Field(C.Structure):
    _fields_ = [("name", C.c_char_p), ("kind", C.c_uint32), ("offset", C.c_uint32), ("count_offset", C.c_uint32), ("extra", C.c_uint32)]


class Class(C.Structure):
    _fields_ = [("abi", C.c_uint32), ("size", C.c_uint32), ("name", C.c_char_p), ("signature", C.c_char_p), ("forward", C.c_void_p),
                ("thunk", C.c_void_p), ("fields", C.POINTER(Field)), ("checked_arity", C.c_int), ("destroy", C.c_void_p)]


class Stats(C.Structure):
    _fields_ = [(n, C.c_ulonglong) for n in ("calls", "paths", "graphs", "break_sites", "compiles", "recompiles", "fallbacks", "compile_us")]


P, S, STR = C.c_void_p, C.c_size_t, C.c_char_p
kn = C.CDLL(sys.argv[1])
for name, result, *args in (
        ("scope_open", Scope, STR), ("scope_close", None, Scope),
        ("from_data", P, C.c_int, Shape, P, STR), ("tensor_shape", Shape, P), ("tensor_dtype", C.c_int, P), ("numel", C.c_int64, P),
        ("read", C.c_int, P, P, S, STR), ("item", C.c_double, P, STR), ("failed", C.c_bool, P), ("tensor_error", STR, P),
        ("last_error", STR), ("status_name", STR, C.c_int), ("version", C.c_int),
        ("value_tensor", Value, P), ("value_int", Value, C.c_int64), ("value_double", Value, C.c_double), ("value_bool", Value, C.c_bool),
        ("value_string", Value, STR), ("tuple", Value, S, P, STR), ("dict", Value, S, P, STR), ("as_tensor", P, Value),
        ("op", P, STR, S, P, STR), ("op_name", STR, S), ("op_schema", STR, STR), ("add", P, Value, Value, STR),
        ("nn_linear", P, C.c_int64, C.c_int64, P, S), ("nn_relu", P), ("nn_sequential", P, S, P), ("eval", None, P),
        ("new", P, P, S, P, STR), ("module_free", None, P), ("module_tensor", P, P, STR), ("call", P, P, S, P, STR),
        ("call_value", Value, P, S, P, STR), ("class_name", STR, P), ("save_state", C.c_int, P, STR), ("load_state", C.c_int, P, STR),
        ("compile", P, P, P, S, STR), ("stats_get", C.c_int, P, P, S), ("report_write", C.c_int, P, STR, C.c_int)):
    f = getattr(kn, "kn_" + name)
    f.restype, f.argtypes = result, args


def check(holds, what):
    if not holds:
        sys.exit("test_ctypes.py: %s; the library says: %s" % (what, kn.kn_last_error().decode()))


def tensor(values, *sizes):
    data = (C.c_float * len(values))(*values)
    return kn.kn_from_data(F32, Shape(len(sizes), (C.c_int64 * len(sizes))(*sizes)), data, SITE)


def floats(t):
    check(not kn.kn_failed(t), "a tensor carries an error: %s" % kn.kn_tensor_error(t).decode())
    out = (C.c_float * kn.kn_numel(t))()
    check(kn.kn_read(t, out, C.sizeof(out), SITE) == 0, "kn_read")
    return list(out)


def sizes(t):
    s = kn.kn_tensor_shape(t)
    return [s.sizes[i] for i in range(s.rank)]


def box(x):
    if isinstance(x, Value):
        return x
    if isinstance(x, bool):
        return kn.kn_value_bool(x)
    if isinstance(x, float):
        return kn.kn_value_double(x)
    if isinstance(x, bytes):
        return kn.kn_value_string(x)
    if isinstance(x, (list, tuple)):
        items = (Value * len(x))(*[kn.kn_value_int(i) for i in x])
        return kn.kn_tuple(len(x), items, SITE)
    return kn.kn_value_tensor(x)


KEYS = {}                                       # strings in values are borrowed: these live to the end


def key(name):
    return KEYS.setdefault(name, name.encode())


def attributes(**named):
    flat = [v for k, x in named.items() for v in (kn.kn_value_string(key(k)), kn.kn_value_int(x) if type(x) is int else box(x))]
    return kn.kn_dict(len(flat), (Value * len(flat))(*flat), SITE)


def op(name, *args):
    return kn.kn_op(name, len(args), (Value * len(args))(*[box(a) for a in args]), SITE)


def call(module, *args):
    return kn.kn_call(module, len(args), (Value * len(args))(*[box(a) for a in args]), SITE)


def tensors_and_operators():
    x = tensor([1, 2, 3, 4, 5, 6], 2, 3)
    check(sizes(x) == [2, 3] and kn.kn_tensor_dtype(x) == F32, "shape and dtype")
    check(floats(kn.kn_add(box(x), box(0.5), SITE)) == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5], "kn_add")
    check(floats(op(b"sum", x, attributes(dim=[1], keepdim=True))) == [6, 15], "sum over rows")
    check(sizes(op(b"sum", x, attributes(dim=1, keepdim=True))) == [2, 1], "a dim as one integer")
    check(floats(op(b"clamp", x, attributes(min=2.0, max=4.0))) == [2, 2, 3, 4, 4, 4], "operands by keyword")
    check(floats(op(b"permute", x, attributes(dims=[1, 0]))) == [1, 4, 2, 5, 3, 6], "a view")
    check(kn.kn_tensor_dtype(op(b"to", x, attributes(dtype=b"i64"))) == I64, "a dtype as a string")
    soft = floats(op(b"softmax", x, attributes(dim=-1)))
    want = [math.exp(v) / sum(math.exp(u) for u in (1, 2, 3)) for v in (1, 2, 3)]
    check(all(abs(a - b) < 1e-6 for a, b in zip(soft, want + want)), "softmax")
    names, i = [], 0
    while kn.kn_op_name(i):
        names.append(kn.kn_op_name(i))
        i += 1
    check({b"add", b"matmul", b"layer_norm"} <= set(names) and kn.kn_op_schema(b"matmul") == b"T a, T b", "names and schemas")


def errors():
    x = tensor([1, 2, 3], 3)
    wrong = op(b"matmul", x, tensor([1, 2], 2))
    check(kn.kn_failed(wrong) and b"test_ctypes.py:1" in kn.kn_tensor_error(wrong), "a failed operator names its site")
    check(kn.kn_failed(op(b"exp", wrong)), "an error tensor is handed on")
    check(kn.kn_failed(op(b"no_such_op", x)) and b"no_such_op" in kn.kn_last_error(), "an unknown operator")
    check(kn.kn_failed(op(b"sum", x, attributes(dmi=1))) and b"dmi" in kn.kn_last_error(), "an unknown attribute")
    check(math.isnan(kn.kn_item(None, SITE)), "NULL fails cleanly")
    check(kn.kn_failed(call(None, x)), "a NULL module fails cleanly")


def modules(folder):
    net = kn.kn_nn_sequential(3, (P * 3)(kn.kn_nn_linear(8, 16, None, 0), kn.kn_nn_relu(), kn.kn_nn_linear(16, 4, None, 0)))
    check(net, "kn_nn_sequential")
    kn.kn_eval(net)
    fast = kn.kn_compile(net, None, 0, SITE)
    x = tensor([i / 32 - 0.5 for i in range(32)], 4, 8)
    want = floats(call(net, x))
    for _ in range(3):
        check(floats(call(fast, x)) == want, "compiled equals eager")
    stats = Stats()
    check(kn.kn_stats_get(fast, C.byref(stats), C.sizeof(stats)) == 0 and (stats.calls, stats.paths, stats.graphs) == (3, 1, 1), "stats")
    report = os.path.join(folder, "report.json").encode()
    check(kn.kn_report_write(fast, report, 1) == 0, "kn_report_write")
    with open(report) as f:
        check(json.load(f)["summary"]["calls"] == 3, "the report as JSON")

    state = os.path.join(folder, "net.safetensors").encode()
    check(kn.kn_save_state(net, state) == 0, "kn_save_state")
    weight = kn.kn_module_tensor(net, b"0.weight")
    before = floats(weight)
    op(b"mul_", weight, 2.0)
    check(floats(call(fast, x)) == floats(call(net, x)) != want, "a weight changed in place shows at the next call")
    check(kn.kn_load_state(net, state) == 0 and floats(weight) == before, "kn_load_state")
    check(floats(call(fast, x)) == want, "and the old answers come back")
    kn.kn_module_free(fast)
    kn.kn_module_free(net)


def own_class():
    """A class by signature string: forward is a Python function; libffi calls it at every call, compiled or not."""
    class Affine(C.Structure):
        _fields_ = [("base", Module), ("fc", P), ("scale", C.c_double)]
    calls = []

    @C.CFUNCTYPE(P, C.POINTER(Affine), P, C.c_double)
    def forward(self, x, shift):
        calls.append(shift)
        return op(b"add", op(b"mul", call(self.contents.fc, x), self.contents.scale), shift)

    fields = (Field * 3)(Field(b"fc", 1, Affine.fc.offset, 0, 0), Field(b"scale", 18, Affine.scale.offset, 0, 0), Field(None, 0, 0, 0, 0))
    cls = Class(C.sizeof(Class), C.sizeof(Affine), b"Affine", b"T(T,d)", C.cast(forward, P), None, fields, -1, None)
    init = Affine(Module(), kn.kn_nn_linear(3, 3, None, 0), 2.0)
    m = kn.kn_new(C.byref(cls), C.sizeof(Affine), C.byref(init), SITE)
    check(m and kn.kn_class_name(m) == b"Affine", "kn_new by signature string")
    fast = kn.kn_compile(m, None, 0, SITE)
    x = tensor([1, 2, 3, 4, 5, 6], 2, 3)
    for shift in (0.25, 0.25, 0.5, 0.75):
        check(floats(call(fast, x, shift)) == floats(call(m, x, shift)), "a compiled forward written in Python")
    C.cast(m, C.POINTER(Affine)).contents.scale = 3.0
    check(floats(call(fast, x, 0.0)) == floats(call(m, x, 0.0)), "an attribute changed from Python")
    check(calls == [0.25] * 4 + [0.5] * 2 + [0.75] * 2 + [0.0] * 2, "forward ran at every call")
    wrong = kn.kn_call(fast, 1, (Value * 1)(box(x)), SITE)
    check(kn.kn_failed(wrong), "too few arguments are refused")
    bad = Class(C.sizeof(Class), C.sizeof(Affine), b"Affine", b"T(T,Q)", C.cast(forward, P), None, fields, -1, None)
    init = Affine(Module(), kn.kn_nn_linear(3, 3, None, 0), 2.0)
    check(not kn.kn_new(C.byref(bad), C.sizeof(Affine), C.byref(init), SITE) and kn.kn_last_error(), "a bad signature is refused")
    kn.kn_module_free(fast)
    kn.kn_module_free(m)
    return forward, cls, bad, fields            # what the library may still point at stays alive until here


def main():
    scope = kn.kn_scope_open(b"main")
    check(kn.kn_version() >= 1 and kn.kn_status_name(2), "version and status names")
    tensors_and_operators()
    errors()
    with tempfile.TemporaryDirectory() as folder:
        modules(folder)
    keep = own_class()
    kn.kn_scope_close(scope)
    del keep
    print("ctypes: all as expected")


main()
