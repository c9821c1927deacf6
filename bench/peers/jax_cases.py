"""The cases that are written by hand for JAX: functions of one array, weights closed over, f32. A case that is not here is not measured with it."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn

rng = np.random.default_rng(1)


def rand(*shape):
    return jnp.asarray(rng.standard_normal(shape, dtype=np.float32) * (shape[-1] ** -0.5 if len(shape) > 1 else 1.0))


def linear(i, o):
    w, b = rand(i, o), rand(o)
    return lambda x: x @ w + b


def norm(n):
    g, b = jnp.ones(n), jnp.zeros(n)

    def f(x):
        m = x.mean(-1, keepdims=True)
        v = ((x - m) ** 2).mean(-1, keepdims=True)
        return (x - m) * lax.rsqrt(v + 1e-5) * g + b
    return f


def block(d):
    n, a, b = norm(d), linear(d, 4 * d), linear(4 * d, d)
    return lambda x: x + b(nn.gelu(a(n(x)), approximate=False))


def split(t, heads):
    b, n, d = t.shape
    return t.reshape(b, n, heads, d // heads).transpose(0, 2, 1, 3)


def attend(q, k, v, causal=False):
    s = q @ k.transpose(0, 1, 3, 2) * q.shape[-1] ** -0.5
    if causal:
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
    y = nn.softmax(s, -1) @ v
    b, h, n, d = y.shape
    return y.transpose(0, 2, 1, 3).reshape(b, n, h * d)


def encoder(layers, d=384, heads=12):
    def layer():
        qkv, out, n1, n2, a, b = linear(d, 3 * d), linear(d, d), norm(d), norm(d), linear(d, 4 * d), linear(4 * d, d)

        def f(x):
            q, k, v = (split(p, heads) for p in jnp.split(qkv(x), 3, -1))
            x = n1(x + out(attend(q, k, v)))
            return n2(x + b(nn.gelu(a(x), approximate=False)))
        return f
    fs = [layer() for _ in range(layers)]

    def run(x):
        for f in fs:
            x = f(x)
        return x
    return run


def gpt(past, d=768, heads=12):
    def layer():
        n1, qkv, out, n2, a, b = norm(d), linear(d, 3 * d), linear(d, d), norm(d), linear(d, 4 * d), linear(4 * d, d)
        k0, v0 = rand(1, heads, past or 1, d // heads), rand(1, heads, past or 1, d // heads)

        def f(x):
            q, k, v = (split(p, heads) for p in jnp.split(qkv(n1(x)), 3, -1))
            if past:
                k, v = jnp.concatenate([k0, k], 2), jnp.concatenate([v0, v], 2)
            x = x + out(attend(q, k, v, causal=not past))
            return x + b(nn.gelu(a(n2(x)), approximate=True))
        return f
    fs = [layer() for _ in range(12)]

    def run(x):
        for f in fs:
            x = f(x)
        return x
    return run


def cheap(n):
    bias = rand(n)

    def f(x):
        h = nn.relu((x + bias) * 1.5)
        h = jnp.clip(h, 0.125, 6.0) - 0.5
        h = jnp.maximum(jnp.abs(h * x), 0.0625)
        h = jnp.minimum(h, 4.0) + bias
        return -h + 1.0
    return f


def mixed(n):
    bias = rand(n)

    def f(x):
        h = jnp.exp(jnp.tanh(x + bias) * 0.5)
        h = x / jnp.sqrt(h + 1.0)
        h = jnp.clip(nn.sigmoid(h) * bias, -3.0, 3.0)
        return nn.relu(h + x + 0.25)
    return f


def mlp():
    a, b = linear(10, 32), linear(32, 2)
    return lambda x: b(nn.relu(a(x)))


def lstm(n):
    def layer():
        wi, wh, b = rand(n, 4 * n), rand(n, 4 * n), rand(4 * n)

        def f(xs):                                  # (time, batch, n)
            def step(carry, g):
                h, c = carry
                i, f_, g_, o = jnp.split(g + h @ wh, 4, -1)
                c = nn.sigmoid(f_) * c + nn.sigmoid(i) * jnp.tanh(g_)
                h = nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h
            zero = jnp.zeros((xs.shape[1], n))
            return lax.scan(step, (zero, zero), xs @ wi + b)[1]
        return f
    one, two = layer(), layer()
    return lambda x: two(one(x.transpose(1, 0, 2))).transpose(1, 0, 2)


def conv(i, o, k, stride, groups=1):
    w = rand(o, i // groups, k, k)
    return lambda x: lax.conv_general_dilated(x, w, (stride, stride), [(k // 2, k // 2)] * 2, feature_group_count=groups)


def batch_norm(n):
    scale, shift = rand(n)[:, None, None], rand(n)[:, None, None]
    return lambda x: x * scale + shift


def resnet18():
    def basic(i, o, s):
        c1, n1, c2, n2 = conv(i, o, 3, s), batch_norm(o), conv(o, o, 3, 1), batch_norm(o)
        down, nd = conv(i, o, 1, s), batch_norm(o)
        return lambda x: nn.relu(n2(c2(nn.relu(n1(c1(x))))) + (nd(down(x)) if s != 1 or i != o else x))
    stem, n, fc = conv(3, 64, 7, 2), batch_norm(64), linear(512, 1000)
    blocks = [basic(i, o, s) for i, o, s in ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))]

    def run(x):
        x = nn.relu(n(stem(x)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)])
        for b in blocks:
            x = b(x)
        return fc(x.mean((2, 3)))
    return run


CASES = {
    "block-8x128": (lambda: block(1024), (8, 128, 1024)),
    "block-1x16": (lambda: block(1024), (1, 16, 1024)),
    "encoder": (lambda: encoder(1), (1, 128, 384)),
    "minilm-1": (lambda: encoder(6), (1, 128, 384)),
    "minilm-8": (lambda: encoder(6), (8, 128, 384)),
    "resnet18": (resnet18, (1, 3, 224, 224)),
    "gpt2-decode": (lambda: gpt(127), (1, 1, 768)),
    "gpt2-prefill": (lambda: gpt(0), (1, 128, 768)),
    "lstm": (lambda: lstm(256), (1, 64, 256)),
    "chain-cheap-1M": (lambda: cheap(1024), (1024, 1024)),
    "chain-cheap-16M": (lambda: cheap(4096), (4096, 4096)),
    "chain-mixed-1M": (lambda: mixed(1024), (1024, 1024)),
    "chain-mixed-16M": (lambda: mixed(4096), (4096, 4096)),
    "softmax": (lambda: lambda x: nn.softmax(x, -1), (4096, 1024)),
    "layer_norm": (lambda: norm(1024), (4096, 1024)),
    "mlp": (mlp, (4, 10)),
}


def make(name):
    """(compiled function, list of inputs)."""
    function, shape = CASES[name]
    return jax.jit(function()), [rand(*shape)]
