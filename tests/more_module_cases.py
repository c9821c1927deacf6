"""Makes tests/golden/modules-more.json and .safetensors: module cases beyond modules.json, in the same form, worked out by PyTorch in float64.

    python tests/more_module_cases.py       needs torch and safetensors; the same seed gives the same cases for one version of PyTorch

They cover options, ranks and masks that modules.json leaves out: one case a call of `case`.
"""
import copy
import json
import torch
import torch.nn as nn
from safetensors.torch import save_file

torch.manual_seed(1)
tensors, cases = {}, []
R = torch.randn


def put(t):
    name = f"t{len(tensors)}"
    t = t.detach()
    tensors[name] = (t.to(torch.float32) if t.dtype == torch.float64 else t).contiguous().clone()
    return name


def flat(v):
    if v is None:
        return []
    return [v] if isinstance(v, torch.Tensor) else [t for part in v for t in flat(part)]


def exact(v):
    """In float64, with values that float32 holds."""
    if isinstance(v, tuple):
        return tuple(exact(x) for x in v)
    return v.float().double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v


def names(v):
    return [names(x) for x in v] if isinstance(v, tuple) else put(v)


def case(cls, *args, inputs, kw={}, mode="eval", module=None, **kwargs):
    m = (module or getattr(nn, cls)(*args, **kwargs)).double()
    with torch.no_grad():
        for p in m.parameters():
            p.copy_((R(p.shape) * 0.4).float())
        for name, b in m.named_buffers():
            if b.is_floating_point():
                b.copy_((torch.rand(b.shape) + 0.3 if "var" in name else R(b.shape) * 0.3).float())
    m.train(mode == "train")
    inputs, kw = [exact(i) for i in inputs], {k: exact(v) for k, v in kw.items()}
    before = {k: v.clone() for k, v in m.state_dict().items()}
    state = {k: put(v) for k, v in before.items()}
    out = m(*copy.deepcopy(inputs), **kw)
    changed = {k: put(v) for k, v in m.state_dict().items() if not torch.equal(v, before[k])}
    cases.append(dict(id=f"{cls}/more{len(cases)}", module=cls, args=list(args), kwargs=kwargs, mode=mode, rtol=3e-5, atol=3e-5, state=state,
                      inputs=[names(i) for i in inputs], kw_inputs={k: put(v) if isinstance(v, torch.Tensor) else v for k, v in kw.items()},
                      outputs=[put(o) for o in flat(out)], changed_state=changed))


image, line = R(2, 4, 8, 9), R(2, 4, 11)
for a in "ReLU ReLU6 SELU SiLU Mish Softsign Tanh Tanhshrink Sigmoid LogSigmoid Hardswish Hardsigmoid".split():
    case(a, inputs=[R(3, 5) * 3])
    case(a, inputs=[R(())])
for a in "LeakyReLU ELU Hardtanh".split():
    case(a, inputs=[R(3, 5)])
case("CELU", 1.7, inputs=[R(7)])
case("Softplus", inputs=[R(7) * 30])
case("Softmax", 1, inputs=[R(3, 5)])
case("LogSoftmax", 0, inputs=[R(3, 5)])
case("Softmin", -1, inputs=[R(3, 5)])
case("GLU", inputs=[R(3, 6)])
case("PReLU", inputs=[R(3, 5)])
case("PReLU", 4, inputs=[image])
case("PReLU", init=0.1, inputs=[R(5)])

case("Identity", inputs=[R(2)])
case("Flatten", inputs=[image])
case("Flatten", 0, -2, inputs=[image])
case("Unflatten", 1, [2, 2], inputs=[image])
case("Unflatten", -1, [3, -1], inputs=[image])
case("PixelShuffle", 2, inputs=[image])
case("PixelShuffle", 2, inputs=[R(8, 3, 2)])
case("PixelUnshuffle", 2, inputs=[R(3, 4, 6)])
for c, pad, x in (("ZeroPad2d", [1, 2, 3, 0], image), ("ZeroPad2d", [-1, 2, 0, -2], image), ("ZeroPad1d", 2, line), ("ReflectionPad1d", [2, 3], line),
                  ("ReflectionPad2d", [1, 2, 3, 1], R(4, 6, 7)), ("ReplicationPad1d", 2, line), ("ReplicationPad2d", [2, 1, 0, 3], image),
                  ("CircularPad1d", 2, line), ("CircularPad2d", [1, 2, 3, 1], image)):
    case(c, pad, inputs=[x])
case("ConstantPad2d", 1, 2.5, inputs=[image])
case("ConstantPad1d", [1, 0], -1.5, inputs=[line])
case("Dropout", 0.3, inputs=[line])
case("Dropout", 0.0, inputs=[line], mode="train")
case("Dropout1d", 0.3, inputs=[line])
case("Dropout2d", 0.3, inputs=[image])

case("Linear", 5, 3, inputs=[R(5)])
case("Linear", 5, 3, bias=False, inputs=[R(2, 3, 4, 5)])
case("Linear", 5, 3, inputs=[R(0, 5)])
case("Bilinear", 4, 5, 3, bias=False, inputs=[R(2, 3, 4), R(2, 3, 5)])
case("Bilinear", 4, 5, 3, inputs=[R(4), R(5)])
case("Embedding", 10, 3, padding_idx=-1, inputs=[torch.tensor([[1, 9], [0, 4]])])
case("Embedding", 10, 3, inputs=[torch.tensor(3)])
case("LayerNorm", 5, inputs=[R(2, 5)])
case("LayerNorm", 5, elementwise_affine=False, inputs=[R(2, 5)])
case("LayerNorm", [4, 8, 9], bias=False, inputs=[image])
case("RMSNorm", 5, inputs=[R(2, 5)])
case("RMSNorm", [8, 9], eps=1e-3, inputs=[image])
case("RMSNorm", 9, elementwise_affine=False, inputs=[image])
case("GroupNorm", 2, 4, inputs=[line])
case("GroupNorm", 4, 4, affine=False, eps=1e-3, inputs=[image])
case("GroupNorm", 1, 4, inputs=[R(3, 4)])
for mode in ("train", "eval"):
    for c, x in (("BatchNorm1d", line), ("BatchNorm2d", image)):
        case(c, 4, eps=1e-3, momentum=0.2, inputs=[x], mode=mode)
        case(c, 4, track_running_stats=False, inputs=[x], mode=mode)
        case(c, 4, affine=False, track_running_stats=False, inputs=[x], mode=mode)
        case(c, 4, momentum=0.0, inputs=[x], mode=mode)
    for affine in (True, False):
        case("InstanceNorm1d", 4, affine=affine, track_running_stats=True, inputs=[line], mode=mode)
        case("InstanceNorm2d", 4, affine=affine, track_running_stats=True, momentum=0.3, inputs=[image], mode=mode)
        case("InstanceNorm2d", 4, affine=affine, track_running_stats=True, inputs=[R(4, 5, 6)], mode=mode)
case("BatchNorm2d", 4, momentum=None, inputs=[image])
case("BatchNorm1d", 4, inputs=[R(6, 4)], mode="train")
case("InstanceNorm1d", 4, inputs=[line])
case("InstanceNorm1d", 4, affine=True, inputs=[R(4, 7)])
case("InstanceNorm2d", 4, eps=1e-3, inputs=[image], mode="train")

for o in (dict(), dict(stride=2), dict(padding="same"), dict(padding="valid"), dict(padding="same", dilation=2), dict(padding=2, padding_mode="circular"),
          dict(padding=1, padding_mode="replicate"), dict(groups=2, bias=False), dict(padding=3, padding_mode="reflect", stride=2)):
    case("Conv1d", 4, 6, 3, inputs=[line], **o)
    case("Conv2d", 4, 6, 3, inputs=[image], **o)
case("Conv1d", 4, 6, 4, padding="same", inputs=[line])
case("Conv1d", 4, 6, 3, inputs=[R(4, 11)])
case("Conv1d", 4, 6, [3], stride=[2], inputs=[line])
case("Conv2d", 4, 6, [2, 3], padding="same", dilation=[1, 2], inputs=[image])
case("Conv2d", 4, 6, [4, 2], padding="same", padding_mode="reflect", inputs=[image])
case("Conv2d", 4, 6, 3, stride=[1, 2], padding=[2, 1], inputs=[R(4, 8, 9)])
case("Conv2d", 4, 6, [3, 1], padding=[1, 0], padding_mode="circular", inputs=[image])
for o in (dict(), dict(stride=2, padding=1, output_padding=1), dict(groups=2, dilation=2), dict(bias=False, padding=2)):
    case("ConvTranspose1d", 4, 6, 3, inputs=[line], **o)
    case("ConvTranspose2d", 4, 6, 3, inputs=[image], **o)
case("ConvTranspose2d", 4, 6, [2, 3], stride=[1, 2], output_padding=[0, 1], inputs=[image])
case("ConvTranspose2d", 4, 6, 3, inputs=[R(4, 5, 6)])
for o in (dict(), dict(stride=1, padding=1), dict(dilation=2), dict(ceil_mode=True, stride=2)):
    case("MaxPool1d", 3, inputs=[line], **o)
    case("MaxPool2d", 3, inputs=[image], **o)
for o in (dict(), dict(stride=1, padding=1), dict(ceil_mode=True, stride=2), dict(padding=1, count_include_pad=False)):
    case("AvgPool1d", 3, inputs=[line], **o)
    case("AvgPool2d", 3, inputs=[image], **o)
case("MaxPool2d", [2, 3], stride=[1, 2], padding=[1, 0], inputs=[image])
case("AvgPool2d", [2, 3], divisor_override=5, inputs=[image])
case("AdaptiveAvgPool1d", 5, inputs=[line])
case("AdaptiveAvgPool2d", 1, inputs=[image])
case("AdaptiveAvgPool2d", [2, 4], inputs=[R(4, 5, 6)])
case("AdaptiveMaxPool2d", [3, 2], inputs=[image])
for a, x in (([[5, 7]], image), ([17], line), ([None, 3, "linear"], line), ([None, 0.5], R(1, 2, 4, 4)), ([[5, 7], None, "bilinear", False], image),
             ([None, 2.0], image)):
    case("Upsample", *a, inputs=[x])

q, k = R(2, 5, 12), R(2, 7, 12)
v = R(2, 7, 12)
mask = torch.rand(5, 7) > 0.8
mask[:, 0] = False
padding = torch.zeros(2, 7, dtype=torch.bool)
padding[1, 4:] = True
causal = torch.triu(torch.full((5, 5), float("-inf")), 1)
A = "MultiheadAttention"
for o in (dict(attn_mask=mask), dict(attn_mask=mask, need_weights=False), dict(average_attn_weights=False), dict(attn_mask=R(6, 5, 7))):
    case(A, 12, 3, batch_first=True, inputs=[q, k, v], kw=o)
case(A, 12, 3, batch_first=True, inputs=[q, q, q], kw=dict(attn_mask=causal, is_causal=True, need_weights=False))
case(A, 12, 3, batch_first=True, inputs=[q[0], k[0], v[0]])
case(A, 12, 3, inputs=[q[0], k[0], v[0]], kw=dict(key_padding_mask=padding[1], need_weights=False))
case(A, 12, 3, inputs=[q[0], k[0], v[0]], kw=dict(attn_mask=R(5, 7)))
case(A, 12, 3, batch_first=True, kdim=5, inputs=[q, R(2, 7, 5), v], kw=dict(key_padding_mask=R(2, 7)))
for first in (True, False):
    x = [q, k, v] if first else [t.transpose(0, 1) for t in (q, k, v)]
    for o in (dict(add_bias_kv=True), dict(add_zero_attn=True), dict(add_bias_kv=True, add_zero_attn=True)):
        case(A, 12, 3, batch_first=first, inputs=x, **o)
        case(A, 12, 3, batch_first=first, inputs=x, kw=dict(attn_mask=mask, key_padding_mask=padding), **o)
        case(A, 12, 3, batch_first=first, inputs=x, kw=dict(attn_mask=R(6, 5, 7), need_weights=False), **o)
layer = dict(d_model=12, nhead=3, dim_feedforward=20, dropout=0.0)
src = R(5, 2, 12)
L = "TransformerEncoderLayer"
case(L, bias=False, layer_norm_eps=1e-3, inputs=[src], mode="train", **layer)
case(L, norm_first=True, inputs=[src], kw=dict(src_mask=torch.rand(5, 5) > 0.9), mode="train", **layer)
case(L, batch_first=True, inputs=[R(5, 12)], mode="train", **layer)
case(L, inputs=[src], **layer)
case("TransformerDecoderLayer", norm_first=True, activation="gelu", inputs=[src, R(7, 2, 12)], kw=dict(tgt_mask=causal, memory_key_padding_mask=padding),
     mode="train", **layer)
layer = dict(layer, batch_first=True, activation="gelu")
case("TransformerEncoder", layer=layer, num_layers=3, inputs=[R(2, 5, 12)], kw=dict(mask=causal), mode="train",
     module=nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 3, enable_nested_tensor=False))

for c in ("RNN", "LSTM", "GRU"):
    def state(*shape):
        return (R(shape), R(shape)) if c == "LSTM" else R(shape)
    for o in (dict(num_layers=3), dict(bias=False), dict(bidirectional=True), dict(num_layers=2, dropout=0.4)):
        case(c, 5, 6, inputs=[R(4, 3, 5)], **o)
    case(c, 5, 6, batch_first=True, inputs=[R(3, 1, 5), state(1, 3, 6)])
    case(c, 5, 6, inputs=[R(7, 5)])
    case(c, 5, 6, bidirectional=True, inputs=[R(7, 5), state(2, 6)])
    case(c, 2, 3, inputs=[R(70, 1, 2)])
    case(c + "Cell", 5, 6, inputs=[R(3, 5)])
    case(c + "Cell", 5, 6, bias=False, inputs=[R(3, 5), state(3, 6)])
    case(c + "Cell", 5, 6, inputs=[R(5)])
case("RNN", 5, 6, nonlinearity="relu", inputs=[R(4, 3, 5)])
case("RNNCell", 5, 6, nonlinearity="relu", inputs=[R(3, 5)])
case("LSTM", 5, 6, proj_size=2, bidirectional=True, num_layers=2, batch_first=True, inputs=[R(3, 4, 5), (R(4, 3, 2), R(4, 3, 6))])

target = torch.tensor([0, 2, 1, -100, 3])
for r in ("mean", "sum", "none"):
    for c in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"):
        case(c, reduction=r, inputs=[R(3, 4), R(3, 4)])
    case("BCELoss", reduction=r, inputs=[torch.rand(3, 4), torch.rand(3, 4)])
    case("BCEWithLogitsLoss", reduction=r, inputs=[R(3, 4), torch.rand(3, 4)])
    case("CrossEntropyLoss", reduction=r, inputs=[R(5, 4), target])
    case("NLLLoss", reduction=r, inputs=[R(5, 4), target])
    case("KLDivLoss", reduction=r, inputs=[R(3, 4).log_softmax(1), R(3, 4).softmax(1)])
case("KLDivLoss", reduction="batchmean", log_target=True, inputs=[R(3, 4).log_softmax(1), R(3, 4).log_softmax(1)])
case("SmoothL1Loss", beta=0.0, inputs=[R(3, 4), R(3, 4)])
case("HuberLoss", delta=0.3, inputs=[R(3, 4), R(3, 4)])
case("CrossEntropyLoss", ignore_index=0, label_smoothing=0.2, inputs=[R(5, 4), torch.tensor([0, 2, 1, 0, 3])])
case("CrossEntropyLoss", inputs=[R(5, 4), R(5, 4).softmax(1)])
case("CrossEntropyLoss", inputs=[R(2, 4, 3), torch.tensor([[0, 1, 2], [3, 2, 1]])])
case("NLLLoss", ignore_index=2, inputs=[R(2, 4, 3), torch.tensor([[0, 1, 2], [3, 2, 1]])])

with open("tests/golden/modules-more.json", "w") as f:
    f.write('{"cases": [\n' + ",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
save_file(tensors, "tests/golden/modules-more.safetensors")
print(len(cases), "cases over", len({c["module"] for c in cases}), "classes")
