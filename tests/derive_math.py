"""Derives the polynomial coefficients of base/mathfn.inc by Remez exchange (needs mpmath). Prints one line a fit: name, error, coefficients
from the lowest power on. An argument selects the fits whose names begin with it."""
from mpmath import mp, mpf, matrix, lu_solve, log, exp, expm1, sin, cos, asin, atan, sinh, erf, erfc, sqrt, pi, log1p
import struct
import sys
mp.prec = 160


def f32(x):
    return struct.unpack('f', struct.pack('f', float(x)))[0]


def remez(f, w, a, b, deg, n=1200):
    """Coefficients (lowest first) of the polynomial p minimising max |w (p - f)| on [a, b], and that maximum."""
    xs = [(a + b) / 2 + (b - a) / 2 * mp.cos(pi * (mpf(i) + 0.5) / n) for i in range(n)][::-1]
    fs, ws = [f(x) for x in xs], [abs(w(x)) for x in xs]
    m = deg + 2
    ref = [int((1 - mp.cos(pi * mpf(i) / (m - 1))) / 2 * (n - 1)) for i in range(m)]
    for _ in range(30):
        A, B = matrix(m, m), matrix(m, 1)
        for r, i in enumerate(ref):
            for k in range(deg + 1):
                A[r, k] = xs[i] ** k
            A[r, deg + 1] = (-1) ** r / ws[i]
            B[r] = fs[i]
        s = lu_solve(A, B)
        err = [ws[i] * (mp.polyval(list(s[:deg + 1])[::-1], xs[i]) - fs[i]) for i in range(n)]
        new, cur = [], 0                    # one extremum per run of equal sign
        for i in range(1, n):
            if (err[i] > 0) != (err[cur] > 0):
                new.append(cur)
                cur = i
            elif abs(err[i]) > abs(err[cur]):
                cur = i
        new.append(cur)
        while len(new) > m:
            new.pop(0 if abs(err[new[0]]) < abs(err[new[-1]]) else -1)
        if len(new) < m or new == ref:
            break
        ref = new
    return list(s[:deg + 1]), max(abs(e) for e in err)


def show(name, c, e, single=True):
    txt = ['%.9gf' % f32(x) if single else '%.17g' % float(x) for x in c]
    print('/* %s: error 2^%.1f */ %s' % (name, float(mp.log(e, 2)), ', '.join(txt)))


def tiny(x):
    return x if abs(x) > mpf('1e-12') else mpf('1e-12')


q = lambda f: (lambda x: f(tiny(x)))
L = log(2) / 2 * mpf('1.002')
FITS = [
    ('EXPM1 (e^r-1-r)/r^2', q(lambda r: (expm1(r) - r) / r**2), q(lambda r: r**2 / expm1(r)), -L, L, 4, 1),
    ('EXP (e^r-1-r)/r^2', q(lambda r: (expm1(r) - r) / r**2), q(lambda r: r**2 / exp(r)), -L, L, 4, 1),
    ('EXP2 (2^r-1)/r', q(lambda r: expm1(r * log(2)) / r), lambda r: r, mpf(-.5), mpf(.5), 5, 1),
    ('TANH (e^2r-1-2r)/r^2', q(lambda r: (expm1(2 * r) - 2 * r) / r**2), q(lambda r: r**2 / expm1(2 * r)), -L / 2, L / 2, 5, 1),
    ('LOG (log(1+f)-f)/f^2', q(lambda f: (log1p(f) - f) / f**2), q(lambda f: f**2 / log1p(f)), -mpf(1) / 3, mpf(1) / 3, 8, 1),
    ('LOG2 (log2(1+f)-f/ln2)/f^2', q(lambda f: (log1p(f) - f) / f**2 / log(2)), q(lambda f: f**2 / log1p(f) * log(2)), -mpf(1) / 3, mpf(1) / 3, 8, 1),
    ('LOG10', q(lambda f: (log1p(f) - f) / f**2 / log(10)), q(lambda f: f**2 / log1p(f) * log(10)), -mpf(1) / 3, mpf(1) / 3, 8, 1),
    ('SIN (sin r - r)/r^3 in z', lambda z: (sin(sqrt(tiny(z))) / sqrt(tiny(z)) - 1) / tiny(z), lambda z: z, mpf(0), (pi / 4)**2 * mpf('1.001'), 2, 1),
    ('COS (cos r - 1 + z/2)/z^2', lambda z: (cos(sqrt(max(z, mpf('1e-6')))) - 1 + max(z, mpf('1e-6')) / 2) / max(z, mpf('1e-6'))**2, lambda z: z**2, mpf(0), (pi / 4)**2 * mpf('1.001'), 2, 1),
    ('ASIN (asin t - t)/t^3 in z', lambda z: (asin(sqrt(tiny(z))) / sqrt(tiny(z)) - 1) / tiny(z), lambda z: z, mpf(0), mpf('.3175'), 5, 1),
    ('ATAN (atan t - t)/t^3 in z', lambda z: (atan(sqrt(tiny(z))) / sqrt(tiny(z)) - 1) / tiny(z), lambda z: z, mpf(0), mpf(1), 7, 1),
    ('SINH (sinh x - x)/x^3 in z', lambda z: (sinh(sqrt(tiny(z))) / sqrt(tiny(z)) - 1) / tiny(z), lambda z: z, mpf(0), mpf(1), 3, 1),
    ('ERF small erf(a)/a-1 in z', lambda z: erf(sqrt(tiny(z))) / sqrt(tiny(z)) - 1, lambda z: sqrt(pi) / 2, mpf(0), mpf('0.93')**2, 5, 1),
    ('ERF large log(erfc t)/t+1', lambda t: log(erfc(t)) / t + 1, lambda t: t * erfc(t), mpf('0.92'), mpf('4.0'), 6, 1),
    ('D exp2 2^r', lambda r: exp(r * log(2)), lambda r: mpf(1), mpf(-.5), mpf(.5), 7, 0),
    ('D log2 in z: log2((1+s)/(1-s))/s', lambda z: 2 * mp.atanh(sqrt(tiny(z))) / sqrt(tiny(z)) / log(2), lambda z: mpf(1), mpf(0), mpf('.0401'), 5, 0),
    ('D erfc (1+2a) erfc(a) e^(a^2) in q=(a-2)/(a+2)', lambda s: (lambda a: (1 + 2 * a) * erfc(a) * exp(a * a))(2 * (1 + s) / (1 - s)), lambda s: mpf(1), mpf(-1), mpf('.6701'), 12, 0),
]
for name, f, w, a, b, deg, single in FITS:
    if len(sys.argv) < 2 or name.startswith(sys.argv[1]):
        show(name, *remez(f, w, a, b, deg), single)
        sys.stdout.flush()
