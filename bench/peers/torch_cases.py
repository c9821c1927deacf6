"""The cases of bench/support/cases.c as PyTorch modules: the same shapes and operators, random weights (early-exit: the trained ones)."""
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Cheap(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x):
        h = F.relu((x + self.bias) * 1.5)
        h = h.clamp(0.125, 6.0) - 0.5
        h = (h * x).abs().clamp_min(0.0625)
        h = h.clamp_max(4.0) + self.bias
        return -h + 1.0


class Mixed(Cheap):
    def forward(self, x):
        h = torch.exp(torch.tanh(x + self.bias) * 0.5)
        h = x / torch.sqrt(h + 1.0)
        h = (torch.sigmoid(h) * self.bias).clamp(-3.0, 3.0)
        return F.relu(h + x + 0.25)


class Loss(nn.Module):
    def forward(self, x):
        d = x * 1.5 - 0.5
        return (d * d).mean()


class GptLayer(nn.Module):
    """past: None, or the number of tokens whose keys and values are stored."""

    def __init__(self, d, heads, past=None):
        super().__init__()
        self.heads, self.past = heads, past
        self.ln_1, self.c_attn, self.c_proj, self.ln_2 = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        if past:
            self.register_buffer("k", torch.randn(1, heads, past, d // heads))
            self.register_buffer("v", torch.randn(1, heads, past, d // heads))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.transpose(1, 2) for p in self.c_attn(self.ln_1(x)).reshape(b, t, 3, self.heads, d // self.heads).unbind(2))
        if self.past:
            k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=not self.past)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln_2(x))


class Lstm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lstm = nn.LSTM(n, n, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.exit1, self.exit2 = nn.Linear(64, 48), nn.Linear(48, 10), nn.Linear(48, 10)
        self.deep1, self.deep2 = nn.Linear(48, 128), nn.Linear(128, 48)

    def forward(self, x):
        h = F.relu(self.stem(x))
        logits = self.exit1(h)
        if logits.softmax(-1).amax().item() > 0.95:
            return logits
        return self.exit2(h + F.relu(self.deep2(F.relu(self.deep1(h)))))


def encoder(layers, width=384):
    layer = nn.TransformerEncoderLayer(width, 12, 4 * width, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False) if layers > 1 else layer


def vision(name):
    import torchvision
    return getattr(torchvision.models, name)()


def early_exit():
    from safetensors.torch import load_file
    m = EarlyExit()
    m.load_state_dict(load_file(DATA / "digits-early-exit.safetensors"))
    return m


def digits():
    from safetensors.torch import load_file
    f = load_file(DATA / "digits.safetensors")
    images = f["images"].float() / 16
    return [images[i].reshape(1, 64) for i in f["test_index"].long()][:360]


def conv(channels, width, kernel, stride=1, groups=1):
    import torchvision
    return torchvision.ops.Conv2dNormActivation(channels, width, kernel, stride, groups=groups, activation_layer=nn.ReLU6)


def inverted_residual(channels):
    import torchvision
    return torchvision.models.mobilenetv2.InvertedResidual(channels, channels, 1, 6)


def twelve(make):
    return nn.Sequential(*(make() for _ in range(12)))


# name: (module, shape of the one input, or a function of the inputs of a round)
CASES = {
    "early-exit": (early_exit, digits),
    "block-8x128": (lambda: Block(1024), (8, 128, 1024)),
    "block-1x16": (lambda: Block(1024), (1, 16, 1024)),
    "encoder": (lambda: encoder(1), (1, 128, 384)),
    "minilm-1": (lambda: encoder(6), (1, 128, 384)),
    "minilm-8": (lambda: encoder(6), (8, 128, 384)),
    "resnet18": (lambda: vision("resnet18"), (1, 3, 224, 224)),
    "mobilenet_v2": (lambda: vision("mobilenet_v2"), (1, 3, 224, 224)),
    "conv-7x7": (lambda: conv(3, 64, 7, 2), (1, 3, 224, 224)),
    "conv-3x3": (lambda: conv(64, 64, 3), (1, 64, 56, 56)),
    "conv-depthwise": (lambda: conv(144, 144, 3, groups=144), (1, 144, 56, 56)),
    "conv-residual": (lambda: inverted_residual(24), (1, 24, 56, 56)),
    "gpt2-decode": (lambda: twelve(lambda: GptLayer(768, 12, 127)), (1, 1, 768)),
    "gpt2-prefill": (lambda: twelve(lambda: GptLayer(768, 12)), (1, 128, 768)),
    "lstm": (lambda: Lstm(256), (1, 64, 256)),
    "chain-cheap-1M": (lambda: Cheap(1024), (1024, 1024)),
    "chain-cheap-16M": (lambda: Cheap(4096), (4096, 4096)),
    "chain-mixed-1M": (lambda: Mixed(1024), (1024, 1024)),
    "chain-mixed-16M": (lambda: Mixed(4096), (4096, 4096)),
    "softmax": (lambda: nn.Softmax(-1), (4096, 1024)),
    "layer_norm": (lambda: nn.LayerNorm(1024), (4096, 1024)),
    "mlp": (lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2)), (4, 10)),
}


def make(name):
    """(module in eval mode, list of inputs)."""
    torch.manual_seed(1)
    module, inputs = CASES[name]
    return module().eval(), inputs() if callable(inputs) else [torch.randn(*inputs)]
